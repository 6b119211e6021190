"""All papers, and their declarations by name. This module imports no torch."""

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

from papers.common.paper import Experiment, Paper

if TYPE_CHECKING:
    from mereo.training.studies import Study

NAMES = (
    "aaren",
    "ar_capsnet",
    "attencraft",
    "attention_adversarial_training",
    "cait",
    "capsule_table",
    "clear",
    "combiner",
    "conditional_cross_attention",
    "constellations",
    "defaults",
    "dynamic_subspace_learners",
    "dynamical_systems",
    "dual_cross_attention",
    "evit",
    "gates",
    "gcog",
    "kiefer_generative_capsules",
    "lightning",
    "ir_diffusion",
    "moh",
    "mspcaps",
    "multiscale_self_guided_attention",
    "neighborhood",
    "ninformer",
    "normgrad",
    "oat",
    "plain_baselines",
    "pldr_llm",
    "pointer_network",
    "probabilistic_capsules",
    "probabilistic_optimisation",
    "rcmha",
    "relationnet_plus_plus",
    "routing_transformer",
    "sea",
    "shvit",
    "sigma_reparam",
    "single_attention_layer",
    "skeleton_ensemble",
    "sparse_capsules",
    "sparsifiner",
    "spectformer",
    "tensor_attention",
    "tensor_brain",
    "token_attention_robustness",
    "unified_view",
    "vision_language_interventions",
    "vit_attention_analysis",
)
"""The folders of the papers."""

PAPERS: Mapping[str, Paper] = {name: import_module(f"papers.{name}").PAPER for name in NAMES}
EXPERIMENTS: Mapping[str, Experiment] = {
    name: replace(experiment, module=experiment.module or f"papers.{folder}.{name}")
    for folder, paper in PAPERS.items()
    for name, experiment in paper.experiments.items()
}
STUDIES: Mapping[str, "Study"] = {name: study for paper in PAPERS.values() for name, study in paper.studies.items()}
SUITES: Mapping[str, str] = {name: place for paper in PAPERS.values() for name, place in paper.suites.items()}
"""The benchmark suites, name -> module:attribute."""
