"""Capsule networks as generative models (arXiv:2209.02567)."""

from papers.common.paper import TRAINING, Experiment, Paper
from papers.kiefer_generative_capsules.studies import KIEFER_ROUTING

PAPER = Paper(
    "Capsule networks as generative models",
    "arXiv:2209.02567",
    experiments={
        "toy_routing": Experiment(
            "What does a penalty on the parents do, and where does its sparsity come from?",
            "arXiv:2209.02567, appendix B",
        ),
        "kiefer_routing": Experiment(
            "Does CapsNet need routing or a decoder to be accurate and sparse?",
            "arXiv:2209.02567, appendix A",
            uses=TRAINING | {"variants", "seeds", "warmup_epochs"},
            data="mnist",
            smallest={"variants": ("middle_routed",)},
        ),
        "sparse_inference": Experiment(
            "Does sparse inference achieve what routing aims at?",
            "arXiv:2209.02567, section 3.1",
            uses=TRAINING,
            data="digits",
            smallest={"images": 4},
            constants={"STEPS": 5},
        ),
        "top_down": Experiment(
            "Does top-down attention divide the parts of two overlaid digits between two parents?",
            "arXiv:2209.02567, section 3.2",
            uses=TRAINING,
            data="digits",
        ),
        "generative_parts": Experiment(
            "What do parents represent that explain the parts of images, trained without labels?",
            "arXiv:2209.02567, equations 7 and 8; the inversion and the training are ours",
            uses=TRAINING,
            data="digits",
        ),
    },
    studies={"kiefer_routing": KIEFER_ROUTING},
    suites={
        "inversion": "papers.kiefer_generative_capsules.inversion_suite:INVERSION",
    },
)
