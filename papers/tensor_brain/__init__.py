"""The Tensor Brain (arXiv:2001.11027)."""

from papers.common.paper import Experiment, Paper

PAPER = Paper(
    "The Tensor Brain: semantic decoding for perception and memory",
    "arXiv:2001.11027",
    experiments={
        "tensor_brain": Experiment(
            "What does an index that writes its embedding back add to reading scenes, and what do memories keep?",
            "arXiv:2001.11027, a proposal without numbers; scenes and protocol are ours",
            "papers.tensor_brain.semantic_decoding",
            frozenset({"seeds", "images", "variants"}),
            smallest={"seeds": 1, "images": 20},
            constants={"STEPS": 3, "PICTURE_STEPS": 2, "TABLE_STEPS": 3, "IMAGINED": 200, "PICTURES": 200},
        ),
    },
)
