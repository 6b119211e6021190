"""Tensor attention (arXiv:2310.04064)."""

from papers.common.paper import Experiment, Paper

PAPER = Paper(
    "Tensor attention",
    "arXiv:2310.04064",
    experiments={
        "match_three": Experiment(
            "Does one layer learn whether a token is in a triple with the sum 0, where attention to tokens does not?",
            "arXiv:2306.02896 states the task; the training is ours",
            uses=frozenset({"epochs", "seeds"}),
            smallest={"epochs": 1},
            constants={"STEPS": 2, "TESTED": 50, "BATCH": 8},
        ),
        "tensor_forms": Experiment(
            "How far is the polynomial from tensor attention, by its degree, and how does time grow with tokens?",
            "arXiv:2310.04064, which has no measurements",
            constants={"DEGREES": (2, 4), "TOKENS": {"exact": (8,), "streamed": (8, 16), "polynomial": (8, 16)}},
        ),
    },
    suites={"tensor_attention": "papers.tensor_attention.suite:TENSOR_ATTENTION"},
)
