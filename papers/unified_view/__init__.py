"""A unified view of long-sequence models (arXiv:2302.06218)."""

from papers.common.paper import Experiment, Paper

PAPER = Paper(
    "A unified view of long-sequence models",
    "arXiv:2302.06218",
    experiments={
        "token_mixers": Experiment(
            "Which token mixers are one template, and what do their mixing matrices look like?",
            "arXiv:2302.06218",
        ),
        "ring_attention": Experiment(
            "Is attention over several processes exact, what does it send, and what does it gain?",
            "arXiv:2302.06218",
            constants={"PROCESSES": (2,), "LENGTHS": (64,)},
        ),
    },
    suites={"ring": "papers.unified_view.suite:RING"},
)
