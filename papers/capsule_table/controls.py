"""Controls of a capsule network: its couplings held uniform, and a linear layer in the place of its routing.

Both are networks of the catalogue under a name with a prefix, `uniform:rs_capsnet_small` and `linear:rs_capsnet_small`,
so that they are trained, saved and measured like any other.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from mereo.core import Coupling
from mereo.core.shapes import image_size
from mereo.errors import unknown
from mereo.measure.couplings import replace_couplings
from mereo.models.base import VisionModel
from mereo.models.entry import ModelEntry
from mereo.models.multi_scale_capsules import MultiScaleCapsules
from mereo.models.registry import LIBRARIES, MODELS, build, get_model_entry, is_model, library_of, register_library


class UniformCouplings:
    """A mixin for a class of networks that makes all its couplings uniform.

    c_rs <- the mean of c along the axis that is normalised, in training and in use; see `replace_couplings`.
    """

    registered_with_timm = False

    def forward(self, inputs: Tensor) -> Any:
        """The outputs with uniform couplings."""
        with replace_couplings(self, "uniform"):  # type: ignore[arg-type]
            return super().forward(inputs)  # type: ignore[misc]

    def capsules(self, images: Tensor) -> Any:
        """The class capsules with uniform couplings."""
        with replace_couplings(self, "uniform"):  # type: ignore[arg-type]
            return super().capsules(images)  # type: ignore[misc]


class _Reached(Exception):  # noqa: N818 - not an error
    """Carries the inputs of a layer."""

    def __init__(self, inputs: Any) -> None:
        super().__init__()
        self.inputs = inputs


def _stop_before(module: nn.Module, args: Any, kwargs: Any) -> None:
    raise _Reached((args, kwargs))


class LinearHead(VisionModel):
    """The encoder of a capsule network, and a linear layer on the inputs of its routing.

    scores = W features + b,   features = all numbers of the capsules of all scales, of the last maps if these are
    made without couplings, or else of the inputs of the first layer with couplings

    Args:
        network_args: arguments of the capsule network.

    Shapes: images (batch, in_chans, height, width) -> scores (batch, num_classes).
    """

    registered_with_timm = False
    usual_rate = 3e-3
    network_name = ""

    def __init__(
        self,
        num_classes: int = 10,
        in_chans: int = 1,
        img_size: int | tuple[int, int] = 28,
        *,
        network_args: Mapping[str, Any] = {},
    ) -> None:
        super().__init__()
        self.image_shape, self.num_classes = (in_chans, *image_size(img_size)), num_classes
        shape: dict[str, Any] = {"num_classes": num_classes, "in_chans": in_chans, "img_size": img_size}
        self.encoder = build(self.network_name, **shape, **network_args)
        self.first = _first_with_couplings(self.encoder)
        features = self.forward_features(torch.rand(_FEW, *self.image_shape))
        self.num_features = features.shape[1]
        parameters = list(self.encoder.parameters())
        gradients = torch.autograd.grad(features.sum(), parameters, allow_unused=True)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.requires_grad_(gradient is not None)
        self.reset_classifier(num_classes)

    def forward_features(self, images: Tensor) -> Tensor:
        """(batch, features): the inputs of the routing."""
        if isinstance(self.encoder, MultiScaleCapsules):
            return torch.cat([x.flatten(1) for x in self.encoder.patch_capsules(images).values()], 1)
        layer = nn.Identity() if self.first is None else self.encoder.get_submodule(self.first)
        hook = layer.register_forward_pre_hook(_stop_before, with_kwargs=True)
        try:
            read = self.encoder.forward_features(images)
        except _Reached as reached:
            read = reached.inputs
        finally:
            hook.remove()
        tensors = [x for x in tree_leaves(read) if isinstance(x, Tensor) and x.is_floating_point()]
        return torch.cat([x.flatten(1) for x in tensors], 1)

    def make_classifier(self) -> nn.Module:
        return nn.Linear(self.num_features, self.num_classes)


_FEW = 3
"""Images of a trial."""


def _first_with_couplings(model: VisionModel) -> str | None:
    """The name of the layer of the encoder that has couplings and runs first, or None.

    A layer is a module that takes whole images: routing that works on patches side by side belongs to its layer.
    """
    ran: list[str] = []

    def note(name: str, inputs: Any) -> None:
        tensors = [x for x in tree_leaves(inputs) if isinstance(x, Tensor)]
        if all(len(x) == _FEW for x in tensors if x.dim()):
            ran.append(name)

    hooks = [
        module.register_forward_pre_hook(
            lambda _, args, kwargs, name=name: note(name, (args, kwargs)), with_kwargs=True
        )
        for name, module in model.named_modules()
        if name and any(isinstance(part, Coupling) for part in module.modules()) and not isinstance(module, Coupling)
    ]
    with torch.no_grad():
        model.forward_features(torch.rand(_FEW, *model.image_shape))
    for hook in hooks:
        hook.remove()
    # A module runs before its parts: the innermost of those that begin together takes the least.
    inner = [name for name in ran if name.startswith(ran[0])]
    deepest = ran[0] if ran else None
    for name in inner[1:]:
        if not name.startswith(f"{deepest}."):
            break
        deepest = name
    return deepest


def _entry(name: str) -> ModelEntry:
    """The row of a network, which is not looked for among these controls."""
    if library_of(name) is None and not is_model(name):
        raise unknown("model", name, MODELS)
    return get_model_entry(name)


@cache
def _uniform(name: str) -> ModelEntry:
    entry = _entry(name)
    network: Any = entry.module

    def chosen(cls: Any, arguments: Mapping[str, Any]) -> Any:
        return _with_uniform(network.class_for(arguments))

    module = type(f"uniform:{name}", (_with_uniform(network),), {"class_for": classmethod(chosen)})
    return replace(entry, name=f"uniform:{name}", module=module, tiny={}, family=f"uniform:{name}")


@cache
def _with_uniform(network: Any) -> Any:
    return type(f"Uniform{network.__name__}", (UniformCouplings, network), {"__module__": network.__module__})


@cache
def _linear(name: str) -> ModelEntry:
    entry = _entry(name)
    network: Any = entry.module
    first = f"encoder.{network.first_conv}"
    own = {"network_name": name, "first_conv": first, "__module__": LinearHead.__module__}
    module = type(f"linear:{name}", (LinearHead,), own)
    title = f"The encoder of {name} with a linear head."
    return replace(
        entry, name=f"linear:{name}", module=module, summary=title, arguments={}, short={}, tiny={}, recipe=None,
        family=f"linear:{name}",
    )  # fmt: skip


def register_controls() -> None:
    """Let the catalogue answer to "uniform:NAME" and "linear:NAME"."""
    for prefix, entry in (("uniform", _uniform), ("linear", _linear)):
        if prefix not in LIBRARIES:
            register_library(prefix, entry)
