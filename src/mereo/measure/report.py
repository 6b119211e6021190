"""The report of an evaluation in words and tables, as Markdown."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from mereo.escape import for_markdown
from mereo.measure.conclusions import chance_words, coupling_rows, coupling_verdict, error_words
from mereo.measure.corruptions import CORRUPTIONS
from mereo.measure.equivariance import TRANSFORMS
from mereo.measure.objects import WORDS, overview_objects
from mereo.runtime.text import percent
from mereo.tasks.classification import UNEVEN

SOFTMAX = """\
Confidences are the softmax of the scores, which are logits."""
CALIBRATION = """\
{whose} not probabilities: each lies between 0 and 1 on its own. They are turned into confidences
in two ways, and calibration is measured for each: *normalised* divides each score by the sum of all, *softmax*
takes the exponentials first. As these scores are at most 1, a softmax of them can never be confident: with {classes}
classes at most {most:.0%}."""
CALIBRATED = """\
*Calibrated* is the softmax of the scores divided by the temperature that was fitted on the validation images."""
METRICS = """\
ECE is the mean gap between confidence and accuracy over {bins} bins (arXiv:1706.04599), Brier the
mean squared distance from the truth (0 to 2)."""
EQUIVARIANCE = """\
How far the pose of the capsule of the true class, after the image was changed, is explained by a linear rule fitted on
other images of its class (*linear*), by the pose before (*unmoved*), and by a linear rule when the pairs are shuffled
(*shuffled*, the control); 1 is all of the variance. High *linear* over low *unmoved* is equivariance, both high is
invariance, *linear* near *shuffled* is neither. A linear rule by itself proves little: an untrained network that is
nearly linear follows one too. *Length* is after over before, *angle* between the two poses."""
COUPLINGS = """\
Do the couplings matter? The same images with every coupling of the network replaced: *uniform*, its mean along the axis
that is normalised, and *shuffled*, given to other senders at random (arXiv:1908.04626, arXiv:1902.10186). A mask keeps
its zeros. The network was trained with its own couplings. A difference is clear beyond two standard errors of the
number of images whose result changes."""
UNCHECKED = """\
Whether masked gradients make these accuracies too high was not checked; `--masking-images 64` does."""
VIEWS = """\
The scores of an image are the mean over views of it. Corruptions change the image before views are made of it, and a
temperature in the weights was fitted without views."""
ATTACKS = """\
On {images:,} of the {count:,} images. Attacks change every pixel by at most epsilon within [0, 1], before
normalisation, and raise the loss `{loss}` of the scores; {restarts}. Images misclassified before the attack count as
errors."""


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(for_markdown(cell) for cell in line) + " |" for line in lines)


def _number(value: float | None, digits: int = 3) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _measured(figures: dict[str, float], metric: str, intervals: dict[str, list[float]]) -> str:
    """A metric with its interval, where there is one."""
    if metric not in figures:
        return "-"
    if metric not in intervals:
        return f"{figures[metric]:.6g}"
    low, high = intervals[metric]
    return f"{figures[metric]:.4g} ({low:.4g} to {high:.4g})"


def by_output(models: dict[str, dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """One row for each label or number of a task, with its metrics; no rows where a task has none for each."""
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for name, model in models.items():
        for metric in model.get("metrics", {}):
            of, space, output = metric.partition(" ")
            if space:
                shown = _measured(model["metrics"], metric, model.get("intervals", {}))
                rows.setdefault((name, output), {})[of] = shown
    metrics = list(dict.fromkeys(metric for row in rows.values() for metric in row))
    return ["network", "output", *metrics], [[*key, *(row.get(m, "-") for m in metrics)] for key, row in rows.items()]


def suspicious(model: dict[str, Any]) -> list[str]:
    """Names of the checks that point to masked gradients."""
    return [check["name"] for check in model.get("masking", {}).get("checks", ()) if check["suspicious"]]


def overview(models: dict[str, dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """One row a network: accuracy, calibration or objects predicted, and the worst class; or the task's metrics."""
    if "metrics" in (first := next(iter(models.values()))):
        others = {name: figures for model in models.values() for name, figures in model.get("references", {}).items()}
        shown = {name: model["metrics"] for name, model in models.items()} | others
        ends = {name: model.get("intervals", {}) for name, model in models.items()}
        whole = [metric for metric in first["metrics"] if " " not in metric]
        return ["network", *whole], [
            [name, *[_measured(figures, metric, ends.get(name, {})) for metric in whole]]
            for name, figures in shown.items()
        ]
    if "objects" in next(iter(models.values())):
        return overview_objects(models)
    # What all networks have alike, or lack, is left out.
    uneven = any(abs(m["balanced_accuracy"] - m["accuracy"]) > UNEVEN for m in models.values())
    fitted = any("calibrated" in m for m in models.values())
    columns = [
        "network", "accuracy", "95 % interval", *["balanced accuracy"] * uneven, *["ECE calibrated"] * fitted,
        "ECE normalised", "ECE softmax", "Brier normalised", "Brier softmax", "worst class",
    ]  # fmt: skip
    rows = []
    for name, m in models.items():
        tested = [c for c in m["per_class"] if c["support"]]
        worst = min(tested, key=lambda c: c["recall"], default=None)
        softmax = m["calibration"]["softmax"]
        normalised = m["calibration"].get("normalised")
        calibrated = percent(m["calibrated"]["ece"]) if "calibrated" in m else "-"
        rows.append([
            name, percent(m["accuracy"]), f"{percent(m['accuracy_low'])} to {percent(m['accuracy_high'])}",
            *[percent(m["balanced_accuracy"])] * uneven, *[calibrated] * fitted,
            "-" if normalised is None else percent(normalised["ece"]), percent(softmax["ece"]),
            "-" if normalised is None else _number(normalised["brier"]), _number(softmax["brier"]),
            "-" if worst is None else f"{worst['class']} ({percent(worst['recall'])})",
        ])  # fmt: skip
    return columns, rows


