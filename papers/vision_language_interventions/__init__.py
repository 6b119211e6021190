"""Interventions on vision-language decoders (arXiv:2503.03321, arXiv:2501.12206, arXiv:2412.13949)."""

from papers.common.paper import Experiment, Paper

_HOME = "papers.vision_language_interventions"
_USES = frozenset({"seeds", "images"})
_SMALLEST = {"seeds": 1, "images": 12}

PAPER = Paper(
    "Change what a vision-language model looks at",
    "arXiv:2503.03321",
    experiments={
        "tinyvl_figures": Experiment(
            "What does TinyVL name, and what does it answer?", "ours", f"{_HOME}.tinyvl_figures", _USES,
            smallest=_SMALLEST, constants={"STEPS": 2},
        ),
        "visual_redistribution": Experiment(
            "What does attention taken from sinks do to captions?", "arXiv:2503.03321; the planted sink is ours",
            f"{_HOME}.visual_redistribution", _USES - {"seeds"}, smallest=_SMALLEST,
            constants={"STEPS": 2, "RHOS": (0.5,), "TAKES": (0.6,)},
        ),
        "informed_tokens": Experiment(
            "What does raising the scores of informed image tokens do to captions?", "arXiv:2501.12206",
            f"{_HOME}.informed_tokens", _USES - {"seeds"}, smallest=_SMALLEST,
            constants={"STEPS": 2, "ALPHAS": (0.0, 1.0)},
        ),
        "vision_aware_heads": Experiment(
            "What does reinforcing heads that react to the image do to captions?", "arXiv:2412.13949, sections 3 and 4",
            f"{_HOME}.vision_aware_heads", _USES, smallest=_SMALLEST,
            constants={"STEPS": 2, "ALPHAS": (1.0, 2.0)},
        ),
        "intervention_costs": Experiment(
            "What does an intervention cost?", "ours", f"{_HOME}.intervention_costs",
            constants={"SIZES": {"dim": 16, "depth": 3, "num_heads": 4, "visual": 16, "context": 70}, "REPEATS": 1},
        ),
    },
)  # fmt: skip
