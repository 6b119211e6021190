"""Entropy of attention, and the least that scores of a given size can have.

Source: arXiv:2303.06296, where entropy near 0 comes before a training diverges.
"""

import math

import torch
from torch import Tensor, nn

from mereo.core import record
from mereo.errors import UsageError, check_positive
from mereo.inference.mode import evaluating


def attention_entropy(couplings: Tensor, mask: Tensor | None = None) -> Tensor:
    """-sum_s c_rs log c_rs of each receiver, in nats: 0 where it attends to one sender, log S where to all alike.

    Args:
        couplings: that sum to one over the senders, as `mereo.record` shows them.
        mask: bool, True = takes part; the others add nothing.

    Shapes: couplings (..., receivers, senders), mask broadcastable to it -> (..., receivers).

    Reference: arXiv:2303.06296, section 3.
    """
    shares = couplings if mask is None else couplings.masked_fill(~mask, 0)
    return torch.special.entr(shares.float() if shares.dtype in (torch.float16, torch.bfloat16) else shares).sum(-1)


def entropy_lower_bound(sigma: float, senders: int) -> float:
    """The least entropy of softmax attention to T senders whose scores have at most the length sigma.

    beta = exp(-s sqrt(T / (T - 1))),   log(1 + (T - 1) beta) + s sqrt(T (T - 1)) beta / (1 + (T - 1) beta)

    Args:
        sigma: s, at least the Euclidean length of each row of scores, such as |W_K W_Q^T| |X X^T| by spectral norms,
            times the factor of the scores.
        senders: T, at least 2.

    Reference: arXiv:2303.06296, theorem 3.1; the row (s sqrt((T - 1) / T), -s / sqrt(T (T - 1)), ...) attains it.
    """
    check_positive(senders=senders - 1)
    if not sigma >= 0:
        raise UsageError(f"sigma is {sigma}; it must be at least 0.")
    others, beta = senders - 1, math.exp(-sigma * math.sqrt(senders / (senders - 1)))
    return math.log1p(others * beta) + sigma * math.sqrt(senders * others) * beta / (1 + others * beta)


@torch.no_grad()
def layer_entropies(model: nn.Module, inputs: Tensor) -> dict[str, Tensor]:
    """The mean entropy of each head of every layer of attention, by the name of its coupling.

    Args:
        model: any that `mereo.record` sees; it runs in evaluation mode and is left as it was.
        inputs: for it, prepared.

    Shapes: -> (heads,) each.

    Raises:
        UsageError: for a model without couplings that are normalised over the senders.
    """
    with evaluating(model), record(model) as trace:
        model(inputs)
    names = [name for name in trace if trace.kinds[name] == "couplings" and trace.calls(name)[0].over == "senders"]
    if not names:
        raise UsageError(f"{type(model).__name__} has no couplings that sum to one over the senders.")
    return {name: attention_entropy(trace[name].to_dense()).mean((0, 2)) for name in names}
