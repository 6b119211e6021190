"""Shared by the suites that change a DeiT: the network with random weights, its images, its operations."""

from collections.abc import Callable
from typing import Any

import torch

from mereo.bench.counting import FLOAT
from mereo.bench.suite import Contender, Mode, Setting, UnavailableError, Work, Workload

WIDTHS = {"tiny": (192, 3), "small": (384, 6), "base": (768, 12)}
"""Size of the tokens and number of heads of DeiT."""


def host(setting: Setting) -> Any:
    """DeiT with random weights, always the same."""
    try:
        from timm.models.vision_transformer import VisionTransformer
    except ImportError as error:
        raise UnavailableError("timm is not installed") from error
    width, heads = WIDTHS[setting.word("width")]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = VisionTransformer(img_size=setting.size("side"), embed_dim=width, num_heads=heads, depth=12)
    return model.to(setting.device)


def inputs(setting: Setting, mode: Mode) -> tuple[Any, ...]:
    """Images (batch, 3, side, side)."""
    return (torch.randn(setting.size("batch"), 3, setting.size("side"), setting.size("side"), device=setting.device),)


def work(setting: Setting, mode: Mode) -> Work:
    """Operations of the host: its matrices and its attention; three times that in training."""
    width, _ = WIDTHS[setting.word("width")]
    patches = (setting.size("side") // 16) ** 2
    tokens, weights = patches + 1, 12 * width**2
    layers = 12 * (2 * tokens * weights + 4 * tokens**2 * width)
    flops = setting.size("batch") * (layers + 2 * patches * 768 * width + 2 * width * 1000)
    times = 1 if mode == "forward" else 3
    return Work(times * flops, FLOAT * times * (12 * weights + setting.size("batch") * 3 * setting.size("side") ** 2))


def contender(setting: Setting, name: str, change: Callable[[Any], Any] | None = None) -> Contender:
    """The host, which is the reference, or what `change` makes of it, another function on purpose."""

    def build(mode: Mode) -> Workload:
        model = host(setting) if change is None else change(host(setting))
        if mode == "training":
            return Workload(model.train(), leaves=tuple(model.parameters()))
        return Workload(torch.inference_mode()(model.eval()))

    return Contender(name, build, "contender" if change is None else "unchecked")
