"""Combiner: full attention at sparse cost (arXiv:2107.05768)."""

from papers.common.paper import Paper

PAPER = Paper(
    "Combiner: full attention at sparse cost",
    "arXiv:2107.05768",
    suites={"combiner": "papers.combiner.suite:COMBINER"},
)
