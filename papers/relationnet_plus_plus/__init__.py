"""RelationNet++ (arXiv:2010.15831)."""

from papers.common.paper import Experiment, Paper

PAPER = Paper(
    "RelationNet++: bridging visual representations for object detection via transformer decoder",
    "arXiv:2010.15831",
    experiments={
        "bridged_detector": Experiment(
            "Do predicted centres and corners help a one-stage detector?",
            "arXiv:2010.15831, tables 1 and 2; network and images are ours",
            uses=frozenset({"epochs", "limit", "batch_size", "seeds", "device", "images", "variants"}),
            smallest={"limit": 16, "batch_size": 8, "images": 12, "epochs": 1},
            constants={"DRAWN": 2},
        ),
        "shared_geometry": Experiment(
            "What does a location table save that all pairs share?",
            "arXiv:2010.15831, table 5; sizes are ours",
            uses=frozenset({"images"}),
            smallest={"images": 1},
            constants={"SIDE": 16, "KEYS": 4, "TIMES": 1, "HIDDEN": 16},
        ),
    },
)
