"""Writes the page: the network as ONNX, the runtime, style and scripts in one file, compressed and in base64."""

import base64
import gzip
import json
import re
import tempfile
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from mereo.data import load_size
from mereo.errors import MereoError, UsageError
from mereo.escape import for_terminal
from mereo.export.onnx_file import open_onnx, write_onnx
from mereo.export.page.runtime import runtime_files
from mereo.export.programs import Scorer
from mereo.files import writing
from mereo.inference.predict import class_names, task_of
from mereo.inference.temperature import calibration_of
from mereo.models import VisionModel

POLICY = (
    "default-src 'none'; img-src data: blob:; style-src 'unsafe-inline';"
    " script-src 'unsafe-inline' 'wasm-unsafe-eval' blob:"
)
"""The page may run its own scripts, and load and send nothing."""
MOST_PIXELS = 89_478_485
"""Largest image that the page reads, as for files."""
_MODEL = re.compile(rb'<script type="text/plain" id="model">([A-Za-z0-9+/=]*)</script>')


def check_page(model: VisionModel) -> None:
    """UsageError for a network that a page cannot run."""
    if not task_of(model).scores_classes or model.num_classes == 0:
        raise UsageError("to is page, which shows classes, and this network does not choose between classes.")
    if model.image_shape[0] not in (1, 2, 3):
        raise UsageError(f"to is page, and the network takes {model.image_shape[0]} channels; images have 1, 2 or 3.")


def page_settings(model: VisionModel) -> dict[str, Any]:
    """Facts of the network for the script: its classes and the preprocessing of images."""
    channels, height, width = model.image_shape
    cfg = model.pretrained_cfg
    return {
        "classes": [for_terminal(name) for name in class_names(model)],
        "kind": model.score_kind,
        "temperature": None if (fitted := calibration_of(model)) is None else fitted.temperature,
        "channels": channels,
        "size": [height, width],
        "load": list(load_size((height, width), cfg["crop_pct"])),
        "mean": list(cfg["mean"]),
        "std": list(cfg["std"]),
        "most": MOST_PIXELS,
    }


def _part(name: str) -> str:
    return (files("mereo.export.page") / name).read_text(encoding="utf-8")


def _packed(content: bytes) -> str:
    # Without a time, so that the same network gives the same file.
    return base64.b64encode(gzip.compress(content, 9, mtime=0)).decode()


def _description(model: VisionModel, record: Mapping[str, Any]) -> str:
    """A sentence about the network and its measured result."""
    parts = [f"{model.config['model']}, {sum(p.numel() for p in model.parameters()):,} parameters"]
    if record.get("data"):
        parts.append(f"trained on {Path(str(record['data'])).name}")
    accuracy = record.get("results", {}).get("test", {}).get("accuracy")
    if accuracy is not None:
        parts.append(f"{100 * accuracy:.2f} % of the test images correct")
    return for_terminal("; ".join(parts) + ".")


def write_page(model: VisionModel, path: Path, notes: Mapping[str, Any]) -> None:
    """Write a network as one HTML file that classifies images in a browser.

    Images are prepared in the arithmetic of the reader of image files.

    Args:
        model: a classifier, on the CPU, in eval mode.
        path: of the file.
        notes: stored in the ONNX model, of which `data` and `results` are shown.
    """
    check_page(model)
    runtime = runtime_files()
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "model.onnx"
        write_onnx(model, plain, notes)
        network = plain.read_bytes()
    # "<" could end the element.
    settings = json.dumps(page_settings(model)).replace("<", "\\u003c")
    title = escape(for_terminal(model.config["model"]))
    # Pillow's resampling and the page must agree in every bit; the order of the scripts is that of their use.
    pieces = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="generator" content="mereo">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>\n{_part('giving.css')}{_part('page.css')}</style>\n</head>\n<body>\n",
        _part("page.html").replace("{title}", title).replace("{description}", escape(_description(model, notes))),
        f'<script type="application/json" id="settings">{settings}</script>\n',
        f'<script type="text/plain" id="model">{_packed(network)}</script>\n',
    ]
    pieces += [
        f'<script type="text/plain" id="{kind}">{_packed(runtime[name])}</script>\n'
        for kind, name in zip(("runtime", "wasm"), runtime, strict=True)
    ]
    scripts = "".join(_part(name) for name in ("prepare.js", "giving.js", "page.js"))
    pieces.append(f"<script>\n{scripts}</script>\n</body>\n</html>\n")
    with writing(path) as write:
        for piece in pieces:
            write(piece.encode(errors="replace"))


def open_page(path: Path) -> Scorer:
    """The function of the ONNX model in a page, run by onnxruntime."""
    match = _MODEL.search(path.read_bytes())
    if match is None:
        raise MereoError(f"{path} has no model.")
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "model.onnx"
        plain.write_bytes(gzip.decompress(base64.b64decode(match[1])))
        return open_onnx(plain)
