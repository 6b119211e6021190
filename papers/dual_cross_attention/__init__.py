"""Dual cross-attention learning for classes that differ in details (arXiv:2205.02151)."""

from papers.common.paper import Experiment, Paper

PAPER = Paper(
    "Dual cross-attention learning for fine-grained classes",
    "arXiv:2205.02151",
    experiments={
        "small_details": Experiment(
            "Do important patches that look again, and images that attend to others in training, help with details?",
            "arXiv:2205.02151, tables 1, 3 and 4; the images are ours",
            uses=frozenset({"epochs", "limit", "batch_size", "seeds", "device", "images", "variants"}),
            smallest={"variants": ("attention alone", "both")},
            constants={"DEPTH": 2},
        ),
        "identities": Experiment(
            "Do important patches that look again, and images that attend to others in training, help to find people?",
            "arXiv:2205.02151, table 2; the figures are ours",
            uses=frozenset({"limit", "seeds", "images", "variants"}),
            smallest={"limit": None, "variants": ("attention alone", "both")},
            constants={"DEPTH": 2, "STEPS": 2},
        ),
    },
)
