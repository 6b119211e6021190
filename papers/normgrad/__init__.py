"""NormGrad and the gradient family of saliency (arXiv:2004.02866)."""

from papers.common.paper import Experiment, Paper

SMALL = {"TRAIN": 32, "STEPS": {"CNN": 2}, "BATCH": 8, "CHECKED": 3, "PASSES": 2, "EVERY": ("normgrad", "rollout")}

PAPER = Paper(
    "There and back again: revisiting backpropagation saliency methods",
    "arXiv:2004.02866",
    experiments={
        "saliency_methods": Experiment(
            "Which methods of saliency find the object, depend on its class, and pass checks, at which depth?",
            "arXiv:2004.02866, sections 4 and 5; images and networks are ours",
            uses=frozenset({"images", "variants"}),
            smallest={"images": 3},
            constants=SMALL,
        ),
        "normgrad_cost": Experiment(
            "How long does NormGrad of all layers take, in passes of one gradient?",
            "arXiv:2004.02866, section 3.3",
            constants={"ROUNDS": 1, "BATCH": 1},
        ),
    },
)
