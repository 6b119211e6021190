"""Gates of feature maps: ELA, ULSAM, GAAM and polarized self-attention."""

from papers.common.paper import TRAINING, Experiment, Paper

PAPER = Paper(
    "Gates of feature maps: ELA, ULSAM, GAAM and polarized self-attention",
    "arXiv:2403.01123, arXiv:2006.15102, arXiv:2401.11143, arXiv:2107.00782",
    experiments={
        "gate_counts": Experiment(
            "How many parameters and multiply-adds does a gate add to a network, or save in the place of a block?",
            "arXiv:2006.15102, tables 1 to 4; arXiv:2403.01123, section 3; arXiv:2107.00782; arXiv:2401.11143",
        ),
        "layer_stack": Experiment(
            "What does Gaussian attention add to a classifier of all layers of a frozen network?",
            "arXiv:2401.11143, section 4 (CIFAR-100 on BEiT); the network and the images are ours",
            uses=TRAINING | {"seeds"},
            data="cifar10",
            constants={"DEPTH": 6, "KEPT": 2, "HEAD_EPOCHS": 1},
        ),
    },
    suites={"gates": "papers.gates.suite:GATES"},
)
