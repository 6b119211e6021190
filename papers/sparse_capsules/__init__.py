"""Sparse unsupervised capsules generalize better (arXiv:1804.06094)."""

from papers.common.paper import TRAINING, Experiment, Paper

PAPER = Paper(
    "Sparse unsupervised capsules generalize better",
    "arXiv:1804.06094",
    experiments={
        "sparse_capsules": Experiment(
            "Do capsules that compete to rebuild images serve a classifier better than capsules trained with labels?",
            "arXiv:1804.06094",
            uses=(TRAINING | {"variants", "seeds"}) - {"images"},
            data="mnist",
        ),
    },
)
