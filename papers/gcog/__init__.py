"""gCOG, generalisation of answers to questions about a scene (arXiv:2401.15030)."""

from papers.common.paper import TRAINING, Experiment, Paper

PAPER = Paper(
    "gCOG: generalisation in multimodal reasoning",
    "arXiv:2401.15030",
    experiments={
        "question_splits": Experiment(
            "Which networks answer questions with more distractors, new pairs of operators and deeper programs?",
            "arXiv:2401.15030, figures 3 to 5; networks and sets are small",
            uses=(TRAINING - {"data", "data_root"}) | {"seeds", "variants"},
            smallest={
                "data": None,
                "epochs": 1,
                "limit": 32,
                "images": 40,
                "batch_size": 16,
                "variants": ("distractor",),
            },
            constants={"PROGRAMS": 8, "SIZES": {"dim": 8, "hidden": 8, "dropout": 0.0}},
        ),
        "question_facts": Experiment(
            "How are answers distributed, and what do both sides of the splits share?",
            "arXiv:2401.15030, section 2; the figures are the published generator's",
            constants={"QUESTIONS": 400},
        ),
    },
)
