"""`mereo export`."""

import dataclasses
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mereo.cli.options import ExportOptions
from mereo.cli.parse import parse
from mereo.cli.show import print_table
from mereo.errors import UsageError, check_positive
from mereo.files import check_outputs
from mereo.runtime.printing import say
from mereo.runtime.text import megabytes, rounded

if TYPE_CHECKING:
    from mereo.export.cost import Cost
    from mereo.export.forms import Exported
    from mereo.models import VisionModel


ONE_FILE: dict[str, Literal["onnx", "torch"]] = {".onnx": "onnx", ".pt2": "torch"}
"""Forms that are one file, by its suffix."""


def _open(weights: Path | None) -> tuple["VisionModel", Path]:
    """The network of a weight file, of a run folder, or of a folder that this command wrote."""
    if weights is not None and (weights / "config.json").is_file():
        from mereo.export import from_pretrained

        return from_pretrained(weights), weights
    from mereo.api.networks import load_weights

    return load_weights(weights, "cpu", images=False)


def _say(line: str) -> None:
    say(line, file=sys.stderr)


def run(words: list[str], command: str) -> None:
    """Write a network in some formats, each compared with the network."""
    options = parse(ExportOptions, words, command)
    check_positive(batch_size=options.batch_size)
    if options.limit is not None:
        check_positive(limit=options.limit)
    if options.out.suffix in ONE_FILE and not options.out.is_dir():
        _one_file(options)
    else:
        _into_folder(options, options.out)


def _one_file(options: ExportOptions) -> None:
    """Write one form to the file that `--out` names; with `--preprocess` the ONNX file that takes pixels."""
    form, file = ONE_FILE[options.out.suffix], options.out
    if options.to not in (ExportOptions().to, (form,)):
        raise UsageError(f"out is {file}, one file of the form {form}; give a folder for other forms.")
    check_outputs("out", [file])
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=file.parent, prefix=".mereo-export-") as folder:
        _into_folder(dataclasses.replace(options, to=(form,)), Path(folder), file)


def _into_folder(options: ExportOptions, out: Path, file: Path | None = None) -> None:
    """Write and check all forms in a folder; the last one is moved to `file` if that is given."""
    if out.is_file():
        raise UsageError(f"out is {out}, which is a file; give a folder, or a name that ends in {', '.join(ONE_FILE)}.")
    from mereo.export.forms import check_forms, output_files
    from mereo.export.images import find_images
    from mereo.export.record import read_record
    from mereo.export.writing import export_model
    from mereo.measure.trained_models import images_of_run, run_config
    from mereo.models.weights import weights_file

    if options.preprocess and "onnx" not in options.to:
        raise UsageError("preprocess is only available for onnx; add --to onnx, or leave it out.")
    forms = (*options.to, *(["pixels"] if options.preprocess else []))
    check_forms(forms, options.precision)
    model, source = _open(options.weights)
    if options.weights is None:
        _say(f"using {source}")
    if options.license is not None:
        model.pretrained_cfg["license"] = options.license
    config = run_config(source)
    root = options.data_root or (None if config is None else config.data_root)
    images, reason = find_images(model, options.data, root, options.limit, images_of_run(model, source))
    if images is None and options.precision != "fp32":
        raise UsageError(
            f"precision is {options.precision}, which needs test images to measure its accuracy: {reason}; give --data."
        )
    if images is None:
        _say(f"{reason}; comparing on random inputs only")
    check_outputs("out", output_files(forms, options.precision, out), [weights_file(source)])
    exported = export_model(
        model, forms, out, precision=options.precision, record=read_record(source), images=images, say=_say
    )
    costs: list[Cost] = []
    if images is not None and options.precision != "fp32":
        _say(f"evaluating {len(images.test):,} test images of {images.name}, before and after")
        costs = _costs(model, source, exported, images.test, options.batch_size)
    if file is not None:
        last = exported[-1]
        exported = [dataclasses.replace(last, path=last.path.replace(file), files=(file.name,))]
    if options.json:
        document: dict[str, Any] = {"weights": str(source), "exported": [e.to_dict() for e in exported]}
        say(json.dumps(document | {"costs": [c.to_dict() for c in costs]}, indent=2))
        return
    _show(exported, costs)


def _costs(model: Any, source: Path, exported: list["Exported"], test: Any, batch_size: int) -> list["Cost"]:
    """The exported files and the network itself to compare with: in torch, and in onnxruntime for ONNX."""
    from mereo.export.cost import measure
    from mereo.export.onnx_file import open_onnx, write_onnx
    from mereo.export.programs import scorer
    from mereo.inference.predict import task_of

    size = sum(p.numel() * p.element_size() for p in model.parameters())
    runners = {"torch fp32": (scorer(model), size)}
    with tempfile.TemporaryDirectory() as folder:
        for each in exported:
            if each.form == "onnx":
                plain = Path(folder) / "plain.onnx"
                write_onnx(model, plain, {})
                runners["onnx fp32"] = (open_onnx(plain), plain.stat().st_size)
            runners[f"{each.form} {each.precision}"] = (each.score, each.size)
        return measure(runners, test, model.pretrained_cfg, batch_size, task_of(model))


def _show(exported: list["Exported"], costs: list["Cost"]) -> None:
    rows = []
    for each in exported:
        batches = ", ".join(map(str, each.batches))
        size, difference = megabytes(each.size), f"{each.difference:.1e}"
        rows.append((each.form, each.precision, each.path, size, difference, batches, each.images))
    print_table(("form", "precision", "file", "size", "largest difference", "batch sizes", "images"), rows)
    if not costs:
        return
    say()
    measured = []
    for cost in costs:
        if "accuracy" in cost.scores.values:
            low, high = cost.scores.interval
            shown: tuple[str, ...] = (f"{100 * cost.scores.accuracy:.2f}", f"{100 * low:.2f} to {100 * high:.2f}")
            names: tuple[str, ...] = ("correct %", "95 % interval")
        else:
            shown = tuple(f"{value:.6g}" for value in cost.scores.values.values())
            names = tuple(cost.scores.values)
        measured.append((cost.runner, *shown, rounded(cost.rate), megabytes(cost.size)))
    print_table((f"{costs[0].scores.count:,} test images", *names, "images/s", "size"), measured)
