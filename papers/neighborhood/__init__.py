"""Faster neighbourhood attention (arXiv:2403.04690)."""

from papers.common.paper import Experiment, Paper

PAPER = Paper(
    "Faster neighbourhood attention",
    "arXiv:2403.04690",
    experiments={
        "neighborhood": Experiment(
            "How much faster is neighbourhood attention by products of tiles, and fused, than by copying every window?",
            "arXiv:2403.04690",
            constants={"SIZES": {1: ((40,), (3,)), 2: ((8, 8), (3,))}, "ROUNDS": 1},
        ),
    },
    suites={"neighborhood": "papers.neighborhood.suite:NEIGHBORHOOD"},
)
