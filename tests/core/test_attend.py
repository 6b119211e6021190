"""attend: the fused path equals the plain one in outputs and gradients, and steps aside when it must."""

import pytest
import torch

from mereo.core import Causal, Coupling, record
from mereo.core.kernels import attention
from mereo.core.kernels.attention import attend
from mereo.errors import UsageError


def qkv(dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    torch.manual_seed(0)
    shapes = ((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 6))
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("few", [0, 2**18], ids=["many pairs", "few pairs"])
def test_fused_equals_plain(few: int, masked: bool, scale: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "FEW_PAIRS", few)
    mask = None
    if masked:
        mask = torch.rand(2, 1, 5, 7) < 0.6
        mask[0, 0, 2] = False
    results = []
    for method in ("sdpa", "plain"):
        inputs = qkv()
        out = attend(*inputs, Coupling("senders"), mask=mask, scale=scale, method=method)
        results.append((out, *torch.autograd.grad(out.square().sum(), inputs)))
    for fused, plain in zip(*results, strict=True):
        torch.testing.assert_close(fused, plain, rtol=1e-10, atol=1e-10)
    if masked:
        assert (results[0][0][0, :, 2] == 0).all()


def test_plain_is_softmax_of_scaled_inner_products() -> None:
    q, k, v = qkv()
    expected = (q @ k.transpose(-1, -2) / 2).softmax(-1) @ v
    torch.testing.assert_close(attend(q, k, v, Coupling("senders"), method="plain"), expected)


def test_auto_uses_the_plain_path_while_watched() -> None:
    q, k, v = qkv()
    coupling = Coupling("senders")
    with record(coupling) as trace:
        attend(q, k, v, coupling)
        with pytest.raises(UsageError, match=r"method is 'sdpa'"):
            attend(q, k, v, coupling, method="sdpa")
    assert trace[""].shape == (2, 3, 5, 7)


@pytest.mark.parametrize("coupling", [Coupling("receivers"), Coupling("senders", "sparsemax")])
def test_auto_uses_the_plain_path_for_other_couplings(coupling: Coupling) -> None:
    q, k, v = qkv()
    assert torch.equal(attend(q, k, v, coupling), attend(q, k, v, coupling, method="plain"))
    with pytest.raises(UsageError, match="method is 'sdpa'"):
        attend(q, k, v, coupling, method="sdpa")


def test_unknown_method() -> None:
    with pytest.raises(UsageError, match=r"method is 'spda'"):
        attend(*qkv(), Coupling("senders"), method="spda")


@pytest.mark.parametrize("case", ["plain", "masked", "causal", "biased", "one tensor"])
def test_second_derivatives_of_the_fused_call_are_those_of_the_plain_one(case: str) -> None:
    q, k, v = qkv()
    mask, coupling, bias = None, Coupling("senders"), None
    if case == "masked":
        mask = torch.rand(2, 1, 5, 7) < 0.6
        mask[0, 0, 2] = False
    elif case == "causal":
        q, coupling = torch.randn(2, 3, 7, 4, dtype=q.dtype, requires_grad=True), Coupling("senders", topology=Causal())
    elif case == "biased":
        bias = torch.randn(3, 5, 7, dtype=q.dtype, requires_grad=True)
    elif case == "one tensor":
        q = k = v
    given = [q, k, v] if bias is None else [q, k, v, bias]
    results = []
    for method in ("sdpa", "plain"):
        out = attend(q, k * 2, v, coupling, mask=mask, bias=bias, method=method)
        once = torch.autograd.grad(out.square().sum(), given, retain_graph=True)
        first = torch.autograd.grad(out.square().sum(), given, create_graph=True)
        torch.testing.assert_close(first, once)
        results.append((*first, *torch.autograd.grad(sum(x.square().sum() for x in first), given)))
    for fused, plain in zip(*results, strict=True):
        torch.testing.assert_close(fused, plain, rtol=1e-9, atol=1e-9)


def test_a_scale_that_is_no_number() -> None:
    with pytest.raises(UsageError, match="scale is nan"):
        attend(*qkv(), Coupling("senders"), scale=float("nan"))
