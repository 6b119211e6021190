"""One watched pass of a model: inputs and outputs of each module with couplings, and the couplings."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from mereo.core import Capsules, Coupling, Grid, Trace, record
from mereo.core.observe import observables
from mereo.errors import UsageError
from mereo.explain.target import Target, resolve_target
from mereo.inference.evaluate import normalise
from mereo.models import VisionModel


@runtime_checkable
class OnMaps(Protocol):
    """A routing between maps of capsules; its output is the poses of the parents, or has them as `pose`."""

    def in_a_row(self, poses: Tensor, /) -> Tensor:
        """The capsules of a map as its couplings number them: (batch, capsules, pose)."""


@runtime_checkable
class Witnessed(Protocol):
    """A routing of fine and coarse parts in which one fine part decides the coupling of each coarse part."""

    def best_members(self, fine: Tensor, coarse: Tensor, samples: Tensor, receivers: Tensor) -> tuple[Tensor, Tensor]:
        """For one receiver of each sample: the numbers of those fine parts, and their scores."""


@dataclass(frozen=True)
class Exchange:
    """One pass through a module that holds a coupling: its positional inputs and its output.

    The output of a module that routes maps of capsules is the poses of the parents in a row, (batch, capsules, pose).
    """

    module: nn.Module
    inputs: tuple[Any, ...]
    output: Tensor


@dataclass(frozen=True)
class Observation:
    """One observed pass of a model over a batch.

    Attributes:
        model: the model, unwrapped.
        scores: of the classes, (batch, classes); for a network of another kind, its outputs.
        capsules: poses (batch, classes, pose) and activations (batch, classes); None for a network without capsules.
        trace: couplings by module name.
        exchanges: the passes through the modules that hold them, by the coupling's name.
        class_coupling: name of the coupling that makes the class capsules; empty for a network without capsules.
        image_shape: (channels, height, width) of the images.
    """

    model: VisionModel
    scores: Tensor
    capsules: Capsules | None
    trace: Trace
    exchanges: dict[str, Exchange]
    class_coupling: str
    image_shape: tuple[int, int, int]

    @property
    def grids(self) -> dict[str, Grid]:
        """Positions of the senders of each routing that has any, by its coupling's name.

        Attention, as in a backbone, is no routing: see `attention_layers`.
        """
        couplings = [name for name, kind in self.trace.kinds.items() if kind == "couplings"]
        routings = [name for name in couplings if name == self.class_coupling or self._votes(name)]
        places = {name: self.trace.calls(name)[-1].senders for name in routings}
        return {name: grid for name, grid in places.items() if grid is not None}

    def _votes(self, name: str) -> bool:
        """Whether a coupling is of a routing, whose senders vote."""
        return name in self.exchanges and hasattr(self.exchanges[name].module, "votes")

    def class_row(self, classes: Tensor) -> Tensor:
        """The couplings between the class routing's senders and one class for each image, mean over heads.

        Shapes: classes (batch,) -> (batch, senders).
        """
        couplings = self.trace[self.class_coupling].mean(1)
        return couplings[torch.arange(len(classes), device=classes.device), classes]


def class_coupling_of(model: VisionModel) -> str | None:
    """Name of the coupling that makes the class capsules; None if the classifier has no coupling."""
    head = model.get_submodule(model.classifier)
    names = [name for name, module in head.named_modules() if isinstance(module, Coupling)]
    return f"{model.classifier}.{names[-1]}" if names else None


def _owner(model: VisionModel, name: str) -> nn.Module:
    """The module that the coupling `name` works for: the one that makes its votes, or the one that holds it."""
    holder = name.rpartition(".")[0]
    above = model.get_submodule(holder.rpartition(".")[0])
    return above if isinstance(above, OnMaps) else model.get_submodule(holder)


def ready(model: VisionModel, images: Tensor) -> tuple[VisionModel, Tensor]:
    """The model, unwrapped, and images in [0, 1] on its device and of its type; UsageError for invalid ones."""
    model = getattr(model, "_orig_mod", model)
    if getattr(model, "input_kind", None) != "images":
        raise UsageError(f"model is {type(model).__name__}; it must be a VisionModel, as create_model makes.")
    if model.headless:
        raise UsageError("num_classes is 0: there are no scores to explain; call reset_classifier first.")
    model.check_images(images)
    if not len(images):
        raise UsageError("images is an empty batch; give at least one image.")
    parameter = next(model.parameters())
    return model, images.to(parameter.device, parameter.dtype)


def normalised(model: VisionModel, images: Tensor) -> Tensor:
    """Images in [0, 1] as the model was trained to see them; unchanged without `pretrained_cfg`."""
    cfg = getattr(model, "pretrained_cfg", None)
    return images if cfg is None else normalise(images, cfg["mean"], cfg["std"])


def observe(model: VisionModel, images: Tensor, *, target: Target | None = None) -> Observation:
    """Run the model once on images in [0, 1], in evaluation mode and without gradients, and keep what it computed.

    The images are normalised by the model's `pretrained_cfg` (not at all if it has none) and moved to its
    device. Its mode, training or evaluation, is as before afterwards.

    Args:
        target: what is explained; a function allows outputs that are no scores of classes.

    Shapes: images (batch, channels, height, width).
    """
    model, inputs = ready(model, images)
    exchanges: dict[str, Exchange] = {}

    def keep(name: str) -> Callable[[nn.Module, tuple[Any, ...], Tensor], None]:
        def hook(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            if isinstance(module, OnMaps):
                output = module.in_a_row(getattr(output, "pose", output))
            exchanges[name] = Exchange(module, inputs, output)

        return hook

    was_training = model.training
    model.eval()
    try:
        with ExitStack() as stack, torch.no_grad():
            trace = stack.enter_context(record(model))
            for name, module in observables(model).items():
                if isinstance(module, Coupling):
                    stack.callback(_owner(model, name).register_forward_hook(keep(name)).remove)
            prepared = normalised(model, inputs)
            capsules = model.capsules(prepared)
            scores = model(prepared) if capsules is None else capsules.activation
    finally:
        model.train(was_training)
    resolve_target(model, scores, target)
    class_coupling = "" if capsules is None else class_coupling_of(model) or ""
    channels, height, width = inputs.shape[1:]
    return Observation(model, scores, capsules, trace, exchanges, class_coupling, (channels, height, width))
