"""Prepares a network for inference: folds batch normalisation into convolutions, in the faster memory layout."""

import copy

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from mereo.models import VisionModel


def folded(model: VisionModel) -> VisionModel:
    """A copy for inference that computes the same, to rounding, with fewer passes over its maps.

    norm(conv(x; W, b); m, v, g, c) = conv(x; W h, (b - m) h + c),   h = g / sqrt(v + eps)

    Every batch normalisation directly after a convolution in a sequence is folded into it, and the copy is in
    channels-last memory if the network declares that to be faster. Its weights no longer match the architecture, so it
    cannot be saved; keep the model itself for that.

    Args:
        model: as trained; it stays as it is.

    Returns:
        The copy, in eval mode and without gradients.
    """
    ready = copy.deepcopy(model).eval().requires_grad_(False)
    ready.__dict__.pop("config", None)
    for sequence in [module for module in ready.modules() if isinstance(module, nn.Sequential)]:
        for place in range(len(sequence) - 1):
            convolution, norm = sequence[place], sequence[place + 1]
            if type(norm) is nn.BatchNorm2d and norm.running_mean is not None and isinstance(convolution, nn.Conv2d):
                sequence[place] = fuse_conv_bn_eval(convolution, norm)
                sequence[place + 1] = nn.Identity()
    layout = torch.channels_last if ready.channels_last else torch.contiguous_format
    return ready.to(memory_format=layout)
