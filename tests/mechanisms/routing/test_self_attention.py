"""Self-attention routing: worked numbers, the Gram form, reductions, symmetries, counts."""

from typing import Any

import pytest
import torch
from torch import Tensor

from mereo.core import record, squash_exponential
from mereo.errors import UsageError
from mereo.mechanisms.routing import SelfAttentionRouting

D = torch.float64
WORKED = torch.tensor([[[1, 0], [0, 1]], [[1, 0.5], [0.5, -1]], [[0.8, -0.2], [-1, 0.3]]], dtype=D)


def close(got: Tensor, expected: Any) -> None:
    torch.testing.assert_close(got, torch.tensor(expected, dtype=got.dtype), rtol=0, atol=1e-6)


def worked() -> tuple[SelfAttentionRouting, Tensor]:
    """Children that are the number 1, whose matrices are the votes."""
    module = SelfAttentionRouting(3, 2, 1, 2).double()
    module.weight.data = WORKED.transpose(0, 1).unsqueeze(2).contiguous()
    return module, torch.ones(1, 3, 1, dtype=D)


def test_worked_routing() -> None:
    module, children = worked()
    scores = []
    handle = module.coupling.register_forward_pre_hook(lambda _, inputs: scores.append(inputs[0]))
    with record(module) as trace:
        out = module(children)
    handle.remove()
    close(scores[0][0, 0], [[1.979899, 2.085965, 1.541493], [0.212132, -0.388909, 0.417193]])
    close(trace["coupling"][0, 0, 0], [0.854180, 0.922361, 0.754785])
    close(out[0], [[0.901702, 0.117515], [-0.182585, 0.125394]])
    summed = torch.einsum("rs,srd->rd", trace["coupling"][0, 0], WORKED)
    close(summed, [[2.380370, 0.310224], [-0.206395, 0.141746]])


def naive(module: SelfAttentionRouting, children: Tensor) -> Tensor:
    """With the Gram matrix of the votes of every parent."""
    votes = torch.einsum("bsd,rsde->brse", children, module.weight)
    gram = votes @ votes.transpose(-1, -2) / module.weight.shape[-1] ** 0.5
    couplings = gram.sum(-1).softmax(1) + module.log_prior
    return squash_exponential((couplings.unsqueeze(-1) * votes).sum(2))


def test_equals_the_gram_form_with_a_prior_added_after_the_softmax() -> None:
    torch.manual_seed(0)
    module = SelfAttentionRouting(6, 3, 4, 5).double()
    torch.nn.init.normal_(module.log_prior)
    torch.nn.init.normal_(module.weight)
    children = torch.randn(2, 6, 4, dtype=D)
    torch.testing.assert_close(module(children), naive(module, children))


def test_couplings_without_the_prior_sum_to_one_over_the_parents() -> None:
    torch.manual_seed(0)
    module = SelfAttentionRouting(6, 3, 4, 5)
    torch.nn.init.normal_(module.log_prior)
    with record(module) as trace:
        module(torch.randn(2, 6, 4))
    assert trace["coupling"].shape == (2, 1, 3, 6) and len(trace.steps("coupling")) == 1
    (call,) = trace.calls("coupling")
    torch.testing.assert_close(call.offset, module.log_prior)
    torch.testing.assert_close((call.couplings - module.log_prior).sum(-2), torch.ones(2, 1, 6))


def test_a_single_parent_gets_every_vote_whole() -> None:
    torch.manual_seed(0)
    module, children = SelfAttentionRouting(6, 1, 4, 5), torch.randn(2, 6, 4)
    votes = torch.einsum("bsd,rsde->brse", children, module.weight)
    torch.testing.assert_close(module(children), squash_exponential(votes.sum(2)))


def test_symmetries() -> None:
    torch.manual_seed(0)
    module = SelfAttentionRouting(6, 3, 4, 5).double()
    torch.nn.init.normal_(module.log_prior)
    children = torch.randn(2, 6, 4, dtype=D)
    before, weight, prior = module(children), module.weight.data, module.log_prior.data
    order, turn = torch.randperm(6), torch.linalg.qr(torch.randn(5, 5, dtype=D))[0]
    module.weight.data, module.log_prior.data = weight[:, order], prior[:, order]
    torch.testing.assert_close(module(children[:, order]), before)
    module.weight.data, module.log_prior.data = weight[[1, 2, 0]], prior[[1, 2, 0]]
    torch.testing.assert_close(module(children), before[:, [1, 2, 0]])
    module.weight.data, module.log_prior.data = torch.cat((weight[:2], weight[2:] @ turn)), prior
    torch.testing.assert_close(module(children), torch.cat((before[:, :2], before[:, 2:] @ turn), 1))


def test_gradients() -> None:
    torch.manual_seed(0)
    module = SelfAttentionRouting(3, 2, 2, 3).double()
    torch.nn.init.normal_(module.weight)
    names, parameters = zip(*module.named_parameters(), strict=True)
    children = torch.randn(2, 3, 2, dtype=D, requires_grad=True)

    def call(children: Tensor, *values: Tensor) -> Tensor:
        return torch.func.functional_call(module, dict(zip(names, values, strict=True)), (children,))

    assert torch.autograd.gradcheck(call, (children, *parameters))


def test_blank_input_has_finite_gradients() -> None:
    module, children = SelfAttentionRouting(6, 3, 4, 5), torch.zeros(2, 6, 4, requires_grad=True)
    out = module(children)
    out.sum().backward()
    assert (out == 0).all()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in (children, *module.parameters()))


def test_counts_and_start() -> None:
    torch.manual_seed(0)
    module = SelfAttentionRouting(16, 10, 8, 16)
    assert module.weight.numel() == 20_480 and module.log_prior.numel() == 160
    assert sum(p.numel() for p in module.parameters()) == 20_640
    assert (module.log_prior == 0).all()
    assert 0.038 < module.weight.std() < 0.041 and module.weight.abs().max() <= 2 * 0.0395285 / 0.87962566


def test_wrong_arguments() -> None:
    with pytest.raises(UsageError, match="receivers is 0"):
        SelfAttentionRouting(4, 0, 2, 2)
