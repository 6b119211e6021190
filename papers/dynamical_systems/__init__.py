"""Understanding the differences in foundation models: attention, state space models, and recurrent networks."""

from papers.common.paper import Experiment, Paper

PAPER = Paper(
    "Attention, state space models and recurrent networks as dynamical systems",
    "arXiv:2405.15731",
    experiments={
        "recurrences": Experiment(
            "How much do causal mixers of tokens recall, by the size of their state and by their normaliser?",
            "arXiv:2405.15731, figures on MQAR; networks, vocabulary and trainings are smaller",
            uses=frozenset({"limit", "device", "images", "variants", "seeds"}),
            smallest={"limit": 64, "images": 8},
            constants={"DIM": 8, "STATES": (2,), "RATES": (1e-3,), "SHOWN": 2, "DEGREE": 4, "TOKENS": 512},
        ),
    },
    suites={"selective_scan": "papers.dynamical_systems.suite:SELECTIVE_SCAN"},
)
