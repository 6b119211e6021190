"""Pointer networks (arXiv:1506.03134)."""

from papers.common.paper import TRAINING, Experiment, Paper

PAPER = Paper(
    "Pointer networks",
    "arXiv:1506.03134",
    experiments={
        "pointers": Experiment(
            "What does pointing add to an LSTM, and how far do tours grow beyond the lengths that were trained?",
            "arXiv:1506.03134, tables 1 and 2; networks are small and points are ours",
            uses=(TRAINING - {"data", "data_root"}) | {"variants"},
            smallest={"data": None, "epochs": 1, "limit": 64, "batch_size": 32, "images": 4},
            constants={
                "DIMS": {"hull": 8, "tour": 8, "triangles": 8},
                "MOST_EXACT": 6,
                "TOUR_POINTS": (5, 6),
                "BEAM": 2,
                "FARTHER": (12,),
                "TOURS_FARTHER": (7,),
            },
        ),
    },
    suites={"pointers": "papers.pointer_network.suite:POINTERS"},
)
