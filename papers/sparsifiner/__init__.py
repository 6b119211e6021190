"""Sparsifiner: learning sparse instance-dependent attention (arXiv:2303.13755)."""

from papers.common.paper import TRAINING, Experiment, Paper

PAPER = Paper(
    "Sparsifiner: learning sparse instance-dependent attention",
    "arXiv:2303.13755",
    experiments={
        "sparsifiner": Experiment(
            "How few keys does a query need if a predictor chooses them?",
            "arXiv:2303.13755, section 4; the task is ours",
            uses=TRAINING,
            data="digits",
        ),
    },
    suites={"sparsifiner": "papers.sparsifiner.suite:SPARSIFINER"},
)
