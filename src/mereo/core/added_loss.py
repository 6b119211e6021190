"""Named losses that modules add to the training loss, such as the balance of routed heads."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mereo.core.squash import accumulation_type
from mereo.errors import UsageError, check_choice, check_finite, check_network, check_not_negative

ACROSS = ("sum", "mean")


class AddedLoss(nn.Module):
    """A term that the module holding it adds to the training loss.

    loss = loss of the task + sum over names of weight * (sum or mean over the terms of that name)

    In training, the module calls it with the term in its forward pass; `added_losses` collects the recorded terms.

    Args:
        name: under which the terms of all layers are put together, reported and weighted.
        loss_weight: factor in the loss.
        across: whether the terms of that name are summed, or their mean is taken.

    A subclass may record another value, and compute the term from it and the labels in `term`.
    """

    def __init__(self, name: str, loss_weight: float = 1.0, *, across: str = "sum") -> None:
        super().__init__()
        check_choice("across", across, ACROSS)
        check_finite(loss_weight=loss_weight)
        self.name, self.loss_weight, self.across = name, loss_weight, across
        self.recorded: Any = None

    def __getstate__(self) -> dict[str, Any]:
        # A copy drops the values of the last step, because their graph cannot be copied.
        return {**self.__dict__, "recorded": None}

    def forward(self, recorded: Any) -> None:
        if self.training:
            self.recorded = recorded

    def term(self, recorded: Any, labels: Tensor | None) -> Tensor | None:
        """The term, (), from the recorded value; None if it is not for labels of this kind."""
        term: Tensor = recorded
        return term

    def extra_repr(self) -> str:
        return f"{self.name!r}, loss_weight={self.loss_weight}"


def added_losses(model: nn.Module, labels: Tensor | None = None) -> dict[str, Tensor]:
    """Take the losses that the modules of a network added in its last forward pass, weighted, by name.

    In a training loop of your own: `loss = loss + sum(mereo.added_losses(model).values())`.

    Args:
        labels: of the images, for terms that depend on them; without labels these terms are left out.

    Shapes: () each. Empty in evaluation, and if the losses were taken already.
    """
    check_network(model)
    terms: dict[str, list[Tensor]] = {}
    factors: dict[str, tuple[float, str]] = {}
    for module in model.modules():
        if not isinstance(module, AddedLoss) or module.recorded is None:
            continue
        recorded, module.recorded = module.recorded, None
        term = module.term(recorded, labels) if module.training else None
        if term is not None:
            terms.setdefault(module.name, []).append(term.to(accumulation_type(term)))
            factors[module.name] = module.loss_weight, module.across
    summed = {}
    for name, each in terms.items():
        weight, across = factors[name]
        both = torch.stack(each)
        summed[name] = weight * (both.mean() if across == "mean" else both.sum())
    return summed


def loss_weights(model: nn.Module) -> dict[str, float]:
    """The weights of the losses that the modules of a network may add, by name."""
    return {module.name: module.loss_weight for module in model.modules() if isinstance(module, AddedLoss)}


def weigh_losses(model: nn.Module, weights: Mapping[str, float]) -> None:
    """Set the weights of the losses that the modules of a network add, in place.

    Args:
        weights: by name.

    Raises:
        UsageError: for the name of a term that the network does not add, and for a weight below 0.
    """
    known = loss_weights(model)
    for name, weight in weights.items():
        if name not in known:
            raise UsageError(f"loss_weights has {name!r}, and {type(model).__name__} adds {_listed(known)}.")
        check_finite(**{f"loss_weights of {name}": weight})
        check_not_negative(**{f"loss_weights of {name}": weight})
    for module in model.modules():
        if isinstance(module, AddedLoss) and module.name in weights:
            module.loss_weight = float(weights[module.name])


def _listed(names: Mapping[str, float]) -> str:
    return " and ".join(map(repr, names)) or "no losses; leave it out"
