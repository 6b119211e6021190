"""MSPCaps: multi-scale patchify capsules with cross-agreement routing (arXiv:2508.16922)."""

from papers.common.paper import TRAINING, Experiment, Paper
from papers.mspcaps.studies import STUDIES

PAPER = Paper(
    "MSPCaps: multi-scale patchify capsules with cross-agreement routing",
    "arXiv:2508.16922",
    experiments={
        "capsule_head": Experiment(
            "What does a capsule head change, compared with a linear head on the same maps of a backbone?",
            "arXiv:2508.16922; capsules on other backbones are ours",
            uses=TRAINING,
            data="cifar10",
        ),
    },
    studies=STUDIES,
)
