"""Explanations of predictions, as numbers and as pictures.

Called as a function, `mereo.explain(model, images)`, this package is `mereo.api.explain`.
"""

import inspect
import sys
from types import ModuleType
from typing import Any

import mereo
from mereo.explain.attention_layers import AttentionLayer, attention_layers
from mereo.explain.attention_pictures import draw_attention
from mereo.explain.contributions import vote_contributions
from mereo.explain.coupling_maps import CouplingMap, coupling_maps
from mereo.explain.deletion import DeletionTest, deletion_test, hidden_scores, rank_correlation
from mereo.explain.explanation import ContributionMap, Explanation, OcclusionMap, explain
from mereo.explain.folder import write_explanations, write_page
from mereo.explain.gradient_pictures import draw_gradients
from mereo.explain.gradients import input_gradients, integrated_gradients
from mereo.explain.mixing import MixingFacts, mixing_facts, mixing_matrix, token_jacobian
from mereo.explain.mixing_pictures import draw_kernels, draw_mixing_matrices
from mereo.explain.observation import Observation, observe
from mereo.explain.occlusion import occlusion_maps
from mereo.explain.pictures import draw_explanation
from mereo.explain.places import Box, sender_places, spread
from mereo.explain.pose_sweeps import PoseSweep, pose_sweeps
from mereo.explain.rollout import AttentionMap, attention_rollout, class_attention
from mereo.explain.sweep_pictures import draw_pose_sweep
from mereo.explain.trees.growth import parse_trees
from mereo.explain.trees.pictures import draw_parse_tree
from mereo.explain.trees.tree import Edge, Node, ParseTree

__all__ = [
    "AttentionLayer",
    "AttentionMap",
    "Box",
    "ContributionMap",
    "CouplingMap",
    "DeletionTest",
    "Edge",
    "Explanation",
    "MixingFacts",
    "Node",
    "Observation",
    "OcclusionMap",
    "ParseTree",
    "PoseSweep",
    "attention_layers",
    "attention_rollout",
    "class_attention",
    "coupling_maps",
    "deletion_test",
    "draw_attention",
    "draw_explanation",
    "draw_gradients",
    "draw_kernels",
    "draw_mixing_matrices",
    "draw_parse_tree",
    "draw_pose_sweep",
    "explain",
    "hidden_scores",
    "input_gradients",
    "integrated_gradients",
    "mixing_facts",
    "mixing_matrix",
    "observe",
    "occlusion_maps",
    "parse_trees",
    "pose_sweeps",
    "rank_correlation",
    "sender_places",
    "spread",
    "token_jacobian",
    "vote_contributions",
    "write_explanations",
    "write_page",
]


class _Room(ModuleType):
    """This package, which may also be called."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return mereo.api.explain(*arguments, **options)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(mereo.api.explain)


sys.modules[__name__].__class__ = _Room
