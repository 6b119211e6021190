"""CLEAR: linearised diffusion transformers (arXiv:2412.16112)."""

from papers.common.paper import TRAINING, Experiment, Paper

PAPER = Paper(
    "CLEAR: linearised diffusion transformers",
    "arXiv:2412.16112",
    experiments={
        "clear": Experiment(
            "Does a diffusion transformer keep its output when its image tokens attend to circles?",
            "arXiv:2412.16112, section 3",
            uses=TRAINING,
            data="digits",
            constants={"SIZE": 8, "VARIANTS": {"2": {"radius": 2}}},
        ),
    },
    suites={"clear": "papers.clear.suite:CLEAR"},
)
