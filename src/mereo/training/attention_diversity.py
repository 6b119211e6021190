"""The attention diversification loss (ADL): the rows of attention of different tokens are pushed apart.

Source: Guo, Stutz, Schiele 2023, arXiv:2303.11126.
Cost: one more pass over the maps of attention; these must be made, so fused attention is off in training.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mereo.mechanisms.attention.borrowed  # noqa: F401  attention of other libraries has couplings too
from mereo.core import Coupling
from mereo.core.added_loss import AddedLoss
from mereo.core.observe import Call, observables
from mereo.core.record import NONE_THERE
from mereo.core.squash import accumulation_type
from mereo.data import Batch
from mereo.errors import UsageError, check_finite, check_not_negative
from mereo.tasks.base import Objective


def attention_diversification_loss(attention: Sequence[Tensor], threshold: float = 2.0) -> Tensor:
    """How similar the attention of each token is to the mean over tokens: between 0 and 1, the mean over layers.

    A the mean over heads,  a the mean over queries;  entries of up to threshold / N are set to 0;
    loss = mean_i cos(a, A_i)

    Args:
        attention: of each layer, as `mereo.record` shows it.
        threshold: in units of uniform attention.

    Shapes: (batch, heads, queries, keys) each -> (). A row without an entry above the threshold counts 0.

    Deviates: the released code loses the batch axis of a single image, and divides by the number of layers + 1e-6.

    Reference: arXiv:2303.11126, section 4.2.
    """
    check_not_negative(threshold=threshold)
    check_finite(threshold=threshold)
    if not len(attention) or any(each.dim() != 4 for each in attention):
        shapes = [tuple(each.shape) for each in attention]
        raise UsageError(f"attention is of shapes {shapes}; give (batch, heads, queries, keys) for each layer.")
    return torch.stack([_of_layer(each, threshold) for each in attention]).mean()


def _of_layer(attention: Tensor, threshold: float) -> Tensor:
    rows = attention.to(accumulation_type(attention)).mean(1)
    mean, least = rows.mean(1, keepdim=True), threshold / rows.shape[-1]
    rows, mean = (each.masked_fill(each <= least, 0) for each in (rows, mean))
    return F.cosine_similarity(mean, rows, dim=-1).mean()


class AttentionDiversity(nn.Module):
    """Add the attention diversification loss to each step of a training: see `Objective.regularisers`.

    Args:
        weight: of the loss, lambda.
        threshold: see `attention_diversification_loss`.
        layers: numbers of the couplings in the order of `mereo.record`; all by default.
        keep_prefix: whether the tokens before the patches are rows and columns like any other; left out by default.

    The loss is of attention over the senders with as many receivers as senders, so not of class attention; a map of
    windows is one map for each window.
    """

    def __init__(
        self,
        weight: float = 1.0,
        threshold: float = 2.0,
        layers: Sequence[int] | None = None,
        *,
        keep_prefix: bool = False,
    ) -> None:
        super().__init__()
        check_not_negative(weight=weight, threshold=threshold)
        check_finite(weight=weight, threshold=threshold)
        self.threshold, self.layers, self.keep_prefix = threshold, layers, keep_prefix
        self.added = AddedLoss("attention_diversity", weight)
        self._found: list[Tensor] = []
        self._prefix = 0

    def chosen(self, model: nn.Module) -> list[Coupling]:
        """The couplings of `layers`; UsageError for a model without attention."""
        found = [each for each in observables(model).values() if isinstance(each, Coupling) and each.over == "senders"]
        if not found:
            raise UsageError(f"model is {type(model).__name__} without attention over the senders; {NONE_THERE}.")
        if self.layers is None:
            return found
        if not self.layers or not all(-len(found) <= number < len(found) for number in self.layers):
            raise UsageError(f"layers is {self.layers!r}, and the model has {len(found)} layers of attention.")
        return [found[number] for number in self.layers]

    def forward(
        self, objective: Objective, step: Callable[[Batch], tuple[Tensor, Any]], batch: Batch
    ) -> tuple[Tensor, Any]:
        self._found, self._prefix = [], getattr(objective.model, "num_prefix_tokens", 0)
        with ExitStack() as stack:
            for coupling in self.chosen(objective.model):
                coupling.watch(self)
                stack.callback(coupling.unwatch, self)
            outputs = step(batch)
        if self._found:
            self.added(torch.stack(self._found).mean())
        self._found = []
        return outputs

    # --- what the couplings call ------------------------------------------------------------------------------------

    def scores(self, call: Call) -> Tensor:
        return call.scores

    def couplings(self, call: Call) -> Tensor:
        assert call.couplings is not None
        attention, first = call.couplings, 0
        queries, keys = attention.shape[-2:]
        if not self.keep_prefix and call.tiles is None and self._prefix < keys:
            first = self._prefix
        if queries == keys and keys > 1:
            self._found.append(_of_layer(attention[..., first:, first:], self.threshold))
        return attention

    def signal(self, value: Tensor, kind: str) -> Tensor:
        return value
