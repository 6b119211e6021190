"""Capsules as a generative model: routing as inference, top-down attention, the density behind it, and its inversion.

Source: Kiefer, Millidge, Tschantz, Buckley 2022, arXiv:2209.02567; the inversion is ours, docs/generative.md.
"""

from mereo.attention.top_down import top_down_attention
from mereo.generative.capsule_mixture import CapsuleMixture, MixtureSample
from mereo.generative.generative_capsnet import Explained, GenerativeCapsNet
from mereo.generative.generative_capsules import GenerativeCapsules
from mereo.generative.inversion import Inversion, invert
from mereo.generative.predictive_coding import Inference, infer, label_energies
from mereo.generative.toy import toy_routing
from mereo.generative.von_mises_fisher import VonMisesFisher

__all__ = [
    "CapsuleMixture",
    "Explained",
    "GenerativeCapsNet",
    "GenerativeCapsules",
    "Inference",
    "Inversion",
    "MixtureSample",
    "VonMisesFisher",
    "infer",
    "invert",
    "label_energies",
    "top_down_attention",
    "toy_routing",
]
