"""A probabilistic formulation of capsules (arXiv:2004.03553)."""

from papers.common.paper import Experiment, Paper

PAPER = Paper(
    "A probabilistic formulation of capsules",
    "arXiv:2004.03553",
    experiments={
        "probabilistic_capsules": Experiment(
            "Does test-time optimisation repair what an encoder gets wrong about parents and their poses?",
            "arXiv:2004.03553",
            uses=frozenset({"seeds", "epochs", "images"}),
            smallest={"images": 12},
            constants={"EPOCH": 10, "OPTIMISED": (2, 5)},
        ),
    },
)
