"""EViT: expediting vision transformers via token reorganizations (arXiv:2202.07800)."""

from papers.common.paper import TRAINING, Experiment, Paper

PAPER = Paper(
    "EViT: expediting vision transformers via token reorganizations",
    "arXiv:2202.07800",
    experiments={
        "evit": Experiment(
            "What does it cost, and save, to drop the patches that the class token attends to least?",
            "arXiv:2202.07800, section 4",
            uses=TRAINING | {"seeds"},
            data="cifar10",
            constants={"RATES": (0.5,), "ROUNDS": 1},
        ),
    },
    suites={"evit": "papers.evit.suite:EVIT"},
)
