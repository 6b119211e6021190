"""What can a single attention layer learn? (arXiv:2307.11353)."""

from papers.common.paper import Experiment, Paper

PAPER = Paper(
    "What can a single attention layer learn?",
    "arXiv:2307.11353",
    experiments={
        "random_features": Experiment(
            "From how many samples do random attention heads learn averages over keys, compared with a random MLP?",
            "arXiv:2307.11353; sizes and targets are ours",
            uses=frozenset({"seeds"}),
            constants={"SAMPLES": (20, 40), "HELD_OUT": 50, "HEADS": 12},
        ),
    },
)
