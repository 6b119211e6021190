"""AR-CapsNet: attention routing between capsules (arXiv:1907.01750)."""

from papers.common.paper import TRAINING, Experiment, Paper

PAPER = Paper(
    "AR-CapsNet: attention routing between capsules",
    "arXiv:1907.01750",
    experiments={
        "capsule_directions": Experiment(
            "Does an affine change of the image move the capsule of its class along one direction?",
            "arXiv:1907.01750, section 4; the measure and the controls are ours",
            uses=TRAINING | {"seeds"},
            data="digits",
        ),
    },
)
