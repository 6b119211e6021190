"""SHViT: single-head vision transformer (arXiv:2401.16456)."""

from papers.common.paper import Paper

PAPER = Paper(
    "SHViT: single-head vision transformer",
    "arXiv:2401.16456",
)
