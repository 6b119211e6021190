"""A network as a program of torch.export (.pt2), in float32, bfloat16 or with integer weights.

A program takes a batch of any size, such as normalised float32 images (batch, channels, height, width), and returns
what the network does.
"""

import copy
import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from mereo.files import write_atomically
from mereo.models import VisionModel

Scorer = Callable[[Tensor], Tensor]
"""Inputs, such as normalised images (batch, channels, height, width), to outputs, such as scores (batch, classes)."""

EXAMPLES = 3
"""Inputs of the batch that a form is traced with: more than one, so that its size stays free."""
LEAST = 64
"""Entries below which a parameter stays as it is: there is nothing to save."""


class IntegerWeight(nn.Module):
    """A weight as int8 with a scale for each entry of its first axis: w = q * s, |q| <= 127."""

    def forward(self, quantised: Tensor, scale: Tensor) -> Tensor:
        """The weight again: (n, ...) int8, (n, 1, ...) -> (n, ...)."""
        return quantised.to(scale.dtype) * scale

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """(n, ...) -> int8 (n, ...) and scale (n, 1, ...)."""
        scale = weight.abs().amax(tuple(range(1, weight.dim())), keepdim=True).clamp_min(1e-12) / 127
        return (weight / scale).round().clamp(-127, 127).to(torch.int8), scale


class InBfloat16(nn.Module):
    """A network that computes in bfloat16 between float32 images and float32 scores."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model.to(torch.bfloat16)

    def forward(self, images: Tensor) -> Tensor:
        """(batch, channels, height, width) -> (batch, classes)."""
        return self.model(images.to(torch.bfloat16)).float()


def lower(model: VisionModel, precision: str) -> nn.Module:
    """The network in another arithmetic, the given one untouched: fp32, bf16, or int8 (weights only)."""
    if precision == "fp32":
        return model
    twin = copy.deepcopy(model).requires_grad_(False).eval()
    if precision == "bf16":
        return InBfloat16(twin).eval()
    for module in list(twin.modules()):
        for name, parameter in list(module.named_parameters(recurse=False)):
            if parameter.dim() >= 2 and parameter.numel() >= LEAST:
                parametrize.register_parametrization(module, name, IntegerWeight(), unsafe=True)
    return twin.eval()


def write_program(model: nn.Module, inputs: Tensor, path: Path, notes: Mapping[str, Any]) -> None:
    """Trace a network with a free batch size and write the program; `notes` are stored in it as mereo.json.

    Args:
        inputs: an example, with at least `EXAMPLES` entries.
    """
    # The format accepts weights only in the ordinary layout, and warns about others.
    model = copy.deepcopy(model).to(memory_format=torch.contiguous_format)
    program = torch.export.export(model, (inputs[:EXAMPLES],), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    content = io.BytesIO()
    torch.export.save(program, content, extra_files={"mereo.json": json.dumps(notes)})
    write_atomically(path, content.getvalue())


def open_program(path: Path) -> Scorer:
    """The function of a program. Load only programs that you trust: the format can contain pickles."""
    return scorer(torch.export.load(path).module())


def scorer(module: Callable[[Tensor], Tensor]) -> Scorer:
    """A module as a function without gradients."""

    def score(images: Tensor) -> Tensor:
        with torch.no_grad():
            return module(images)

    return score
