"""Conditional cross-attention network (arXiv:2307.13254)."""

from papers.common.paper import Experiment, Paper

PAPER = Paper(
    "Conditional cross-attention network: several embeddings in one network",
    "arXiv:2307.13254",
    experiments={
        "attribute_spaces": Experiment(
            "Does one network give each attribute an embedding of its own, without what it knows of the others?",
            "arXiv:2307.13254, of which only the abstract was available; network and images are ours",
            uses=frozenset({"limit", "batch_size", "seeds", "images", "variants"}),
            smallest={"variants": ("condition", "masked vector")},
            constants={"STEPS": 2},
        ),
    },
)
