"""Inference and learning for generative capsule models (arXiv:2103.06676)."""

from papers.common.paper import Experiment, Paper

PAPER = Paper(
    "Inference and learning for generative capsule models",
    "arXiv:2103.06676",
    experiments={
        "constellations": Experiment(
            "Which inference assigns points to objects better: variational, or routing?",
            "arXiv:2103.06676, arXiv:2209.02567",
            uses=frozenset({"seeds", "epochs", "images"}),
            smallest={"images": 2, "epochs": 4},
            constants={"TRAINING_IMAGES": 8, "NOISES": (0.0,), "CLUTTERS": (0,)},
        ),
    },
)
