"""RCMHA: relative convolutional multi-head attention (arXiv:2308.03429)."""

from papers.common.paper import TRAINING, Experiment, Paper

PAPER = Paper(
    "RCMHA: relative convolutional multi-head attention",
    "arXiv:2308.03429",
    experiments={
        "relative_convolutions": Experiment(
            "What do convolutions, relative positions and both together gain on text, and what memory do they take?",
            "arXiv:2308.03429, abstract; text and sizes are ours",
            uses=(TRAINING - {"device"}) | {"seeds"},
            data="pystdlib",
            smallest={"data": "pystdlib", "limit": 8, "images": 2, "batch_size": 4},
        ),
    },
)
