"""Settings chosen from the data (ours)."""

from papers.common.paper import Experiment, Paper

PAPER = Paper(
    "Settings chosen from the data",
    "ours",
    experiments={
        "defaults": Experiment(
            "How near are the settings that follow from the data to the best of a tuned grid?",
            "ours",
            "papers.defaults.defaults",
            frozenset({"data_root", "epochs", "limit", "device", "seeds", "variants"}),
            smallest={"variants": ("digits",)},
            constants={"BATCHES": (128,), "RATES": (0.001,), "SIDES": (), "PLAIN": {}},
        ),
        "backbone": Experiment(
            "Is a small network trained on photographs a better start for other photographs than none?",
            "ours",
            "papers.defaults.backbone",
            frozenset({"data", "data_root", "epochs", "limit", "device", "seeds"}),
            data="cifar10",
            constants={"DRAWN": ("digits",)},
        ),
    },
)
