"""`mereo predict`."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mereo.cli.answers import note_duplicates, print_summary
from mereo.cli.options import PredictOptions
from mereo.cli.parse import parse
from mereo.cli.show import print_table
from mereo.cli.weights import load_weights, warn_if_out_of_distribution
from mereo.errors import UsageError, check_positive
from mereo.runtime.collection import uncollected
from mereo.runtime.printing import say
from mereo.runtime.text import percent

if TYPE_CHECKING:
    from torch import Tensor

    from mereo.inference.labelled import FolderAnswers
    from mereo.models import VisionModel


def run(words: list[str], command: str) -> None:
    """Print what images show, or how texts go on."""
    options = parse(PredictOptions, words, command)
    check_positive(top=options.top, batch_size=options.batch_size, length=options.length)
    with uncollected():
        from mereo.inference.predict import find_files, find_images, task_of

    # Before weights are read, so that a missing file is named at once.
    given = find_files(options.images) if options.images or options.prompt is None else []
    if options.out is not None and options.out.is_file() and not _is_table_name(options.out):
        raise UsageError(f"out is {options.out}, which is a file; give a folder, or a file that ends in .csv.")
    model, source = load_weights(options.weights, options.device, ready=True, images=False)
    reads, gives = model.input_kind, model.output_kind
    paths = find_images(options.images) if options.images and reads == "images" else given
    if options.weights is None:
        say(f"using {source}", file=sys.stderr)
    if (reads, gives) == ("tokens", "tokens"):
        _continue(model, options, paths, source)
        return
    if reads != "images":
        raise UsageError(f"weights are {str(source)!r}, of a network that reads {reads}; give one of images or text.")
    warn_if_out_of_distribution(model, source, paths, chosen=options.weights is None)
    if options.prompt is not None:
        raise UsageError(f"prompt is {options.prompt!r}, and {source} classifies images; give images.")
    if not task_of(model).scores_classes:
        _check_classifier(options, source)
        _plain(model, options, paths, source)
        return
    _classify(model, options, paths, source)


def _check_classifier(options: PredictOptions, source: Path) -> None:
    """UsageError for options that need a classifier."""
    wanted = {"labels": options.labels == "folders", "tta": options.tta, "five_crop": options.five_crop}
    for name, given in wanted.items():
        if given:
            raise UsageError(f"{name} is set, and {source} is not a classifier of images; leave it out.")


def new_folder() -> Path:
    """The first of predictions, predictions-2, ... that does not exist."""
    number = 1
    while (folder := Path("predictions" if number == 1 else f"predictions-{number}")).exists():
        number += 1
    return folder


def _plain(model: "VisionModel", options: PredictOptions, paths: list[Path], source: Path) -> None:
    """Print the predictions of a task that is not classification; with --out, or where it has files, write them."""
    from mereo.files import reading
    from mereo.inference.predict import predict, task_of
    from mereo.inference.write_predictions import DOCUMENT, write_predictions
    from mereo.tasks import Task

    has_files = type(task_of(model)).write is not Task.write
    out = options.out or (new_folder() if has_files and not options.json else None)
    how: dict[str, Any] = {"top": options.top, "batch_size": options.batch_size, "strict": options.strict}
    files = list[Path]()
    if out is None:
        predictions = list(predict(model, paths, **how))
    elif _is_table_name(out):
        raise UsageError(f"out is {out}, and the task {task_of(model).name} writes several files; give a folder.")
    elif out.is_dir() and any(out.iterdir()) and not (out / DOCUMENT).is_file():
        raise UsageError(f"out is {out}, a folder with files that mereo did not write; give another one.")
    else:
        with reading(*paths, source):
            predictions, files = write_predictions(model, paths, out, **how)
    if options.json:
        say(json.dumps({"weights": str(source), "predictions": [p.to_dict() for p in predictions]}, indent=2))
    else:
        print_table(("image", "prediction"), [(p.path, _short(p.values)) for p in predictions])
    for path in files[:MOST_NAMED]:
        say(f"written: {path}", file=sys.stderr)
    if len(files) > MOST_NAMED:
        say(f"written: {len(files) - MOST_NAMED} more in {out}", file=sys.stderr)


def _short(values: dict[str, Any]) -> str:
    """Plain values on one line, numbers with three digits."""
    return ", ".join(f"{name} {_rounded(value)}" for name, value in values.items())


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {name: _rounded(entry) for name, entry in value.items()}
    if isinstance(value, list):
        shown = [_rounded(entry) for entry in value[:MOST_NUMBERS]]
        return shown if len(value) <= MOST_NUMBERS else [*shown, f"... {len(value)} in all"]
    return value


def _classify(model: "VisionModel", options: PredictOptions, paths: list[Path], source: Path) -> None:
    """Print the classes of images; of labelled ones the accuracy too, with tables and a picture of the errors."""
    from mereo.files import reading
    from mereo.inference.answer_report import summary
    from mereo.inference.labelled import answer_folder
    from mereo.inference.predict import describe_outputs, report_unreadable
    from mereo.inference.views import mean_over_views
    from mereo.runtime.progress import Reporter

    model = mean_over_views(model, tta=options.tta, five_crop=options.five_crop)
    labels = _labels(model, options, paths)
    labelled = bool((labels >= 0).any())
    out = options.out or (new_folder() if labelled and not options.json else None)
    if out is not None:
        _check_out(out, [*paths, source])
    trained = None
    if labelled:
        from mereo.training.seen import trained_on

        trained = trained_on(source)
    with (
        reading(*paths, source),
        Reporter(silent=len(paths) <= options.batch_size).stage("classified", len(paths)) as done,
    ):
        answers = answer_folder(
            model, paths, labels, trained=trained, batch_size=options.batch_size, strict=options.strict, progress=done,
        )  # fmt: skip
        report_unreadable(answers.aside, bool(answers.paths))
        written = [] if out is None else _write(answers, out, source)
    if options.json:
        described = describe_outputs(model, answers.scores, options.top)
        predictions = [{"path": str(path), **values} for path, values in zip(answers.paths, described, strict=True)]
        say(json.dumps({"weights": str(source), "summary": summary(answers), "predictions": predictions}, indent=2))
    elif labelled:
        print_summary(answers, written)
    else:
        _print_answers(answers, describe_outputs(model, answers.scores, options.top))
    if not labelled:
        note_duplicates(answers)
        for path in written:
            say(f"written: {path}", file=sys.stderr)


def _labels(model: "VisionModel", options: PredictOptions, paths: list[Path]) -> "Tensor":
    """The labels of images, as `--labels` wants them: int64 (n,)."""
    from mereo.inference.labelled import UNKNOWN, folder_labels
    from mereo.inference.predict import class_names

    labels = folder_labels(options.images, paths, class_names(model))
    if options.labels == "none":
        labels.fill_(UNKNOWN)
    if options.labels == "folders" and not bool((labels >= 0).any()):
        every = class_names(model)
        names = ", ".join(every[:5]) + (", ..." if len(every) > 5 else "")
        raise UsageError(
            "labels is 'folders', and none of the folders that were given has the name of a class or holds one that has"
            f" ({names}); give the folder of the images, or leave --labels out."
        )
    return labels


MOST_NAMED, MOST_NUMBERS = 8, 8
"""Files that are named, and entries of a list that are shown."""


def _is_table_name(out: Path) -> bool:
    return out.suffix.lower() == ".csv"


def _check_out(out: Path, inputs: list[Path]) -> None:
    """Refuse to replace files that no earlier prediction wrote."""
    from mereo.files import check_outputs
    from mereo.inference.answer_report import DOCUMENT, output_files

    document = out / DOCUMENT
    if not _is_table_name(out):
        check_outputs("out", [document] if document.exists() else output_files(out), inputs)
    elif not (out.exists() and _is_own_table(out)):
        check_outputs("out", [out], inputs)


def _is_own_table(path: Path) -> bool:
    """Whether a file is a table that an earlier prediction wrote, by its first line."""
    from mereo.files import open_regular

    with open_regular(path) as file:
        return file.read(64).decode("utf-8-sig", errors="replace").startswith("image,class,probability,")


def _write(answers: "FolderAnswers", out: Path, source: Path) -> list[Path]:
    """Write a table, or a folder of tables and a picture; returns the files."""
    from mereo.inference.answer_report import prediction_rows, write_answers
    from mereo.inference.spreadsheet import write_table

    if _is_table_name(out):
        return [write_table(out, *prediction_rows(answers))]
    return write_answers(answers, out, str(source))


def _print_answers(answers: "FolderAnswers", described: list[dict[str, Any]]) -> None:
    calibrated = answers.temperature is not None
    rows = []
    for path, values in zip(answers.paths, described, strict=True):
        shown = values["probabilities"] if calibrated else values["scores"]
        best, *others = (f"{name} {percent(v, 1) if calibrated else f'{v:.3f}'}" for name, v in shown.items())
        rows.append((path, best, ", ".join(others)))
    print_table(("image", f"class and {'probability' if calibrated else 'score'}", "next"), rows)


LONGEST_PROMPT = 2**20
"""Bytes of a file that is continued; of a longer one, the last so many."""


def _continue(model: Any, options: PredictOptions, paths: Sequence[Path], source: Path) -> None:
    """Print each text and what follows it."""
    from mereo.inference.continuation import continue_text

    prompts = {str(path): path.read_bytes()[-LONGEST_PROMPT:] for path in paths}
    if options.prompt is not None:
        prompts["prompt"] = options.prompt.encode()
    predictions = []
    for name, prompt in prompts.items():
        added = continue_text(model, prompt, options.length, temperature=options.temperature, seed=options.seed)
        texts = {"text": prompt.decode(errors="replace"), "continuation": added.decode(errors="replace")}
        predictions.append({"path": name, **texts})
    if options.json:
        say(json.dumps({"weights": str(source), "predictions": predictions}, indent=2))
        return
    for prediction in predictions:
        if len(predictions) > 1:
            say(f"{prediction['path']}:")
        whole = (prediction["text"] + prediction["continuation"]).expandtabs()
        say(whole)
