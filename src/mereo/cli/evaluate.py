"""`mereo evaluate`."""

import json
import sys
from dataclasses import fields
from functools import partial
from typing import Any

from mereo.cli.options import EvaluateOptions
from mereo.cli.parse import parse
from mereo.cli.show import new_folder, print_table
from mereo.runtime.printing import say


def run(words: list[str], command: str) -> None:
    """Evaluate networks, write the report, print a summary."""
    options = parse(EvaluateOptions, words, command)
    from mereo import api
    from mereo.api.evaluation import check
    from mereo.api.networks import newest_run

    given = {each.name: getattr(options, each.name) for each in fields(options) if each.name not in ("weights", "json")}
    check(given)
    sources = options.weights or (newest_run(),)
    if not options.weights:
        say(f"using {sources[0]}", file=sys.stderr)
    given |= {"out": options.out or new_folder("evaluation"), "show": None if options.json else _show}
    evaluation = api.evaluate(sources, **given)
    document, folder = evaluation.document, evaluation.folder
    if options.json:
        say(json.dumps(document, indent=2))
        say(f"report: {folder / 'report.md'}", file=sys.stderr)
        return
    for name, model in document["models"].items():
        for what, why in model.get("not_measured", {}).items():
            say(f"\nnot measured, {name}: {what}, because {why}")
    say(f"\nreport    {folder / 'report.md'}\nfigures   {folder / 'report.json'}")
    if evaluation.pictures:
        say(f"pictures  {folder}/")


def _show(part: str, document: dict[str, Any]) -> None:
    """Print one part of an evaluation."""
    show = {"accuracy": _show_accuracy, "couplings": _show_couplings, "equivariance": _show_equivariance}
    show.get(part, partial(_show_curves, part))(document)
    sys.stdout.flush()


def _show_accuracy(document: dict[str, Any]) -> None:
    from mereo.measure.conclusions import chance_words, error_words
    from mereo.measure.report import by_output, overview, title, views_words

    models = document["models"]
    print_table(*overview(models), title=title(document))
    columns, rows = by_output(models)
    if rows:
        say()
        print_table(columns, rows)
    for words in (views_words, chance_words, error_words):
        for name, model in models.items():
            if (line := words(name, model)) is not None:
                say(line)
    for name, model in models.items():
        for line in model.get("remarks", ()):
            say(f"{name}: {line}")


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
