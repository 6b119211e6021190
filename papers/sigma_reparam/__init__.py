"""Sigma-reparametrisation (arXiv:2303.06296)."""

from papers.common.paper import TRAINING, Experiment, Paper

PAPER = Paper(
    "Stabilizing transformer training by preventing attention entropy collapse",
    "arXiv:2303.06296",
    experiments={
        "entropy_collapse": Experiment(
            "Does a transformer without norms train by plain SGD, and does its attention keep its entropy?",
            "arXiv:2303.06296, section 4; network and images are ours",
            uses=(TRAINING - {"device", "epochs"}) | {"seeds", "variants"},
            data="fashion_mnist",
            smallest={"data": "digits", "limit": 64, "batch_size": 16, "images": 20},
            constants={"STEPS": 3, "EVERY": 1, "DEPTHS": (2,), "PATCH": 4, "SIZE": 8},
        ),
    },
)
