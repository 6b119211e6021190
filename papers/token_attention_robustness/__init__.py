"""Token-aware average pooling and attention diversification (arXiv:2303.11126)."""

from papers.common.paper import TRAINING, Experiment, Paper

PAPER = Paper(
    "Robustifying token attention for vision transformers",
    "arXiv:2303.11126",
    experiments={
        "robust_tokens": Experiment(
            "Do pooled tokens and diverse attention make a small vision transformer robust to corruptions and attacks?",
            "arXiv:2303.11126, section 5; network, images and corruptions are ours",
            uses=(TRAINING - {"device"}) | {"seeds", "variants"},
            data="fashion_mnist",
            constants={"ATTACKED": 8, "QUERIES": 5, "DIM": 16},
        ),
    },
)
