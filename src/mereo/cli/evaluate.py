"""`mereo evaluate`."""

import json
import math
import sys
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mereo.cli.options import EvaluateOptions
from mereo.cli.parse import parse
from mereo.cli.show import print_table
from mereo.cli.weights import newest_run
from mereo.errors import UsageError, check_not_negative, check_positive, check_seed
from mereo.runtime.printing import say

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mereo.measure.trained_models import TrainedModel
    from mereo.runtime.progress import Reporter

ATTACK_OPTIONS = (
    "epsilon", "attack_loss", "steps", "queries", "restarts", "attack_limit", "masking_images",
)  # fmt: skip


def check(options: EvaluateOptions) -> None:
    """UsageError for the first invalid option."""
    check_positive(
        batch_size=options.batch_size, steps=options.steps, queries=options.queries, restarts=options.restarts
    )
    for name in ("limit", "attack_limit"):
        if getattr(options, name) is not None:
            check_positive(**{name: getattr(options, name)})
    check_not_negative(masking_images=options.masking_images)
    check_seed(options.seed)
    for epsilon in options.epsilon:
        if not (math.isfinite(epsilon) and 0 <= epsilon <= 1):
            raise UsageError(f"epsilon is {epsilon}; it must be between 0 and 1, the range of a pixel.")
    for field in fields(EvaluateOptions):
        value = getattr(options, field.name)
        if field.name in ATTACK_OPTIONS and not options.attack and value != field.default:
            shown = " ".join(map(str, value)) if isinstance(value, tuple) else value
            raise UsageError(f"{field.name} is {shown}, which only applies to attacks; give one with --attack.")
    if options.out is not None and options.out.is_file():
        raise UsageError(f"out is {options.out}, which is a file; it must be a folder.")


def new_folder(wanted: Path | None) -> Path:
    """The folder to write: the one given, else evaluation, evaluation-2, ..."""
    if wanted is not None:
        return wanted
    number = 1
    while (folder := Path("evaluation" if number == 1 else f"evaluation-{number}")).exists():
        number += 1
    return folder


def run(words: list[str], command: str) -> None:
    """Evaluate networks, write the report, print a summary."""
    options = parse(EvaluateOptions, words, command)
    check(options)
    sources = options.weights or (newest_run(),)
    if not options.weights:
        say(f"using {sources[0]}", file=sys.stderr)

    from mereo.measure.trained_models import load_trained_models
    from mereo.runtime.progress import Reporter

    trained = load_trained_models(
        sources, data=options.data, data_root=options.data_root, split=options.split, limit=options.limit,
        device=options.device, seed=options.seed,
    )  # fmt: skip
    if options.json:
        document, folder = measured(options, trained, sources, Reporter())
        say(json.dumps(document, indent=2))
        say(f"report: {folder / 'report.md'}", file=sys.stderr)
        return
    document, folder = measured(options, trained, sources, Reporter(), _show)
    for name, model in document["models"].items():
        for what, why in model.get("not_measured", {}).items():
            say(f"\nnot measured, {name}: {what}, because {why}")
    say(f"\nreport    {folder / 'report.md'}\nfigures   {folder / 'report.json'}")
    if any(folder.rglob("*.png")):
        say(f"pictures  {folder}/")


