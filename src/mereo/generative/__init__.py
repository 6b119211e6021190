"""Capsules as a generative model: routing as inference, top-down attention, the density behind it, and its inversion.

Source: Kiefer, Millidge, Tschantz, Buckley 2022, arXiv:2209.02567; the inversion is ours, docs/generative.md.
"""

from mereo.generative.capsule_mixture import CapsuleMixture, MixtureSample
from mereo.generative.generative_capsnet import Explained, GenerativeCapsNet
from mereo.generative.generative_capsules import GenerativeCapsules
from mereo.generative.glyphs import Glyphs, make_glyphs
from mereo.generative.inversion import Inversion, invert
from mereo.generative.pose_tree import PoseBelief, PoseTree, TreeSample
from mereo.generative.predictive_coding import Inference, infer, label_energies
from mereo.generative.probabilistic_capsules import PoseExplanation, ProbabilisticCapsules, prob_capsules_toy
from mereo.generative.probabilistic_image_capsules import (
    ImageBelief,
    ImageExplanation,
    ProbabilisticImageCapsules,
    prob_image_capsules_toy,
)
from mereo.generative.template_renderer import TemplateRenderer
from mereo.generative.toy import toy_routing
from mereo.generative.triple_tensor import TripleTensor
from mereo.generative.von_mises_fisher import VonMisesFisher
from mereo.mechanisms.attention import top_down_attention

__all__ = [
    "CapsuleMixture",
    "Explained",
    "GenerativeCapsNet",
    "GenerativeCapsules",
    "Glyphs",
    "ImageBelief",
    "ImageExplanation",
    "Inference",
    "Inversion",
    "MixtureSample",
    "PoseBelief",
    "PoseExplanation",
    "PoseTree",
    "ProbabilisticCapsules",
    "ProbabilisticImageCapsules",
    "TemplateRenderer",
    "TreeSample",
    "TripleTensor",
    "VonMisesFisher",
    "infer",
    "invert",
    "label_energies",
    "make_glyphs",
    "prob_capsules_toy",
    "prob_image_capsules_toy",
    "top_down_attention",
    "toy_routing",
]
