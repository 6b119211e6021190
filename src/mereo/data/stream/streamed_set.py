"""A split that is decoded when it is used: only images read ahead are in memory."""

import math
import warnings

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mereo.data.batch import Batch
from mereo.data.conversion import check_channels
from mereo.data.encoded import Source
from mereo.data.images import BatchOptions, Images, ImageSet, crop_corners
from mereo.data.stream.order import ORDERS, window_order
from mereo.data.stream.read_ahead import ReadAhead, default_workers
from mereo.errors import MereoError, UsageError, check_choice, check_positive

_AHEAD_BYTES, _AHEAD_IMAGES = 2**28, 2048
_NAMED, _IN_A_ROW = 10, 100
WINDOW = 4096


class StreamedSet(Images):
    """Images of a source, decoded by threads on request, or in advance after `prefetch`.

    A batch does not depend on the number of threads or on how far was read ahead. An unreadable image is left out of a
    batch for evaluation; in a batch for training (with a generator) the next readable one of the source replaces it, so
    that the batch keeps its size.

    Args:
        source: where the encoded images come from.
        class_names: a name for every label.
        size: height and width that images are resized to.
        channels: 1 or 3.
        strict: whether an unreadable image is an error, rather than replaced with a warning.
        order: "random": every epoch visits the images in any order; "shards": files in random order and their images
            shuffled among the nearest `window`, for media that are slow unless read in sequence; "auto": "shards" for
            sources that are read in groups, else "random".
        window: number of images within which "shards" shuffles.
        workers: threads that decode; this process's share of the cores when None.
        read_ahead: largest number of decoded images kept ready; when None 256 MiB of them, at most 2048.
        reduce: whether a JPEG more than four times too large may be decoded at a half, a quarter or an eighth of its
            size, but at least twice the target; its pixels then differ by rounding from a full decode.
        device: of batches by default.
    """

    def __init__(
        self,
        source: Source,
        class_names: tuple[str, ...],
        size: tuple[int, int],
        channels: int,
        *,
        strict: bool = False,
        order: str = "auto",
        window: int = WINDOW,
        workers: int | None = None,
        read_ahead: int | None = None,
        reduce: bool = True,
        device: torch.device | str | None = None,
    ) -> None:
        check_channels(3, channels)
        check_choice("order", order, ("auto", *ORDERS))
        check_positive(window=window, **{k: v for k, v in (("workers", workers), ("read_ahead", read_ahead)) if v})
        if workers is not None and workers < 1:
            raise UsageError(f"workers is {workers}; it must be at least 1, or None for this process's cores.")
        self.source, self.class_names = source.fitted_to(size), class_names
        self._size, self._channels = size, channels
        self.strict, self.window, self.reduce, self._device = strict, window, reduce, device
        self.kind = ("shards" if source.store.sequential else "random") if order == "auto" else order
        self.workers = workers or default_workers()
        fitting = _AHEAD_BYTES // math.prod(self.image_shape)
        self.read_ahead = read_ahead or max(min(fitting, _AHEAD_IMAGES), 64)
        self._reader: ReadAhead | None = None
        self._broken: dict[int, str] = {}
        self._reported: set[int] = set()

    def __len__(self) -> int:
        return len(self.source)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return self._channels, *self._size

    @property
    def _decoded_shape(self) -> tuple[int, int, int]:
        """The shape of an image, with its mask, if it has one, as a further channel."""
        return self._channels + (self.source.masks is not None), *self._size

    @property
    def skipped(self) -> int:
        """Number of unreadable images so far."""
        return len(self._broken)

    @property
    def strata(self) -> Tensor:
        return self.source.labels

    def to(self, device: torch.device | str) -> "StreamedSet":
        return self._like(self.source, device)

    def subset(self, indices: Tensor) -> "StreamedSet":
        return self._like(self.source.take(indices.cpu()), self._device)

    def decoded_fully(self) -> "StreamedSet":
        """The same images, every JPEG decoded at its full size, and with a warning for each one that cannot be read."""
        return self._like(self.source, self._device, strict=False, reduce=False)

    def _like(self, source: Source, device: torch.device | str | None, **changes: bool) -> "StreamedSet":
        how = {"strict": self.strict, "reduce": self.reduce, **changes}
        return StreamedSet(
            source, self.class_names, self._size, self._channels, order=self.kind, window=self.window,
            workers=self.workers, read_ahead=self.read_ahead, device=device, **how,
        )  # fmt: skip

    def order(self, generator: torch.Generator) -> Tensor:
        if self.kind == "random":
            return super().order(generator)
        return window_order(self.source.groups, self.window, generator)

    def prefetch(self, indices: Tensor) -> None:
        self._ahead.expect(indices.cpu().numpy())

    def make_batch(self, indices: Tensor, options: BatchOptions) -> Batch:
        augmentation, crop, generator, share, device = options
        mine = indices.cpu()[share]
        pixels, readable = self.decode(mine)
        mine = mine.clone()
        if not readable.all():
            if generator is None:
                if not readable.any():
                    raise MereoError(
                        f"none of the {len(mine)} images of a batch could be read, {self._reason(int(mine[0]))} first."
                    )
                pixels, mine = pixels[readable], mine[readable]
                indices, share = indices[: len(mine)], slice(None)
            else:
                for row in (~readable).nonzero().flatten().tolist():
                    mine[row] = self._stand_in(int(mine[row]), pixels[row])
        if augmentation is None and generator is None and crop is not None:  # bytes are cut, before they become floats
            corners = crop_corners(1, self.image_shape, crop, None)
            if corners is not None:
                (top, left), (height, width) = corners[0].tolist(), crop
                pixels = pixels[:, :, top : top + height, left : left + width]
        # The decoded part as a stored set, which draws for the whole batch, crops and augments.
        places = torch.zeros(len(indices), dtype=torch.int64)
        places[share] = torch.arange(len(mine))
        fields = {name: values[mine] for name, values in self.source.fields.items()}
        if self.source.masks is not None:
            fields["masks"] = pixels[:, -1]
        return ImageSet(pixels[:, : self._channels], self.source.labels[mine], self.class_names, fields).batch(
            places, augmentation=augmentation, crop=crop, generator=generator, share=share,
            device=self._device if device is None else device,
        )  # fmt: skip

    def decode(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Pixels as stored, neither cropped nor augmented, with masks as a further channel if there are some.

        Shapes: int64 (n,) -> uint8 (n, channels, height, width), bool (n,), whether each image could be read.
        """
        if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < len(self):
            raise UsageError(f"indices has values outside 0 .. {len(self) - 1}, the range of this set.")
        pixels, readable = map(torch.from_numpy, self._ahead.take(indices.numpy()))
        if not readable.all():
            self._report(indices[~readable])
        return pixels, readable

    @property
    def _ahead(self) -> ReadAhead:
        if self._reader is None:
            self._reader = ReadAhead(self._decode_one, self._decoded_shape, ahead=self.read_ahead, workers=self.workers)
        return self._reader

    def _decode_one(self, index: int, out: npt.NDArray[np.uint8]) -> bool:
        try:
            self.source.decode(index, self._size, self._channels, out, reduce=self.reduce)
        except MemoryError:
            raise
        except Exception as error:  # a broken file can make a decoder raise nearly anything
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            self._broken[index] = "not an image" if reason.startswith("cannot identify image file") else reason
            return False
        return True

    @property
    def unreadable(self) -> list[tuple[str, str]]:
        """The images that could not be read so far, each with the reason."""
        return [(self.source.name(index), reason) for index, reason in sorted(self._broken.items())]

    def _reason(self, index: int) -> str:
        return f"{self.source.name(index)} ({self._broken[index]})"

    def _report(self, indices: Tensor) -> None:
        if self.strict:
            raise MereoError(
                f"{self._reason(int(indices[0]))} could not be read; remove or repair it, or leave out --strict."
            )
        new = [index for index in indices.tolist() if index not in self._reported][: _NAMED - len(self._reported)]
        if new:
            self._reported.update(new)
            end = "; further ones are not named" if len(self._reported) == _NAMED else ""
            names = "; ".join(map(self._reason, new))
            warnings.warn(f"skipped unreadable images: {names}{end}.", UserWarning, stacklevel=4)

    def _stand_in(self, index: int, out: Tensor) -> int:
        """Replace an unreadable image by the next readable one and return its index."""
        for step in range(1, min(_IN_A_ROW, len(self))):
            other = (index + step) % len(self)
            if self._decode_one(other, out.numpy()):
                return other
        raise MereoError(f"{_IN_A_ROW} images in a row could not be read, from {self._reason(index)} on.")
