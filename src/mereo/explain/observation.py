"""One recorded pass of a model: inputs, outputs and couplings of each routing."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mereo.core import Capsules, Coupling, Trace, record
from mereo.errors import MereoError, UsageError
from mereo.inference.evaluate import normalise
from mereo.models import CapsuleClassifier


@dataclass(frozen=True)
class Exchange:
    """One pass through a module that holds a coupling: its positional inputs and its output."""

    module: nn.Module
    inputs: tuple[Any, ...]
    output: Tensor


@dataclass(frozen=True)
class Observation:
    """What a model did with a batch.

    Attributes:
        model: the model, unwrapped.
        capsules: poses (batch, classes, pose) and lengths (batch, classes).
        trace: couplings by module name.
        exchanges: the passes through the modules that hold them, by the coupling's name.
        class_coupling: name of the coupling that makes the class capsules.
    """

    model: CapsuleClassifier
    capsules: Capsules
    trace: Trace
    exchanges: dict[str, Exchange]
    class_coupling: str

    def class_row(self, classes: Tensor) -> Tensor:
        """The couplings of the senders of the class routing with one class an image, mean over heads.

        Shapes: classes (batch,) -> (batch, senders).
        """
        couplings = self.trace[self.class_coupling].mean(1)
        return couplings[torch.arange(len(classes), device=classes.device), classes]


def ready(model: CapsuleClassifier, images: Tensor) -> tuple[CapsuleClassifier, Tensor]:
    """The model, unwrapped, and images in [0, 1] on its device and of its type; UsageError for invalid ones."""
    model = getattr(model, "_orig_mod", model)
    if not isinstance(model, CapsuleClassifier):
        raise UsageError(f"model is {type(model).__name__}; it must be a capsule classifier, as create_model makes.")
    model.check_images(images)
    if not len(images):
        raise UsageError("images is an empty batch; give at least one image.")
    parameter = next(model.parameters())
    return model, images.to(parameter.device, parameter.dtype)


def normalised(model: CapsuleClassifier, images: Tensor) -> Tensor:
    """Images in [0, 1] as the model was trained to see them; the same where it has no `pretrained_cfg`."""
    cfg = getattr(model, "pretrained_cfg", None)
    return images if cfg is None else normalise(images, cfg["mean"], cfg["std"])


def check_lengths(lengths: Tensor) -> None:
    """MereoError unless all lengths are finite."""
    if not bool(lengths.isfinite().all()):
        raise MereoError("the lengths of the class capsules are not finite: the network's weights are damaged.")


def observe(model: CapsuleClassifier, images: Tensor) -> Observation:
    """Run the model once on images in [0, 1], in evaluation mode and without gradients, and record it.

    The images are normalised as the model's `pretrained_cfg` says (not at all where it has none) and moved to its
    device. Its mode, training or evaluation, is as before afterwards.

    Shapes: images (batch, channels, height, width).
    """
    model, inputs = ready(model, images)
    exchanges: dict[str, Exchange] = {}

    def keep(name: str) -> Callable[[nn.Module, tuple[Any, ...], Tensor], None]:
        def hook(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
            exchanges[name] = Exchange(module, inputs, output)

        return hook

    was_training = model.training
    model.eval()
    try:
        with ExitStack() as stack, torch.no_grad():
            trace = stack.enter_context(record(model))
            for name, module in model.named_modules():
                if isinstance(module, Coupling):
                    owner = model.get_submodule(name.rpartition(".")[0])
                    stack.callback(owner.register_forward_hook(keep(name)).remove)
            capsules = model.capsules(normalised(model, inputs))
    finally:
        model.train(was_training)
    check_lengths(capsules.activation)
    return Observation(model, capsules, trace, exchanges, f"{model.classifier}.coupling")


def chosen_classes(lengths: Tensor, classes: Tensor | None) -> Tensor:
    """The class to explain for each image: the requested one, else that of the longest capsule.

    Shapes: lengths (batch, classes) -> int64 (batch,).
    """
    if classes is None:
        return lengths.argmax(1)
    chosen = torch.as_tensor(classes, device=lengths.device)
    if chosen.shape != lengths.shape[:1] or chosen.dtype != torch.int64:
        raise UsageError(
            f"classes is {chosen.dtype} of shape {tuple(chosen.shape)}; it must be int64 of shape ({len(lengths)},)."
        )
    if not 0 <= int(chosen.min()) <= int(chosen.max()) < lengths.shape[1]:
        raise UsageError(f"classes has values outside 0 .. {lengths.shape[1] - 1}.")
    return chosen
