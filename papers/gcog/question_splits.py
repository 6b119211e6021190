"""The six networks of gCOG on its splits: more distractors, new pairs of operators and objects, deeper programs.

Each network is trained on a split for 4,000 steps, on trees for 10,000, and tested on held-out questions of the
training kind and on the test questions of the split. Chance is the most frequent answer of each operator among the
tested questions.
"""

import statistics
from typing import Any

import torch

from mereo.data import load_splits
from mereo.data.questions.programs import Split
from mereo.data.questions.scenes import Questions as Set
from mereo.data.questions.world import RULE_ROWS
from mereo.inference.evaluate import evaluate
from mereo.tasks import Questions
from mereo.tasks.questions import ASKED, CHANCE
from mereo.training.config import TrainConfig
from mereo.training.trainer import train
from papers.common.pictures import draw_curves
from papers.common.settings import Settings

NETWORKS = {
    "RNN": "gcog_rnn",
    "GRU": "gcog_gru",
    "SSTfmr": "gcog_single_stream",
    "DSTfmr": "gcog_dual_stream",
    "CrossAttn": "gcog_rule_cross_attention",
    "Perceiver": "gcog_perceiver",
}
SPLITS = {
    "distractor": "split=distractor",
    "systematic": "split=systematic",
    "strict": "split=systematic,strict=true",
    "trees": "split=systematic_trees",
    "productive": "split=productive",
}
FAMILIES = ("distractor", "systematic", "strict", "trees", "productive")
SIZES: dict[str, Any] = {"dim": 64, "hidden": 128, "dropout": 0.0, "encoding": "one_hot"}
FEATURES, PROGRAMS, BATCH = 4, 4000, 64
"""Colours and shapes of the programs, training programs of each operator, questions of a step."""
STEPS = dict.fromkeys(FAMILIES, 4000) | {"trees": 10_000, "productive": 10_000}
WARMUP, RATE, BETA2 = 200, 1e-3, 0.98
"""Steps of the warm-up, peak rate, beta_2 of Adam."""
DISTRACTORS, DEPTHS = (10, 20, 30, 40), (5, 7)
TESTED, SEED = 1000, 100
PICTURE = "distractors.png"


def run(settings: Settings) -> dict[str, Any]:
    """Tables of accuracies by split and by operator, chance beside them, and a picture of the distractors."""
    rows, by_operator = list[list[dict[str, Any]]](), list[dict[str, Any]]()
    curves = dict[str, dict[int, float]]()
    for family in settings.chosen(FAMILIES):
        tested = _tested(settings, family)
        chances = {name: Questions().references(split)[CHANCE] for name, split in tested.items()}
        rows.append(_row(family, "chance", {name: [found] for name, found in chances.items()}, by_operator))
        for label in NETWORKS:
            figures: dict[str, list[dict[str, float]]] = {name: [] for name in tested}
            for seed in range(settings.seeds):
                model = _trained(settings, family, label, seed)
                for name, split in tested.items():
                    figures[name].append(evaluate(model, split, task=Questions()).values)
            rows.append(_row(family, label, figures, by_operator))
            if family == "distractor":
                curves[label] = {
                    int(name.split()[0]): statistics.mean(each["accuracy"] for each in found)
                    for name, found in figures.items()
                    if name[0].isdigit()
                }
    made: dict[str, Any] = {"tables": {}, "notes": [], "pictures": []}
    made["tables"]["Accuracy by split"] = [line for part in rows for line in part]
    made["tables"]["Accuracy by the operator that answers, and by depth"] = by_operator
    made["notes"].append("held out: new questions of the training kind; chance: each operator's most frequent answer.")
    if curves:
        legend = {"loc": "upper left", "bbox_to_anchor": (1, 1)}
        draw_curves(curves, "distractors", "accuracy", settings.folder / PICTURE, size=(6.2, 3.2), legend=legend)
        made["pictures"].append(PICTURE)
    return made


def _split(family: str, **changes: Any) -> Split:
    name = {"strict": "systematic", "trees": "systematic_trees"}.get(family, family)
    return Split(name, FEATURES, strict=family == "strict", **changes)


def _tested(settings: Settings, family: str) -> dict[str, Set]:
    """The tested questions by name: of the training kind, then of the split."""
    count = settings.images or TESTED
    wanted: dict[str, tuple[Split, str]] = {"held out": (_split(family), "train")}
    if family == "distractor":
        wanted |= {f"{n} distractors": (_split(family, distractors=n), "test") for n in DISTRACTORS}
    elif family == "productive":
        wanted |= {f"depth {depth}": (_split(family, depth=depth), "test") for depth in DEPTHS}
    else:
        wanted["new pairs"] = _split(family), "test"
    return {
        name: Set(
            split.draw(part, count, torch.Generator().manual_seed(SEED + place)), *split.range(part), SEED + place
        )
        for place, (name, (split, part)) in enumerate(wanted.items())
    }


def _trained(settings: Settings, family: str, label: str, seed: int) -> Any:
    """A network that was trained by the trainer, going on where it was stopped."""
    data = f"gcog:{SPLITS[family]},features={FEATURES},programs={PROGRAMS}"
    batch = settings.batch_size or BATCH
    size = len(load_splits(data, length=1, limit=settings.limit).train)
    epochs = settings.epochs or max(round(STEPS[family] / max(size // batch, 1)), 1)
    config = TrainConfig(
        model=NETWORKS[label], task="questions", data=data, model_args=SIZES, batch_size=batch, lr=RATE,
        clip_norm=1.0, weight_decay=0.01, adam_beta2=BETA2, warmup_steps=WARMUP, epochs=epochs, limit=settings.limit,
        device=settings.device or "cpu", seed=seed, tensorboard=False, output=str(settings.folder / "runs"),
        resume=True, name=f"{family}-{label}-{seed}",
    )  # fmt: skip
    settings.say(f"{family}: {label}, seed {seed}")
    return train(config, pictures=False).model


def _row(
    family: str, label: str, figures: dict[str, list[dict[str, float]]], by_operator: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """A line for each set of questions, and one by operator for each."""
    lines = []
    for name, found in figures.items():
        accuracy = [each["accuracy"] for each in found]
        lines.append(
            {
                "split": family, "questions": name, "network": label, "accuracy": statistics.mean(accuracy),
                "lowest": min(accuracy), "highest": max(accuracy),
            }
        )  # fmt: skip
        groups = (*ASKED, *(f"depth_{depth}" for depth in RULE_ROWS))
        each = {group: statistics.mean(one[f"accuracy_{group}"] for one in found) for group in groups}
        by_operator.append({"split": family, "questions": name, "network": label, **each})
    return lines
