"""Metrics of a run as TensorBoard events, written unbuffered, so that a full disk fails here and not later."""

import errno
import io
import os
import platform
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mereo.files import cannot_write
from mereo.training.report import COLUMNS, Report
from mereo.training.run_folder import RunFolder

BINS = 30


class EventFile:
    """One file of events. TensorBoard discards what earlier files hold of `first_epoch` and later ones.

    Args:
        folder: of the run.
        first_epoch: the first that will be written, counted from 1.
        columns: of the history; all but the first are written.
    """

    def __init__(self, folder: RunFolder, first_epoch: int, columns: Sequence[str] = COLUMNS) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        self.path = folder.tensorboard / f"events.out.tfevents.{time.time():.6f}.{platform.node()}.{os.getpid()}"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Unbuffered, so that nothing remains to be written when the file is closed.
            self._file = self.path.open("wb", buffering=0)
        except OSError as error:
            raise cannot_write(self.path, error) from error
        self.columns = tuple(columns[1:])
        self._writer, self._event = RecordWriter, Event
        self._write(step=first_epoch, file_version="brain.Event:2")
        self._write(step=first_epoch, session_log=SessionLog(status=SessionLog.START))

    def _write(self, **content: Any) -> None:
        record = io.BytesIO()
        self._writer(record).write(self._event(wall_time=time.time(), **content).SerializeToString())
        try:
            if self._file.write(record.getbuffer()) < record.tell():
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def epoch(self, row: dict[str, Any]) -> None:
        """Write the metrics of one epoch as scalars."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=row[name]) for name in self.columns if row[name] is not None]
        self._write(step=row["epoch"], summary=Summary(value=values))

    def picture(self, name: str, step: int, path: Path) -> None:
        """Write a PNG file as an image; nothing if there is no such file."""
        from PIL import Image
        from tensorboard.compat.proto.summary_pb2 import Summary

        if not path.is_file():
            return
        with Image.open(path, formats=("PNG",)) as opened:
            width, height = opened.size
        encoded = Summary.Image(width=width, height=height, colorspace=3, encoded_image_string=path.read_bytes())
        self._write(step=step, summary=Summary(value=[Summary.Value(tag=name, image=encoded)]))

    def histograms(self, step: int, tensors: Mapping[str, Tensor]) -> None:
        """Write the distribution of the values of each tensor, in `BINS` bins of equal width."""
        from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary

        values = []
        for name, tensor in tensors.items():
            if not (tensor.is_floating_point() and tensor.numel()):
                continue
            flat = tensor.detach().double().flatten().cpu()
            low, high = flat.min().item(), flat.max().item()
            width = (high - low) / BINS or 1.0
            counts = torch.bincount(((flat - low) / width).long().clamp(max=BINS - 1), minlength=BINS)
            proto = HistogramProto(
                min=low, max=high, num=len(flat), sum=flat.sum().item(), sum_squares=flat.square().sum().item(),
                bucket_limit=[low + width * (place + 1) for place in range(BINS)], bucket=counts.tolist(),
            )  # fmt: skip
            values.append(Summary.Value(tag=name, histo=proto))
        self._write(step=step, summary=Summary(value=values))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def open_events(
    folder: RunFolder, wanted: bool, first_epoch: int, report: Report, columns: Sequence[str] = COLUMNS
) -> EventFile | None:
    """A file of events, or None; reports if TensorBoard is requested but not installed."""
    if not wanted:
        return None
    try:
        return EventFile(folder, first_epoch, columns)
    except ImportError:
        report.say("TensorBoard is not installed, so no events are written; pip install 'mereo[tensorboard]'.")
        return None
