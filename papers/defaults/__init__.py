"""Settings chosen from the data (ours)."""

from papers.common.paper import Experiment, Paper

PAPER = Paper(
    "Settings chosen from the data",
    "ours",
    experiments={
        "defaults": Experiment(
            "Are the network and settings that follow from the data as good as a plain network trained for as long?",
            "ours",
            uses=frozenset({"data_root", "epochs", "limit", "device", "seeds", "variants"}),
            smallest={"variants": ("digits",)},
            constants={"PLAIN": {"rate 0.003": {"model": "resnet20", "lr": 3e-3}}},
        ),
        "backbone": Experiment(
            "Is a small network trained on photographs a better start for other photographs than none?",
            "ours",
            uses=frozenset({"data", "data_root", "epochs", "limit", "device", "seeds"}),
            data="cifar10",
            constants={"DRAWN": ("digits",)},
        ),
    },
)