def title(document: dict[str, Any]) -> str:
    """The data, how many images were evaluated, and over how many views of each."""
    first = next(iter(document["models"].values()))
    over = f", mean over {first['views']['count']} views" if "views" in first else ""
    return f"{document['data']}, {first['count']:,} {document['split']} {document['unit']}{over}"


def views_words(name: str, model: dict[str, Any]) -> str | None:
    """A line on the views of a network; None if it was evaluated without views."""
    views = model.get("views")
    return None if views is None else f"{name}: mean over {views['count']} views: {views['changes']}"


def attacked(models: dict[str, dict[str, Any]]) -> int:
    """The number of attacked images."""
    first = next(iter(models.values()))
    return int(next(iter(first["attacks"].values()))[0]["images"])


def curve_rows(models: dict[str, dict[str, Any]], kind: str, name: str) -> tuple[list[str], list[list[str]]]:
    """Accuracy by amount of one corruption or attack, one row per network."""
    amounts = [p["amount"] for p in next(iter(models.values()))[kind][name]]
    columns = [name, *[f"{a:g}" for a in amounts]]
    return columns, [[model, *[f"{100 * p['accuracy']:.1f} %" for p in m[kind][name]]] for model, m in models.items()]


def markdown(document: dict[str, Any]) -> str:
    """The whole report.

    Args:
        document: the result of `evaluate_models`, with "split".
    """
    models, plan = document["models"], document["plan"]
    first = next(iter(models.values()))
    parts = [
        f"# {for_markdown(title(document))}",
        table(*overview(models)),
        *([table(*by_output(models))] if by_output(models)[1] else []),
    ]
    parts += [VIEWS] if "views" in first else []
    for words in (views_words, chance_words, error_words):
        parts += [for_markdown(line) for name, m in models.items() if (line := words(name, m))]
    if "objects" in first:
        parts.append(WORDS.format(objects=first["objects"]))
    elif "calibration" in first:
        parts.append(_calibration(models, len(document["class_names"])))
    if any("couplings" in model for model in models.values()):
        parts += ["## Couplings replaced", COUPLINGS, table(*coupling_rows(models))]
        parts += map(for_markdown, coupling_verdict(models))
    if "corruptions" in first:
        parts += ["## Accuracy under corruption", "![curves](corruptions.png)"]
        parts += [
            f"{name.capitalize()}, in {corruption.unit}:\n\n{table(*curve_rows(models, 'corruptions', name))}"
            for name, corruption in CORRUPTIONS.items()
        ]
    if "attacks" in first:
        tries = f"{plan['restarts']} tries each" if plan["restarts"] > 1 else "one try each"
        parts += [
            "## Accuracy under attack, by epsilon",
            ATTACKS.format(images=attacked(models), count=first["count"], loss=plan["loss"], restarts=tries),
        ]
        parts += ["![curves](attacks.png)", *[table(*curve_rows(models, "attacks", name)) for name in plan["attacks"]]]
        parts += [] if plan["masking_images"] else [UNCHECKED]
    for name, model in models.items():
        parts += _model(name, model)
    return "\n\n".join(parts) + "\n"


