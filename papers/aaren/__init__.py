"""Attention as an RNN (arXiv:2405.13956)."""

from papers.common.paper import Experiment, Paper

PAPER = Paper(
    "Attention as an RNN",
    "arXiv:2405.13956",
    experiments={
        "aaren_tasks": Experiment(
            "Is Aaren on par with causal attention in forecasts, event times, classification and decisions?",
            "arXiv:2405.13956, section 5, which has 38 data sets; these four are generated",
            uses=frozenset({"epochs", "seeds", "variants"}),
            smallest={"epochs": 1},
            constants={"STEPS": 2, "TESTED": 12, "TOKENS": 8, "BATCH": 4},
        ),
        "aaren_streaming": Experiment(
            "How much does a stream of tokens keep, and how long does a token take, after many tokens?",
            "arXiv:2405.13956, figure 5; sizes are ours",
            constants={"TOKENS": (16, 32), "REPEATS": 2},
        ),
    },
    suites={"prefix_attention": "papers.aaren.suite:PREFIX_ATTENTION"},
)
