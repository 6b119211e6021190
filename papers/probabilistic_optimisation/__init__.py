"""Probabilistic optimisation engineering in generative AI (arXiv:2410.18441)."""

from papers.common.paper import TRAINING, Experiment, Paper

PAPER = Paper(
    "Probabilistic optimisation engineering in generative AI",
    "arXiv:2410.18441",
    experiments={
        "probabilistic_optimisation": Experiment(
            "What do sub-word merges, biases by distance, caches of few bits, dropped blocks and a search gain?",
            "arXiv:2410.18441, which has no figures; text, networks and sizes are ours",
            "papers.probabilistic_optimisation.five_methods",
            (TRAINING - {"device", "epochs"}) | {"seeds", "variants"},
            data="pystdlib",
            smallest={"data": "pystdlib", "limit": 16, "images": 2, "batch_size": 8},
            constants={
                "CONTEXTS": (16, 32),
                "CACHE_CONTEXT": 64,
                "CACHES": {"exact": None, "16, 8, 2": (16, 8, 2)},
                "BLOCK": 16,
                "GROUP": 16,
                "ROUNDS": 4,
                "WORDS": 20,
                "VOCABULARY": 30,
                "SPACE": {"window": (1, 2), "dim": (2, 4), "negatives": (1,), "rate": (0.01, 0.1)},
                "CORPUS": 500,
                "SEARCHES": 2,
            },
        ),
    },
)
