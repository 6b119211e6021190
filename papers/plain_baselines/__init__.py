"""Default networks for masks, boxes and identities against plain ones of torchvision (ours)."""

from papers.common.paper import Experiment, Paper

PAPER = Paper(
    "Masks, boxes and identities: the default beside a plain network",
    "ours",
    experiments={
        "plain_baselines": Experiment(
            "Is what mereo trains by default as good as a plain network of torchvision trained for as long?",
            "ours",
            uses=frozenset({"data", "data_root", "minutes", "limit", "images", "device"}),
            data="shape_masks",
            smallest={"data": "shape_masks", "minutes": 0.02, "limit": 64},
        ),
    },
)
