"""Efficient content-based sparse attention with routing transformers (arXiv:2003.05997)."""

from papers.common.paper import TRAINING, Experiment, Paper

PAPER = Paper(
    "Efficient content-based sparse attention with routing transformers",
    "arXiv:2003.05997",
    experiments={
        "far_recall": Experiment(
            "Which sparse attention finds a token far away by its content?",
            "arXiv:2003.05997, section 1; the task is ours",
            uses=frozenset({"epochs", "batch_size", "seeds", "device", "variants"}),
            smallest={"batch_size": 4, "variants": ("local and clusters", "combiner, fixed")},
            constants={"PER_EPOCH": 2},
        ),
        "sparse_text": Experiment(
            "What does sparse attention lose on text, and what do clusters or summaries of regions win back?",
            "arXiv:2003.05997 and arXiv:2107.05768, tables of perplexities",
            uses=TRAINING | {"variants", "seeds"},
            data="pystdlib",
            smallest={
                "data": "pystdlib",
                "limit": 8,
                "images": 2,
                "batch_size": 4,
                "variants": ("local and clusters", "combiner, fixed"),
            },
        ),
    },
    suites={"clustered": "papers.routing_transformer.suite:CLUSTERED"},
)
