"""Published presets at their own depth, made narrow for small images by what their family's tiny preset has."""

from functools import cache
from typing import Any

from mereo.errors import UsageError
from mereo.models import MODELS
from mereo.models.registry import families, outline

DEPTHS = {
    "depth", "depths", "layers", "blocks", "reducing_layers", "keep_rates", "spectral_layers", "dilations", "ratios",
    "pools", "mlp_ratios", "stem_strides", "stem_kernel", "stem", "padding", "top_k", "regions", "drop_path_rate",
    "init_values",
}  # fmt: skip
"""Arguments that a narrow form keeps: how many layers there are, and which."""
SIZES = (8, 12, 14, 16, 18, 20, 24, 28, 32, 36, 40, 48, 56, 64, 128, 224)
MOST = 15_000_000
"""Parameters of a preset that cannot be made narrow and is taken as it is."""


def _arguments(name: str, narrow: bool) -> dict[str, Any]:
    entry = MODELS[name]
    arguments = {}
    for key, value in (families()[entry.family].tiny or {}).items() if narrow else ():
        own = entry.defaults.get(key)
        if key not in DEPTHS and key != "img_size":
            stretched = isinstance(value, tuple) and isinstance(own, tuple) and value
            arguments[key] = (value + value[-1:] * len(own))[: len(own)] if stretched else value
    return arguments


@cache
def small(name: str, narrow: bool = True) -> dict[str, Any] | None:
    """Arguments that make a preset small and keep its depth; None if its own arguments do not allow it.

    Args:
        narrow: whether widths come from the tiny preset; else only the images are small.
    """
    import torch

    arguments = _arguments(name, narrow)
    least = (families()[MODELS[name].family].tiny or {}).get("img_size", 8)
    if not narrow and MODELS[name].parameters > MOST:
        return None
    for size in (size for size in SIZES if size >= least):
        try:
            model = outline(name, **arguments, img_size=size)
            model(torch.empty(2, *model.image_shape, device="meta"))
        except (UsageError, RuntimeError):
            continue
        return {**arguments, "img_size": size}
    return None


@cache
def largest(family: str) -> str:
    """The largest preset of a family that can be made narrow; the tiny preset if none can."""
    names = sorted((n for n, e in MODELS.items() if e.family == family), key=lambda n: -MODELS[n].parameters)
    return next((name for name in names if small(name) is not None), families()[family].name)


def blank_gradients(model: Any) -> list[str]:
    """What is not finite of scores and gradients for images that are zero everywhere."""
    import torch

    images = torch.zeros(2, *model.image_shape).requires_grad_()
    scores = model(images)
    scores.sum().backward()
    found = {"scores": scores, "images": images.grad, **{n: p.grad for n, p in model.named_parameters()}}
    return [name for name, x in found.items() if x is not None and not x.isfinite().all()]


def second_derivatives(model: Any, seed: int = 0) -> float:
    """How far gradients that can be differentiated again are from the ordinary ones, as a share of the largest.

    AssertionError for second derivatives that are not finite.
    """
    import torch

    images = torch.rand(2, *model.image_shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()

    def gradient(again: bool) -> Any:
        torch.manual_seed(seed)
        return torch.autograd.grad(model(images).square().sum(), images, create_graph=again)[0]

    once, twice = gradient(False), gradient(True)
    if twice.requires_grad:  # a network of linear pieces has second derivatives all the same: of the square above
        twice.square().sum().backward()
        assert images.grad is not None and images.grad.isfinite().all(), "second derivatives are not finite"
    return float((once - twice.detach()).abs().max() / once.abs().max().clamp(min=1e-30))
