"""Multi-scale self-guided attention (arXiv:1906.02849)."""

from papers.common.paper import TRAINING, Experiment, Paper

PAPER = Paper(
    "Multi-scale self-guided attention for medical image segmentation",
    "arXiv:1906.02849",
    experiments={
        "guided_parts": Experiment(
            "What does each part of self-guided attention add to the segmentation of generated organs?",
            "arXiv:1906.02849, sections 3 and 4; network and images are ours",
            uses=TRAINING | {"seeds", "variants"},
            data="organ_masks",
            smallest={"data": "organ_masks", "limit": 16, "batch_size": 8, "images": 6},
            constants={"WIDTHS": (4, 4, 6, 8), "WIDTH": 4},
        ),
    },
)
