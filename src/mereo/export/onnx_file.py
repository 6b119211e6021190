"""A network as ONNX, in float32 or with integer convolutions and products."""

import contextlib
import io
import json
import logging
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mereo.export.preprocessing import Finished, FromPixels
from mereo.export.programs import EXAMPLES, Scorer
from mereo.files import write_atomically
from mereo.models import VisionModel

IMAGES, PIXELS, SCORES = "images", "pixels", "scores"
_TRACED = (5, 37, 29)
"""Batch, height and width of the pixels that are traced; a size that none of the checked ones has."""


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    # The exporter and the quantiser print notes for programmers.
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def write_onnx(model: VisionModel, path: Path, notes: Mapping[str, Any]) -> None:
    """Trace a network with a free batch size: images (batch, channels, height, width) -> scores (batch, classes); or
    the sequences (batch, frames, coordinates) that a network reads.

    Several labels give the output "probabilities" as well, a regression "values" in their units, a segmentation
    "masks", a detection "detections", and an embedding "embeddings". `notes` are stored in the file's metadata under
    "mereo".
    """
    inputs, module = torch.rand(EXAMPLES, *model.input_shape), Finished(model).eval()
    _write(module, inputs, {0: torch.export.Dim("batch", min=1)}, model.input_kind, path, notes, outputs_of(module))


def write_pixels(model: VisionModel, path: Path, notes: Mapping[str, Any]) -> None:
    """The same with its preprocessing: uint8 pixels in RGB (batch, height, width, 3) of any size -> scores.

    The further outputs are as for `write_onnx`, and "probabilities" for weights with a temperature.
    """
    pixels = torch.randint(0, 256, (*_TRACED, 3), dtype=torch.uint8)
    free = {
        0: torch.export.Dim("batch", min=1),
        1: torch.export.Dim("height", min=1),
        2: torch.export.Dim("width", min=1),
    }
    module = FromPixels(model).eval()
    _write(module, pixels, free, PIXELS, path, notes, outputs_of(module))


def outputs_of(module: Finished) -> tuple[str, ...]:
    """The names of the outputs of a file."""
    return (SCORES,) if module.finished is None else (SCORES, module.finished)


def _write(
    module: nn.Module,
    example: Tensor,
    free: Mapping[int, Any],
    name: str,
    path: Path,
    notes: Mapping[str, Any],
    outputs: tuple[str, ...],
) -> None:
    """Trace a module of one input, some of whose axes are free."""
    content = io.BytesIO()
    with _quiet():
        program = torch.onnx.export(
            module, (example,), dynamo=True, dynamic_shapes=(dict(free),), input_names=[name], output_names=[*outputs],
            verbose=False,
        )  # fmt: skip
        if program is None:
            raise RuntimeError("torch.onnx.export gave no program")
        program.model.metadata_props["mereo"] = json.dumps(notes)
        program.save(content)  # type: ignore[arg-type]  # a stream serves as well as a path
    write_atomically(path, content.getvalue())


class _Calibration:
    """Batches of images, one after another, as onnxruntime asks for them."""

    def __init__(self, images: Tensor) -> None:
        self.batches = iter(images.split(32))

    def get_next(self) -> dict[str, Any] | None:
        """The next batch; None after the last."""
        batch = next(self.batches, None)
        return None if batch is None else {IMAGES: batch.numpy()}


def quantise_onnx(source: Path, path: Path, images: Tensor) -> None:
    """A float32 ONNX file with its convolutions and products in int8.

    The range of every activation is that seen on `images`, normalised training images (n, channels, height, width):
    measured on a CPU this is faster than float32, and ranges computed for every batch are slower.
    """
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    CalibrationDataReader.register(_Calibration)
    with tempfile.TemporaryDirectory() as folder, _quiet():
        written = Path(folder) / path.name
        quantize_static(
            str(source), str(written), _Calibration(images), quant_format=QuantFormat.QDQ, per_channel=True,
            op_types_to_quantize=["Conv", "MatMul"], weight_type=QuantType.QInt8, activation_type=QuantType.QUInt8,
        )  # fmt: skip
        content = written.read_bytes()
    write_atomically(path, content)


def open_onnx(path: Path, name: str = IMAGES) -> Scorer:
    """The function of a file of the input `name`, run by onnxruntime on torch's number of threads."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def score(images: Tensor) -> Tensor:
        (scores,) = session.run([SCORES], {name: images.contiguous().numpy()})
        return torch.from_numpy(scores)

    return score