def measured(
    options: EvaluateOptions,
    trained: "Sequence[TrainedModel]",
    sources: "Sequence[Path]",
    reporter: "Reporter",
    show: "Callable[[str, dict[str, Any]], None]" = lambda part, document: None,
) -> tuple[dict[str, Any], Path]:
    """The figures of an evaluation, and the folder into which they and the report were written.

    Args:
        options: what to measure.
        trained: the networks with their images.
        sources: files that must not be overwritten.
        reporter: shows the progress.
        show: called with the name of each part that is finished, and all figures so far.
    """
    from mereo.files import check_outputs, write_atomically
    from mereo.measure.evaluation import evaluate_models
    from mereo.measure.plan import Plan
    from mereo.measure.report import markdown

    plan = Plan(
        corruptions=options.corruptions, equivariance=options.equivariance,
        attacks=tuple(dict.fromkeys(options.attack)), epsilons=tuple(sorted({0.0, *options.epsilon})),
        loss=options.attack_loss, steps=options.steps, queries=options.queries, restarts=options.restarts,
        attack_limit=options.attack_limit, masking_images=options.masking_images, batch_size=options.batch_size,
        seed=options.seed, couplings=options.couplings, tta=options.tta, five_crop=options.five_crop,
    )  # fmt: skip
    folder = new_folder(options.out)
    report = folder / "report.json"
    # Next to our own report.json the page is ours too.
    check_outputs("out", [report, *([] if report.exists() else [folder / "report.md"])], sources)

    def keep(document: dict[str, Any]) -> dict[str, Any]:
        document = {"split": options.split, **document}
        write_atomically(folder / "report.json", json.dumps(document, indent=2) + "\n")
        write_atomically(folder / "report.md", markdown(document))
        return document

    def finished(part: str, document: dict[str, Any]) -> None:
        """Keep what is known so far: what is asked for beyond accuracy may take long."""
        show(part, keep(document))

    return keep(evaluate_models(trained, plan, folder, reporter, finished)), folder


def _show(part: str, document: dict[str, Any]) -> None:
    """Print one part of an evaluation."""
    show = {"accuracy": _show_accuracy, "couplings": _show_couplings, "equivariance": _show_equivariance}
    show.get(part, partial(_show_curves, part))(document)
    sys.stdout.flush()


def _show_accuracy(document: dict[str, Any]) -> None:
    from mereo.measure.conclusions import chance_words, error_words
    from mereo.measure.report import overview, title, views_words

    models = document["models"]
    print_table(*overview(models), title=title(document))
    for words in (views_words, chance_words, error_words):
        for name, model in models.items():
            if (line := words(name, model)) is not None:
                say(line)


def _show_couplings(document: dict[str, Any]) -> None:
    from mereo.measure.conclusions import coupling_rows, coupling_verdict

    say()
    print_table(*coupling_rows(document["models"]))
    for line in coupling_verdict(document["models"]):
        say(line)


def _show_curves(part: str, document: dict[str, Any]) -> None:
    from mereo.measure.report import attacked, curve_rows, suspicious

    models = document["models"]
    first = next(iter(models.values()))
    if part == "attacks" and (some := attacked(models)) < first["count"]:
        say(f"\nattacked: {some:,} of the {first['count']:,} images (--attack-limit)")
    for name in first[part]:
        say()
        print_table(*curve_rows(models, part, name))
    if part != "attacks":
        return
    for name, model in models.items():
        if "masking" in model:
            flagged = suspicious(model)
            result = f"suspicious: {', '.join(flagged)}" if flagged else "nothing suspicious"
            say(f"\ngradient masking, {name}: {result} ({len(model['masking']['checks'])} checks)")
    if not document["plan"]["masking_images"]:
        say("\ngradient masking: not checked (--masking-images 64 checks whether these accuracies are too high)")


def _show_equivariance(document: dict[str, Any]) -> None:
    for name, model in document["models"].items():
        for kind, moved in model.get("equivariance", {}).items():
            known = [m for m in moved if m["amount"] > 0 and m["linear"] is not None]
            if known:
                m = known[(len(known) - 1) // 2]
                say(
                    f"\n{kind} by {m['amount']:g}, {name}: a linear rule explains {m['linear']:.2f} of the pose's"
                    f" variance, the unchanged pose {m['unmoved']:.2f}, shuffled pairs {m['permuted']:.2f};"
                    f" length x {m['length']:.2f}"
                )
            elif kind in model["no_fit"]:
                say(f"\n{kind}, {name}: {model['no_fit'][kind]}")