def _calibration(models: dict[str, dict[str, Any]], classes: int) -> str:
    """How confidences are computed from the scores of the networks, and the definitions of the calibration metrics."""
    kinds, e = {model["scores"]["kind"] for model in models.values()}, 2.718281828
    whose = {"lengths": "Lengths of class capsules are", "activations": "Activations of class capsules are"}
    bounded = [words for kind, words in whose.items() if kind in kinds]
    parts = [CALIBRATION.format(whose=words, classes=classes, most=e / (e + classes - 1)) for words in bounded[:1]]
    if "logits" in kinds:
        logits = ", ".join(for_markdown(n) for n, m in models.items() if m["scores"]["kind"] == "logits")
        parts.append(f"Of {logits}: {SOFTMAX}" if bounded else SOFTMAX)
    bins = len(next(iter(models.values()))["calibration"]["softmax"]["bins"]["images"])
    words = [*parts, METRICS.format(bins=bins)]
    return " ".join([*words, CALIBRATED] if any("calibrated" in m for m in models.values()) else words)


def _model(name: str, model: dict[str, Any]) -> list[str]:
    folder = quote(name)
    parts = [
        f"## {for_markdown(name)}",
        f"{for_markdown(model['weights'])}, {model['parameters']:,} parameters.",
    ]
    if "per_class" in model:
        headings = ("class", "images", "predicted", "recall", "precision", "F1")
        ratios = ("recall", "precision", "f1")
        parts.append(
            table(
                headings,
                [
                    (c["class"], c["support"], c["predicted"], *[percent(c[ratio]) for ratio in ratios])
                    for c in model["per_class"]
                ],
            )
        )
    if "scores" in model:
        parts += _scores(model["scores"], folder)
    parts += [f"{line[0].upper()}{line[1:]}." for line in model.get("remarks", ())]
    parts += [f"Not measured: {part}, because {why}." for part, why in model.get("not_measured", {}).items()]
    if "masking" in model:
        parts += _masking(model)
    if "attacked_images" in model:
        parts.append(f"![attacked images]({folder}/attacked.png)")
    if "equivariance" in model:
        parts += _equivariance(model, folder)
    return parts


def _equivariance(model: dict[str, Any], folder: str) -> list[str]:
    columns = ("linear", "unmoved", "shuffled", "length", "angle")
    fields = ("linear", "unmoved", "permuted", "length")
    alone = ["Poses are computed from the image itself, without views."] if "views" in model else []
    return [
        "### Equivariance of the class capsules",
        EQUIVARIANCE,
        *alone,
        f"![poses]({folder}/equivariance.png)",
        *[
            table(
                (f"{kind}, {TRANSFORMS[kind][2]}", *columns),
                [(f"{m['amount']:g}", *[_number(m[f], 2) for f in fields], f"{m['angle']:.0f}°") for m in moved],
            )
            + (f"\n\nNo rule: {model['no_fit'][kind]}." if kind in model["no_fit"] else "")
            for kind, moved in model["equivariance"].items()
        ],
    ]


def _scores(scores: dict[str, Any], folder: str) -> list[str]:
    noun = {
        "lengths": "length of the longest capsule", "activations": "highest activation", "logits": "highest softmax",
    }[scores["kind"]]  # fmt: skip
    return [
        f"![confusion matrix]({folder}/confusion.png)",
        f"![reliability]({folder}/calibration.png)",
        f"![scores]({folder}/scores.png)",
        f"The {noun} is {_number(scores['highest_correct'])} for correct predictions and"
        f" {_number(scores['highest_wrong'])} for wrong ones, and leads the next by"
        f" {_number(scores['lead_correct'])} and {_number(scores['lead_wrong'])}. Of a correct and a wrong prediction"
        f" the correct one has the higher value with probability {_number(scores['auroc_highest'])}, the larger lead"
        f" with {_number(scores['auroc_lead'])}.",
    ]


def _masking(model: dict[str, Any]) -> list[str]:
    masking, flagged = model["masking"], suspicious(model)
    verdict = (
        f"{len(flagged)} of {len(masking['checks'])} checks point to masked gradients ({', '.join(flagged)}): the"
        " accuracies under gradient attacks may be too high."
        if flagged
        else f"None of {len(masking['checks'])} checks points to masked gradients."
    )
    intro = (
        f"On {masking['images']} correctly classified images, at epsilon {masking['epsilon']:g}, PGD is compared with"
        " attacks that can only be stronger where its gradients mislead (arXiv:1802.00420, arXiv:1902.06705)."
    )
    rows = [(c["name"], "**suspicious**" if c["suspicious"] else "as expected", c["words"]) for c in masking["checks"]]
    return ["### Gradient masking", f"{intro} {verdict}", table(("check", "", "result"), rows)]
