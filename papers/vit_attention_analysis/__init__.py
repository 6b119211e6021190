"""How attention works in vision transformers (arXiv:2303.13731)."""

from papers.common.paper import TRAINING, Experiment, Paper

PAPER = Paper(
    "How does attention work in vision transformers? A visual analytics attempt",
    "arXiv:2303.13731",
    experiments={
        "vit_attention": Experiment(
            "Which heads of a small ViT matter, how far do they look, and which patterns have they learned?",
            "arXiv:2303.13731; network and data are ours",
            uses=TRAINING - {"epochs", "device"} | {"seeds"},
            data="fashion_mnist",
            smallest={"data": "digits", "limit": 64, "batch_size": 8, "images": 12},
            constants={
                "SIDE": 8,
                "PATCH": 1,
                "STEPS": 2,
                "MAPPED": 3,
                "EPOCHS": 1,
                "CLUSTERS": 3,
                "DEPTH": 2,
                "DRAWS": 1,
            },
        ),
    },
)
