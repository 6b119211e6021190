"""SEA: sparse linear attention with an estimated mask (arXiv:2310.01777)."""

from papers.common.paper import TRAINING, Experiment, Paper

PAPER = Paper(
    "SEA: sparse linear attention with an estimated mask",
    "arXiv:2310.01777",
    experiments={
        "sea": Experiment(
            "Can attention in linear time take the place of a trained network's?",
            "arXiv:2310.01777, section 4; the task is ours",
            uses=TRAINING,
            data="digits",
        ),
    },
    suites={"sea": "papers.sea.suite:SEA"},
)
