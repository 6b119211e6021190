"""SpectFormer: frequency and attention (arXiv:2304.06446)."""

from papers.common.paper import TRAINING, Experiment, Paper

PAPER = Paper(
    "SpectFormer: frequency and attention",
    "arXiv:2304.06446",
    experiments={
        "spectral_layers": Experiment(
            "Do spectral blocks before attention do better than attention or spectral blocks only, at the same size?",
            "arXiv:2304.06446, sections 3 and 4",
            uses=TRAINING | {"seeds"},
            data="cifar10",
            constants={"DIM": 8, "HIDDEN": 16},
        ),
    },
)
