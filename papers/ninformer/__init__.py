"""NiNformer: a network-in-network transformer (arXiv:2403.02411)."""

from papers.common.paper import TRAINING, Experiment, Paper

PAPER = Paper(
    "NiNformer: a network-in-network transformer",
    "arXiv:2403.02411",
    experiments={
        "mixer_gating": Experiment(
            "Does it help that the Mixer in NiNformer multiplies the tokens?",
            "arXiv:2403.02411, section 4",
            uses=TRAINING | {"seeds"},
            data="mnist",
            constants={"DIM": 8, "HIDDEN": 16},
        ),
    },
)
