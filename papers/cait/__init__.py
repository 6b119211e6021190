"""CaiT: going deeper with image transformers (arXiv:2103.17239)."""

from papers.common.paper import TRAINING, Experiment, Paper

PAPER = Paper(
    "CaiT: going deeper with image transformers",
    "arXiv:2103.17239",
    experiments={
        "layer_scale": Experiment(
            "Which residual branches make 24 and 36 layers trainable?",
            "arXiv:2103.17239, section 2 and table 1",
            uses=TRAINING | {"variants", "seeds"},
            data="cifar10",
            smallest={"variants": ("pre_norm", "layer_scale")},
            constants={"DEPTHS": (3, 4)},
        ),
        "class_attention": Experiment(
            "Where should the class token join: in the first layer, late, or by class attention?",
            "arXiv:2103.17239, section 3 and table 2",
            uses=TRAINING | {"seeds"},
            data="cifar10",
            constants={"DEPTH": 3},
        ),
    },
)
