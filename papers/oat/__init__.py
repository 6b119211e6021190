"""OAT, the object-level attention transformer for scanpaths (arXiv:2407.13335)."""

from papers.common.paper import Experiment, Paper

PAPER = Paper(
    "OAT: object-level attention transformer for gaze scanpaths",
    "arXiv:2407.13335",
    experiments={
        "oat": Experiment(
            "How close do paths of OAT come to those of a rule, with and without the target's place, on new layouts?",
            "arXiv:2407.13335; gaze is made by a rule of ours, and networks are small",
            "papers.oat.scanpaths",
            frozenset({"seeds", "batch_size", "limit", "images", "device", "variants"}),
            smallest={"seeds": 1, "batch_size": 4, "limit": 12, "images": 6},
            constants={"STEPS": 2, "SAMPLES": 2, "SHOWN": 2},
        ),
    },
    suites={"oat": "papers.oat.suite:OAT"},
)
