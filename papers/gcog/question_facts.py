"""What the splits of gCOG are made of: rates of answers, chance, shared kinds of questions, and selections of several.

No network is trained.
"""

from typing import Any

import torch

from mereo.data.questions.programs import Split
from mereo.data.questions.scenes import generate
from mereo.data.questions.world import evaluate
from mereo.tasks.questions import ASKED, chance
from papers.common.settings import Settings

QUESTIONS = 8000
TRUTHS = ("exist", "sumeven", "sumodd", "producteven", "productodd")
TESTS: dict[str, dict[str, Any]] = {
    "10 distractors": {"split": "distractor", "distractors": 10},
    "20 distractors": {"split": "distractor", "distractors": 20},
    "30 distractors": {"split": "distractor", "distractors": 30},
    "40 distractors": {"split": "distractor", "distractors": 40},
    "systematic": {"split": "systematic"},
    "systematic, strict": {"split": "systematic", "strict": True},
    "systematic, depth 3": {"split": "systematic_trees"},
    "productive, depth 5": {"split": "productive", "depth": 5},
    "productive, depth 7": {"split": "productive", "depth": 7},
}
"""The test sets."""


def run(settings: Settings) -> dict[str, Any]:
    """Tables of rates, of chance, of kinds of questions and of selections that match several objects."""
    tests = {name: generate(n=QUESTIONS, seed=0, part="test", **options) for name, options in TESTS.items()}
    tables = {
        "Share of true answers, single operators": [_rates("program", True), _rates("scene", False)],
        "Accuracy of each operator's most frequent answer": [_chances(name, made) for name, made in tests.items()],
        "Kinds of questions on both sides of the systematic split": [_shared(False), _shared(True)],
        "Questions with a selection that matches several objects": [
            _several(name, well_posed) for name in TESTS if "depth" in name for well_posed in (False, True)
        ],
        "Objects in a scene": [
            {"questions": name, "mean": (made["stim"][:, :100, 0] > 0).sum(1).double().mean().item()}
            for name, made in tests.items()
            if "distractors" in name
        ],
    }
    return {"tables": tables, "notes": ["the operator is the one that answers, at the end of the path that is taken."]}


def _rates(places: str, location: bool) -> dict[str, Any]:
    made = generate("distractor", QUESTIONS, 0, location=location)
    roots, true = made["meta"]["root"], (made["target"] == 0).tolist()
    rates = {name: [hit for hit, root in zip(true, roots, strict=True) if root == name] for name in TRUTHS}
    return {"places drawn with the": places, **{name: sum(hits) / max(len(hits), 1) for name, hits in rates.items()}}


def _chances(name: str, made: dict[str, Any]) -> dict[str, Any]:
    found = chance(evaluate(made["rule"], made["stim"]))
    return {"questions": name, "all": found["accuracy"], **{each: found[f"accuracy_{each}"] for each in ASKED}}


def _shared(strict: bool) -> dict[str, Any]:
    split = Split("systematic", strict=strict)
    size = 800 * len(split.kinds()[0])
    kinds = []
    for part in ("train", "test"):
        programs = split.draw(part, size, torch.Generator().manual_seed(0))
        rows = torch.stack((programs.ops[:, 0], programs.colours[:, 0, 0], programs.shapes[:, 0, 0]), -1)
        kinds.append(set(map(tuple, rows.tolist())))
    return {
        "split": "strict" if strict else "as published",
        "tested": len(kinds[1]),
        "of these trained": len(kinds[0] & kinds[1]),
    }


def _several(name: str, well_posed: bool) -> dict[str, Any]:
    made = generate(n=QUESTIONS, seed=0, part="test", well_posed=well_posed, **TESTS[name])
    return {
        "questions": name, "well-posed": str(well_posed).lower(),
        "share": sum(count > 1 for count in made["meta"]["matches"]) / QUESTIONS,
    }  # fmt: skip
