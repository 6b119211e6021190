"""Attention adversarial training: AT, iAT (arXiv:2009.12064), VAT and iVAT (arXiv:2104.08763)."""

from papers.common.paper import TRAINING, Experiment, Paper

USES = (TRAINING - {"device"}) | {"seeds", "variants"}
CONSTANTS = {"NOISE": (2.0,), "ATTACKED": 8}

PAPER = Paper(
    "Attention meets perturbations",
    "arXiv:2009.12064",
    experiments={
        "perturbed_attention": Experiment(
            "What does training on perturbed attention scores change: accuracy, robustness, agreement with gradients?",
            "arXiv:2009.12064 and 2104.08763; images in place of texts are ours",
            uses=USES,
            data="fashion_mnist",
            constants={**CONSTANTS, "TIMED": 2},
        ),
        "fewer_labels": Experiment(
            "Does virtual adversarial training of attention make up for labels that are removed?",
            "arXiv:2104.08763, section 5; images in place of texts are ours",
            uses=USES,
            data="fashion_mnist",
            constants=CONSTANTS,
        ),
        "perturbed_routing": Experiment(
            "Does perturbing couplings regularise routing, and does it make it robust?",
            "ours",
            uses=USES,
            data="fashion_mnist",
            constants={**CONSTANTS, "NAMES": ("none",), "PROBED": 4, "QUERIES": 5},
        ),
    },
)
