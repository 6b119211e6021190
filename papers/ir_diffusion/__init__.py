"""IR-Diffusion: isolation and reposition attention (arXiv:2411.19261)."""

from papers.common.paper import Experiment, Paper

PAPER = Paper(
    "Improving multi-subject consistency in open-domain image generation with isolation and reposition attention",
    "arXiv:2411.19261",
    experiments={
        "displaced_reference": Experiment(
            "How well is a part of a reference found from elsewhere, with and without reposition?",
            "arXiv:2411.19261, the idea of reposition attention; the toy is ours",
            uses=frozenset({"seeds"}),
        ),
        "two_references": Experiment(
            "Do two subjects of a picture keep the looks of their references, and stay apart?",
            "arXiv:2411.19261, the question of its tables; network and scenes are ours",
            uses=frozenset({"images", "seeds"}),
            smallest={"data": None, "images": 2},
            constants={"STEPS": 1, "TIMES": 1},
        ),
    },
)
