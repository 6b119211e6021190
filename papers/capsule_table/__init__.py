"""The table of capsule networks: each at its own best rate, three seeds, with intervals."""

from papers.common.paper import Experiment, Paper

PAPER = Paper(
    "Capsule networks at their own best rates",
    "ours",
    experiments={
        "capsule_table": Experiment(
            "Does routing help, where, and at what cost?",
            "ours; the networks come from seventeen papers",
            "papers.capsule_table.table",
            frozenset({"data", "data_root", "variants", "seeds", "epochs", "limit", "images", "device"}),
            data="mnist",
            smallest={
                "data": "digits", "variants": ("rs_capsnet",), "seeds": 2, "epochs": 1, "limit": 64, "images": 16,
            },
        ),
    },
    suites={"capsule_networks": "papers.capsule_table.suite:CAPSULE_NETWORKS"},
)  # fmt: skip
