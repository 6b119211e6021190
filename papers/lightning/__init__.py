"""Lightning attention and TransNormerLLM (arXiv:2405.17381)."""

from papers.common.paper import TRAINING, Experiment, Paper

PAPER = Paper(
    "Lightning attention and TransNormerLLM",
    "arXiv:2405.17381",
    experiments={
        "language_models": Experiment(
            "What does linear attention with decay cost in bits per byte, and what does it gain in speed?",
            "arXiv:2405.17381, tables 1 and 2 and figure 1; networks and text are ours",
            uses=TRAINING | {"seeds"},
            data="pystdlib",
            smallest={"data": "pystdlib", "limit": 32, "images": 2, "batch_size": 8},
            constants={"LENGTHS": (16, 32), "ROUNDS": 1},
        ),
    },
    suites={"lightning": "papers.lightning.suite:LIGHTNING"},
)
