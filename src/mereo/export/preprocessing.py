"""The preprocessing of `mereo predict` as a module, so that an exported file takes images of any size.

Pillow's arithmetic is repeated exactly: antialiased bilinear weights in fixed point, along the rows first and then the
columns, rounded to whole values after each. Turning by EXIF and transparency belong to the file, so whoever reads it
takes care of them.
"""

import torch
from torch import Tensor, nn

from mereo.data import load_size
from mereo.errors import UsageError
from mereo.inference.predict import task_of
from mereo.inference.temperature import calibration_of
from mereo.models import VisionModel

FIXED = 2**22
"""Scale of Pillow's fixed-point weights. Their products with pixels are exact in double precision."""


def _weights(side: Tensor, start: Tensor, length: Tensor, count: int) -> Tensor:
    """Weights of the pixels of one axis in each of `count` resized ones.

        w[o, i] = max(0, 1 - |i + 1/2 - c_o| / max(s, 1)) for pixels of the box, 0 for others,
        c_o = start + (o + 1/2) s,  s = length / count;  then round(2^22 w[o] / sum(w[o]))

    Args:
        side: 0, 1, ... of all pixels of the axis.
        start: first pixel of the box.
        length: pixels of the box.
        count: pixels after resizing.

    Shapes: side float64 (pixels,), start float64 (), length float64 () -> float64 (count, pixels).
    """
    scale = length / count
    centres = start + (torch.arange(count, dtype=torch.float64) + 0.5) * scale
    distance = (side + 0.5 - centres.unsqueeze(1)).abs() / scale.clamp(min=1)
    inside = ((side >= start) & (side < start + length)).to(torch.float64)
    weights = (1 - distance).clamp(min=0) * inside
    return (weights / weights.sum(1, keepdim=True) * FIXED + 0.5).floor()


def check_pixels(model: VisionModel) -> None:
    """UsageError for a network of other channels than 1 or 3."""
    channels = model.image_shape[0]
    if channels not in (1, 3):
        raise UsageError(f"preprocess needs a network of 1 or 3 channels, and this one takes {channels}; leave it out.")


class Preprocessing(nn.Module):
    """Pixels as a file holds them to the input of a network: cut, resized, in its colours, normalised.

    Args:
        model: whose preprocessing it is.

    Shapes: uint8 (batch, height, width, 3) in RGB -> float32 (batch, channels, *model size).

    Raises:
        UsageError: for a network of other channels than 1 or 3.
    """

    def __init__(self, model: VisionModel) -> None:
        super().__init__()
        channels, height, width = model.image_shape
        check_pixels(model)
        cfg = model.pretrained_cfg
        self.grey, self.crop = channels == 1, (height, width)
        self.size = load_size((height, width), cfg["crop_pct"])
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.tensor(cfg["mean"]).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(cfg["std"]).view(-1, 1, 1), persistent=False)

    def forward(self, pixels: Tensor) -> Tensor:
        """The input of the network."""
        images = pixels.permute(0, 3, 1, 2).to(torch.float64)
        if self.grey:  # luma of ITU-R 601 in 16 bits, as Pillow computes it
            red, green, blue = images.unbind(1)
            images = ((red * 19595 + green * 38470 + blue * 7471 + 0x8000) / 65536).floor().unsqueeze(1)
        ones = torch.ones_like(images[0, 0])
        rows, columns = ones[:, 0].cumsum(0) - 1, ones[0].cumsum(0) - 1
        height, width = rows[-1] + 1, columns[-1] + 1
        # The largest centred box with the proportions of the network.
        box_height = torch.minimum(height, (width * self.size[0] / self.size[1]).round().clamp(min=1))
        box_width = torch.minimum(width, (height * self.size[1] / self.size[0]).round().clamp(min=1))
        top, left = ((height - box_height) / 2).floor(), ((width - box_width) / 2).floor()
        across = _weights(columns, left, box_width, self.size[1])
        down = _weights(rows, top, box_height, self.size[0])
        images = (images @ across.T / FIXED + 0.5).floor().clamp(0, 255)
        images = (down @ images / FIXED + 0.5).floor().clamp(0, 255)
        top_crop, left_crop = ((stored - wanted) // 2 for stored, wanted in zip(self.size, self.crop, strict=True))
        images = images[:, :, top_crop : top_crop + self.crop[0], left_crop : left_crop + self.crop[1]]
        return (images.to(torch.float32) / 255 - self.mean) / self.std


class Finished(nn.Module):
    """A network with what its task makes of the scores as a second output: probabilities of labels, numbers in their
    units, classes of pixels, boxes, vectors of length one; of classes the scores alone.

    Shapes: the network's inputs -> scores, or a pair of scores and what `finished` names.
    """

    def __init__(self, model: VisionModel) -> None:
        super().__init__()
        self.model, self.task = model, task_of(model)

    @property
    def finished(self) -> str | None:
        """The name of the second output; None for scores alone."""
        return self.task.finished_as

    def forward(self, inputs: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """The scores, and what they mean."""
        scores: Tensor = self.model(inputs)
        return scores if self.task.finished_as is None else (scores, self.task.finish(self.model, scores))


class FromPixels(Finished):
    """The same behind the preprocessing of images, with the probabilities of `mereo predict` if weights are calibrated.

    Shapes: uint8 (batch, height, width, 3) in RGB -> scores, or a pair of scores and what `finished` names.
    """

    def __init__(self, model: VisionModel) -> None:
        super().__init__(model)
        self.preprocessing = Preprocessing(model)
        fitted = calibration_of(model) if self.task.scores_classes else None
        self.temperature = None if fitted is None else fitted.temperature

    @property
    def finished(self) -> str | None:
        return super().finished or (None if self.temperature is None else "probabilities")

    def forward(self, inputs: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """The scores of images, and what they mean."""
        answer = super().forward(self.preprocessing(inputs))
        if self.temperature is None or not isinstance(answer, Tensor):
            return answer
        return answer, (answer / self.temperature).softmax(1)
