"""Tensor attention: loops in float64, worked numbers, equal forms, the polynomial and its bound, Match3, bad input."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import mereo
from mereo.core import Coupling
from mereo.core.kernels import tensor_attention as kernel
from mereo.errors import UsageError
from mereo.mechanisms.attention import TensorAttention, polynomial_error, tensor_attention

METHODS = pytest.mark.parametrize("method", ["auto", "exact", "streamed", "polynomial"])
EXACT = pytest.mark.parametrize("method", ["exact", "streamed"])


def sets(counts: tuple[int, ...] = (7, 5, 6), dim: int = 4, pose: int = 3, size: float = 1.0) -> list[Tensor]:
    """q, k1, v1, k2, v2, ... with entries in [-size, size]."""
    shapes = [(2, 3, counts[0], dim)]
    for count in counts[1:]:
        shapes += [(2, 3, count, dim), (2, 3, count, pose)]
    return [size * (2 * torch.rand(shape, dtype=torch.float64) - 1) for shape in shapes]


@EXACT
def test_worked_numbers(method: str) -> None:
    given = [[[1, 0], [0, 1]], [[1, 2], [0, 1]], [[1, 0], [2, 1]], [[1, 1], [2, 0]], [[1, 3], [0, 1]]]
    q, k1, v1, k2, v2 = (torch.tensor(x, dtype=torch.float32)[None, None] for x in given)
    expected = torch.tensor([[0.5731, 0.6282], [0.9448, 0.9339]])
    torch.testing.assert_close(tensor_attention(q, k1, v1, k2, v2, method=method)[0, 0], expected, rtol=0, atol=5e-5)
    coupling = Coupling("senders")
    with mereo.record(coupling) as trace:
        tensor_attention(q, k1, v1, k2, v2, coupling=coupling)
    shares = torch.tensor([[0.2589, 0.4269, 0.1571, 0.1571], [0.4269, 0.1571, 0.2589, 0.1571]])
    torch.testing.assert_close(trace[""][0, 0], shares, rtol=0, atol=5e-5)


@EXACT
def test_loops_and_gradients(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors, mask = sets(), torch.rand(2, 1, 7, 5) < 0.7
    mask[0, 0, 0] = False
    other = torch.rand(6) < 0.8
    results = []
    for block in (0, 1, 3, 5):
        leaves = [x.clone().requires_grad_() for x in tensors]
        q, k1, v1, k2, v2 = leaves
        if block:
            monkeypatch.setattr(kernel, "TOGETHER", block * 2 * 3 * 7 * 6)
            out = tensor_attention(*leaves, masks=(mask, other.view(1, 1, 1, 6)), method=method)
        else:
            rows = []
            for b, h, i in [(b, h, i) for b in range(2) for h in range(3) for i in range(7)]:
                pairs = [(j, k) for j in range(5) for k in range(6) if mask[b, 0, i, j] and other[k]]
                if not pairs:
                    rows.append(torch.zeros(3, dtype=torch.float64))
                    continue
                scores = torch.stack([(q[b, h, i] * k1[b, h, j] * k2[b, h, k]).sum() / 4 for j, k in pairs])
                rows.append(
                    sum(c * v1[b, h, j] * v2[b, h, k] for c, (j, k) in zip(scores.softmax(0), pairs, strict=True))
                )
            out = torch.stack(rows).view(2, 3, 7, 3)
        weights = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).view_as(out)
        results.append([out, *torch.autograd.grad((out * weights).sum(), leaves)])
    for found in results[1:]:
        for x, y in zip(found, results[0], strict=True):
            torch.testing.assert_close(x, y, rtol=1e-11, atol=1e-12)


def test_second_derivatives_of_the_streamed_form() -> None:
    leaves = [x.requires_grad_() for x in sets((3, 2, 3), 2, 2)]

    def second(method: str) -> list[Tensor]:
        out = tensor_attention(*leaves, method=method)
        first = torch.autograd.grad(out.square().sum(), leaves, create_graph=True)
        return list(torch.autograd.grad(sum(g.square().sum() for g in first), leaves))

    for x, y in zip(second("streamed"), second("exact"), strict=True):
        torch.testing.assert_close(x, y)


@EXACT
def test_ones_in_the_second_set_leave_plain_attention(method: str) -> None:
    q, k1, v1 = sets((7, 5))
    ones = torch.ones(2, 3, 4, 4, dtype=torch.float64), torch.ones(2, 3, 4, 3, dtype=torch.float64)
    out = tensor_attention(q, k1, v1, *ones, method=method)
    torch.testing.assert_close(out, F.scaled_dot_product_attention(q, k1, v1, scale=1 / 4), rtol=1e-12, atol=1e-12)


@EXACT
def test_neither_the_order_of_sets_nor_that_of_senders_matters(method: str) -> None:
    q, k1, v1, k2, v2 = sets()
    out = tensor_attention(q, k1, v1, k2, v2, method=method)
    torch.testing.assert_close(tensor_attention(q, k2, v2, k1, v1, method=method), out)
    order = torch.randperm(5)
    torch.testing.assert_close(tensor_attention(q, k1[:, :, order], v1[:, :, order], k2, v2, method=method), out)


def test_three_sets_of_keys() -> None:
    q, k1, v1, k2, v2, k3, v3 = tensors = sets((4, 3, 2, 3), 2, 2)
    masks = (None, torch.rand(2, 1, 1, 2) < 0.7, torch.rand(2, 1, 1, 3) < 0.7)
    masks[1][..., 0], masks[2][..., 0] = True, True
    scores = torch.einsum("bhid,bhjd,bhkd,bhld->bhijkl", q, k1, k2, k3) / 2
    there = masks[1].view(2, 1, 1, 1, 2, 1) & masks[2].view(2, 1, 1, 1, 1, 3)
    shares = scores.masked_fill(~there, -torch.inf).flatten(3).softmax(3).view_as(scores)
    expected = torch.einsum("bhijkl,bhje,bhke,bhle->bhie", shares, v1, v2, v3)
    for method in ("exact", "streamed"):
        out = tensor_attention(q, k1, v1, k2, v2, more=(k3, v3), masks=masks, method=method)
        torch.testing.assert_close(out, expected)
    near, bound = tensor_attention(
        q, k1, v1, k2, v2, None, "polynomial", 8, more=(k3, v3), masks=masks, return_bound=True
    )
    torch.testing.assert_close(near, expected, rtol=1e-5, atol=1e-5)
    assert bound == polynomial_error(*tensors, degree=8)


@pytest.mark.parametrize(("size", "largest"), [(0.5, (1e-8, 2e-12)), (1.0, (1e-4, 1e-6)), (1.5, (1e-2, 4e-3))])
def test_the_polynomial_stays_within_its_bound(size: float, largest: tuple[float, float]) -> None:
    tensors = sets((24, 24, 24), 3, 3, size)
    exact = tensor_attention(*tensors, method="exact")
    for degree in (2, 4, 8, 12):
        out, bound = tensor_attention(*tensors, method="polynomial", degree=degree, return_bound=True)
        error = (out - exact).abs().max().item()
        assert error <= bound + 1e-15 and bound == polynomial_error(*tensors, degree=degree)
    assert error < 1e-7
    features = kernel.monomials(tensors[0], 8)
    assert features.shape[-1] == math.comb(3 + 8, 8) == 165
    assert kernel.monomials(tensors[0], 4).shape[-1] == 35 and (features[..., 0] == 1).all()


def test_the_polynomial_is_taylors_and_has_its_gradients() -> None:
    q, k1, v1, k2, v2 = sets((3, 4, 2), 3, 2)
    scores = -0.7 * torch.einsum("bhid,bhjd,bhkd->bhijk", q, k1, k2)
    taylor = sum(scores**p / math.factorial(p) for p in range(5))
    expected = torch.einsum("bhijk,bhje,bhke->bhie", taylor / taylor.sum((3, 4), keepdim=True), v1, v2)
    torch.testing.assert_close(tensor_attention(q, k1, v1, k2, v2, scale=-0.7, method="polynomial"), expected)
    gradients = []
    for method in ("exact", "polynomial"):
        leaves = [x.clone().requires_grad_() for x in (q, k1, v1, k2, v2)]
        gradients.append(torch.autograd.grad(tensor_attention(*leaves, method=method, degree=8).sum(), leaves))
    for x, y in zip(*gradients, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-6)


def test_matches_of_three_by_weights_set_by_hand() -> None:
    modulus, beta = 10, 60.0
    x = torch.cat((torch.tensor([[1, 3, 4, 9, 9, 9]]), torch.randint(modulus, (199, 6))))
    angle = 2 * math.pi * x.double() / modulus
    C, S = angle.cos(), angle.sin()
    rows = [beta * torch.stack([C, -S, -S, -C], -1), *(
        torch.stack(parts, -1) for parts in ([C, S, C, S], [C, S, C, S], [C, C, S, S], [C, S, S, C])
    )]  # fmt: skip
    q, k1, v1, k2, v2 = (each.unsqueeze(1) for each in rows)
    out = tensor_attention(q, k1, v1, k2, v2, scale=1.0)[:, 0]
    mean = C * (out[..., 0] - out[..., 1]) - S * (out[..., 2] + out[..., 3])
    found = mean > (1 + math.cos(2 * math.pi / modulus)) / 2
    sums = x[:, :, None, None] + x[:, None, :, None] + x[:, None, None, :]
    truth = (sums % modulus == 0).flatten(2).any(2)
    assert found.numel() == 1200 and torch.equal(found, truth) and 0.1 < truth.float().mean() < 0.99
    alone = tensor_attention(*(each[:1, :, :4] for each in (q, k1, v1, k2, v2)), scale=1.0)[0, 0]
    mean = C[0, :4] * (alone[:, 0] - alone[:, 1]) - S[0, :4] * (alone[:, 2] + alone[:, 3])
    torch.testing.assert_close(mean, torch.tensor([0.8090, 1, 1, 0.8090], dtype=torch.float64), rtol=0, atol=5e-5)


def test_the_layer_records_pairs_and_is_causal_where_asked() -> None:
    layer, x = TensorAttention(12, 3, causal=True).eval(), torch.randn(2, 6, 12)
    with mereo.record(layer) as trace:
        out = layer(x)
    torch.testing.assert_close(out, layer(x))
    pairs = trace["coupling"].view(2, 3, 6, 6, 6)
    for i in range(6):
        assert (pairs[:, :, i, i + 1 :] == 0).all() and (pairs[:, :, i, :, i + 1 :] == 0).all()
    changed = x.clone()
    changed[:, 4] += 1
    torch.testing.assert_close(layer(changed)[:, :4], out[:, :4])


def test_memory_of_the_streamed_form_stays_below_all_scores() -> None:
    q, k1, v1, k2, v2 = (x[:1, :1].float().requires_grad_() for x in sets((64, 64, 64), 4, 4))
    saved: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x.numel()) or x, lambda x: x):
        tensor_attention(q, k1, v1, k2, v2, method="streamed").sum().backward()
    assert sum(saved) < 64 * 64 * 4


def test_scale_method_and_degree_may_follow_the_values() -> None:
    q, k1, v1, k2, v2 = sets(size=0.5)
    out = tensor_attention(q, k1, v1, k2, v2, 0.5, "polynomial", 2)
    torch.testing.assert_close(out, tensor_attention(q, k1, v1, k2, v2, scale=0.5, method="polynomial", degree=2))
    assert not torch.equal(out, tensor_attention(q, k1, v1, k2, v2, method="polynomial", degree=2))


@METHODS
def test_a_sample_without_any_pair_has_zeros_and_finite_gradients(method: str) -> None:
    layer, x = TensorAttention(8, 2, method=method), 0.5 * torch.randn(2, 5, 8)
    mask = torch.ones(2, 5, dtype=torch.bool)
    mask[1] = False
    out = layer(x, mask)
    out.sum().backward()
    assert (out[1] == 0).all()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
    alone = TensorAttention(8, 2, method=method)
    alone.load_state_dict(layer.state_dict())
    alone(x[:1]).sum().backward()
    for one, other in zip(alone.parameters(), layer.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


@METHODS
@pytest.mark.parametrize("counts", [(0, 5, 6), (7, 0, 6), (7, 5, 0), (0, 0, 0)])
def test_no_queries_and_no_senders(method: str, counts: tuple[int, int, int]) -> None:
    tensors = [x.requires_grad_() for x in sets(counts)]
    out, bound = tensor_attention(*tensors, method=method, return_bound=True)
    assert out.shape == (2, 3, counts[0], 3) and (out == 0).all() and bound == 0
    assert torch.equal(tensor_attention(*tensors, method=method), out)
    out.sum().backward()
    assert all((x.grad == 0).all() for x in tensors)
    no_samples = [x.detach()[:0] for x in sets()]
    assert tensor_attention(*no_samples, method=method).shape == (0, 3, 7, 3)


def test_the_polynomial_warns_where_nothing_bounds_its_error() -> None:
    tensors = [torch.randn(1, 2, 6, 4) for _ in range(5)]
    with pytest.warns(UserWarning, match="error has no bound"):
        out = tensor_attention(*tensors, method="polynomial")
    found, bound = tensor_attention(*tensors, method="polynomial", return_bound=True)
    assert torch.equal(found, out) and bound == math.inf
    tensor_attention(*(0.3 * x for x in tensors), method="polynomial")
    assert tensor_attention(*tensors, return_bound=True)[1] == 0


@pytest.mark.parametrize("degree", [2, 4, 8, 12])
@pytest.mark.parametrize("size", [1.0, 1e3, 1e10, 1e20, 1e38])
def test_the_polynomial_is_finite_for_inputs_of_any_size(degree: int, size: float) -> None:
    torch.manual_seed(0)
    q, k1, v1, k2, v2 = (torch.randn(1, 2, 6, 3) for _ in range(5))
    mask = torch.tensor([True, True, False, True, True, True]).view(1, 1, 1, 6)
    leaves = [x.requires_grad_() for x in (size * q, size * k1, v1, size * k2, v2)]
    out, bound = tensor_attention(*leaves, None, "polynomial", degree, masks=(mask, None), return_bound=True)
    out.sum().backward()
    assert out.isfinite().all() and bound == math.inf
    assert all(x.grad.isfinite().all() for x in leaves)


def test_large_and_small_entries_that_belong_together() -> None:
    """Scores are small, although the powers of single entries do not fit float32."""
    q, k1, v1, k2, v2 = (x.float() for x in sets())
    given = (1e8 * q, 1e-4 * k1, v1, 1e-4 * k2, v2)
    near, bound = tensor_attention(*given, method="polynomial", degree=8, return_bound=True)
    assert bound < 1e-2
    torch.testing.assert_close(near, tensor_attention(*given, method="exact"), rtol=1e-4, atol=1e-5)
    zeros = [x.double().requires_grad_() for x in (q, 0 * k1, v1, k2, v2)]
    gradients = [
        torch.autograd.grad(tensor_attention(*zeros, method=method).sum(), zeros) for method in ("exact", "polynomial")
    ]
    for x, y in zip(*gradients, strict=True):
        torch.testing.assert_close(x, y)


def test_bad_input() -> None:
    q, k1, v1, k2, v2 = sets()
    for given, words in [
        ((q, k1, v1, k2), "missing"),
        ((q, k1, v1, k2, v2, k2, v2), "scale is a tensor.*more="),
        ((q[..., :0], k1[..., :0], v1, k2[..., :0], v2), "dim of 0"),
        ((q, k1[..., :2], v1, k2, v2), "k1 "),
        ((q, k1, v1, k2[:, :, :2], v2), "k2 "),
        ((q[0], k1, v1, k2, v2), "q is"),
    ]:
        with pytest.raises((UsageError, TypeError), match=words):
            tensor_attention(*given)
    with pytest.raises(UsageError, match="more has 1 tensors"):
        tensor_attention(q, k1, v1, k2, v2, more=(k2,))
    with pytest.raises(UsageError, match="scale is nan"):
        tensor_attention(q, k1, v1, k2, v2, math.nan)
    with pytest.raises(UsageError, match="degree is 3"):
        tensor_attention(q, k1, v1, k2, v2, degree=3)
    with pytest.raises(UsageError, match="masks are 1 for 2 sets"):
        tensor_attention(q, k1, v1, k2, v2, masks=(None,))
    with pytest.raises(UsageError, match="a mask is"):
        tensor_attention(q, k1, v1, k2, v2, masks=(torch.ones(5, dtype=torch.int64), None))
    with pytest.raises(UsageError, match="differs between receivers"):
        tensor_attention(q, k1, v1, k2, v2, masks=(torch.ones(7, 5, dtype=torch.bool), None), method="polynomial")
    assert polynomial_error(*(100 * x for x in (q, k1, v1, k2, v2))) == math.inf
