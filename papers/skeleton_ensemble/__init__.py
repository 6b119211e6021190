"""Ensem-NN: an ensemble of 1D convolutional networks for skeletons (arXiv:1801.02475)."""

from papers.common.paper import Experiment, Paper

PAPER = Paper(
    "Ensemble one-dimensional convolution neural networks for skeleton-based action recognition",
    "arXiv:1801.02475",
    experiments={
        "skeleton_ensemble": Experiment(
            "Is every subnet good alone, and is their ensemble better than each?",
            "arXiv:1801.02475, abstract; the actions are ours",
            "papers.skeleton_ensemble.subnets",
            frozenset({"data", "seeds", "epochs", "limit", "images"}),
            data="actions",
            smallest={"data": "actions:noise=0.2", "seeds": 1, "epochs": 1, "limit": 20, "images": 20},
            constants={"BATCH": 10, "WIDTHS": (2, 3)},
        ),
    },
)
