"""MoH: multi-head attention as mixture-of-head attention (arXiv:2410.11842)."""

from papers.common.paper import TRAINING, Experiment, Paper

PAPER = Paper(
    "MoH: multi-head attention as mixture-of-head attention",
    "arXiv:2410.11842",
    experiments={
        "mixture_of_heads": Experiment(
            "Does a network stay accurate when each token uses some of the heads, and are all heads used?",
            "arXiv:2410.11842",
            uses=(TRAINING | {"seeds"}) - {"images"},
            data="digits",
        ),
    },
    suites={"moh": "papers.moh.suite:MOH"},
)
