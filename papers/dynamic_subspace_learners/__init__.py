"""Dynamic subspace learners (arXiv:2206.09068)."""

from papers.common.paper import Experiment, Paper

PAPER = Paper(
    "Attention-based dynamic subspace learners for medical image analysis",
    "arXiv:2206.09068",
    experiments={
        "subspace_learners": Experiment(
            "Do learners that are split when needed do as well as a number of learners that is chosen in advance?",
            "arXiv:2206.09068, sections III and IV; images and networks are ours",
            "papers.dynamic_subspace_learners.product_factors",
            frozenset({"epochs", "limit", "batch_size", "seeds", "variants", "device", "images"}),
            smallest={"variants": ("4 learners", "dynamic")},
        ),
    },
)
