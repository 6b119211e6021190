"""The plain baseline network of a comparison: residual or convolutional, of about the same size."""

import math
from collections.abc import Sequence
from importlib.util import find_spec

from mereo.errors import UsageError
from mereo.models.registry import is_model, library_of, outline
from mereo.training.compare import parse_variant
from mereo.training.option_values import show_size
from mereo.training.plan import Plan
from mereo.training.studies import Variant

SMALL_SIDE = 96
"""Images of at least this side go to networks that reduce them 32 times."""
FOR_SMALL = {
    "resnet20": 0.27e6, "resnet32": 0.46e6, "resnet44": 0.66e6, "resnet56": 0.85e6, "resnet110": 1.73e6,
    "torchvision:mobilenet_v3_small": 1.5e6, "torchvision:resnet18": 11.2e6,
}  # fmt: skip
FOR_LARGE = {
    "torchvision:shufflenet_v2_x0_5": 0.35e6, "torchvision:mobilenet_v3_small": 1.5e6, "timm:resnet10t": 4.9e6,
    "torchvision:resnet18": 11.2e6, "torchvision:resnet50": 23.5e6, "torchvision:resnet101": 42.5e6,
}  # fmt: skip
"""Networks with their parameters at ten classes."""


def is_plain(label: str) -> bool:
    """Whether a network of a comparison is a plain one already."""
    return library_of(label) is not None or label.partition(":")[0] in FOR_SMALL


def _available(name: str) -> bool:
    library = library_of(name)
    return is_model(name) if library is None else find_spec(library) is not None


def nearest_size(parameters: int, side: int) -> str:
    """The plain network whose number of parameters is nearest by ratio, for images of a side."""
    table = FOR_LARGE if side >= SMALL_SIDE else FOR_SMALL
    known = {name: count for name, count in table.items() if _available(name)}
    return min(known, key=lambda name: abs(math.log(known[name] / max(parameters, 1))))


def choose_plain(plans: Sequence[Plan], labels: Sequence[str], wanted: str) -> tuple[str, Variant] | None:
    """The plain network of a comparison, under the protocol of the first of the others.

    Args:
        plans: of the networks that are compared.
        labels: of these.
        wanted: "auto", "none", or a network as `parse_variant` takes it.

    Returns:
        Its label and variant; None if none is wanted, or if "auto" meets a plain network or another task than
        classification.
    """
    first = plans[0]
    if wanted == "none" or (wanted == "auto" and (any(map(is_plain, labels)) or first.task.name != "classification")):
        return None
    model = outline(first.config.model, **first.arguments)
    _, height, width = model.image_shape
    if wanted == "auto":
        wanted = nearest_size(sum(p.numel() for p in model.parameters()), max(height, width))
    label, variant = parse_variant(wanted, first.config.recipe)
    if variant.recipe != first.config.recipe:
        raise UsageError(f"plain is {wanted!r}, a recipe; give a network.")
    if label in labels:
        return None
    arguments = {"img_size": [height, width] if height != width else height, **variant.model_args}
    # A recipe states the loss and the arguments of its own network, not of this one.
    changes = {**variant.changes, "loss": "auto", "model_args": {}}
    size = show_size((height, width) if height != width else height)
    shown = label if "img_size" in variant.model_args else f"{label}{',' if variant.model_args else ':'}img_size={size}"
    return shown, Variant(changes, arguments, recipe=variant.recipe)
