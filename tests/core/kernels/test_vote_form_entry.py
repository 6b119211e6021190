"""Derivatives of the vote form from the library: loops and einsum in float64, edges, threads, gradients, who runs."""

from collections.abc import Iterator
from itertools import product

import pytest
import torch
from torch import Tensor

from mereo.core.kernels import library, votes
from mereo.core.kernels.votes import NAMES, agree, combine

pytestmark = pytest.mark.skipif(library.missing is not None, reason=str(library.missing))
D = torch.float64
# batch, senders, receivers, d_in, d_out: ones, odd ones, poses of half a vector and of more than one, more than a tile.
SIZES = [
    (1, 1, 1, 1, 1), (3, 1, 4, 3, 2), (2, 7, 1, 4, 5), (17, 9, 10, 8, 16), (5, 35, 3, 13, 40), (33, 50, 2, 8, 8),
    (16, 70, 10, 16, 16),
]  # fmt: skip
every_argument = pytest.mark.parametrize("wanted", NAMES)


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    """Memory that nobody wrote is NaN: what is read before it is written shows."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def shapes(sizes: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    B, S, R, d, E = sizes
    return {"c": (B, R, S), "u": (B, S, d), "W": (R, S, d, E), "v": (B, R, E)}


def derivative(wanted: str, given: dict[str, Tensor]) -> Tensor:
    return votes._derivative(wanted, *(None if name == wanted else given[name] for name in NAMES), False, 3)


def tensors(sizes: tuple[int, ...]) -> dict[str, Tensor]:
    return {name: torch.randn(shape) for name, shape in shapes(sizes).items()}


def check(given: dict[str, Tensor], wanted: str, rounding: float = 1e-5) -> None:
    expected = derivative(wanted, {name: x.double() for name, x in given.items()})
    got = derivative(wanted, given)
    assert got.dtype == torch.float32 and got.shape == expected.shape and got.is_contiguous()
    assert (got - expected).abs().max() <= rounding * expected.abs().max()


def test_loops() -> None:
    B, S, R, d, E = sizes = (2, 3, 2, 4, 5)
    given = tensors(sizes)
    c, u, W, v = (given[name].double() for name in NAMES)
    expected = {name: torch.zeros(shape, dtype=D) for name, shape in shapes(sizes).items()}
    for b, s, r, i, j in product(range(B), range(S), range(R), range(d), range(E)):
        expected["c"][b, r, s] += u[b, s, i] * W[r, s, i, j] * v[b, r, j]
        expected["u"][b, s, i] += c[b, r, s] * W[r, s, i, j] * v[b, r, j]
        expected["W"][r, s, i, j] += c[b, r, s] * u[b, s, i] * v[b, r, j]
        expected["v"][b, r, j] += c[b, r, s] * u[b, s, i] * W[r, s, i, j]
    for wanted in NAMES:
        torch.testing.assert_close(derivative(wanted, given).double(), expected[wanted], rtol=1e-5, atol=1e-5)


@every_argument
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_equals_einsum_in_double_precision(wanted: str, sizes: tuple[int, ...]) -> None:
    check(tensors(sizes), wanted)


@every_argument
def test_tensors_may_lie_anyhow(wanted: str) -> None:
    sizes = (3, 6, 4, 5, 8)
    turned = {name: torch.randn(shape[::-1]).permute(*range(len(shape))[::-1]) for name, shape in shapes(sizes).items()}
    expanded = {name: torch.randn(1, *shape[1:]).expand(shape) for name, shape in shapes(sizes).items()}
    for given in (turned, expanded):
        check(given, wanted)


@every_argument
@pytest.mark.parametrize("axis", range(5))
def test_nothing_to_sum_is_zero(wanted: str, axis: int) -> None:
    sizes = [2, 3, 4, 5, 6]
    sizes[axis] = 0
    got = derivative(wanted, tensors(tuple(sizes)))
    assert got.shape == shapes(tuple(sizes))[wanted] and (got == 0).all()


@every_argument
@pytest.mark.parametrize("size", [0.0, 1e-20, 1e10])
def test_zero_tiny_and_huge(wanted: str, size: float) -> None:
    given = {name: x * size for name, x in tensors((3, 20, 4, 5, 5)).items()}
    if size == 1e10:
        check(given, wanted)
    else:
        assert (derivative(wanted, given) == 0).all()


@pytest.mark.parametrize("wanted", "cuv")
def test_what_is_not_a_number_stays_so_in_its_image(wanted: str) -> None:
    given = tensors((5, 20, 4, 5, 6))
    for name in set("cuv") - {wanted}:
        given[name][2] = torch.nan
    got = derivative(wanted, given)
    assert got[2].isnan().all() and not got[[0, 1, 3, 4]].isnan().any()


@every_argument
def test_threads_change_nothing(wanted: str) -> None:
    given = tensors((40, 203, 10, 8, 16))
    one = derivative(wanted, given)
    torch.set_num_threads(3)
    try:
        assert torch.equal(derivative(wanted, given), one)
    finally:
        torch.set_num_threads(1)


def test_gradients_of_two_orders() -> None:
    given = [x.requires_grad_() for x in tensors((3, 9, 4, 5, 6)).values()]
    wide = [x.detach().double().requires_grad_() for x in given]

    def derivatives(c: Tensor, u: Tensor, W: Tensor, v: Tensor) -> list[Tensor]:
        value = (combine(c, u, W) * v).square().sum() + (agree(u, W, v) * c).square().sum()
        first = torch.autograd.grad(value, (c, u, W, v), create_graph=True)
        return [*first, *torch.autograd.grad(sum(x.square().sum() for x in first), (c, u, W, v))]

    for x, y in zip(derivatives(*given), derivatives(*wide), strict=True):
        assert x.dtype == torch.float32
        assert (x - y).abs().max() <= 1e-5 * y.abs().max()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # its own, inside opcheck
def test_the_operator_keeps_its_promises() -> None:
    c, u, W, v = (x.requires_grad_() for x in tensors((2, 7, 3, 4, 5)).values())
    for given in (("v", c, u, W, None), ("c", None, u, W, v), ("W", c, u, None, v), ("u", c, None, W, v)):
        torch.library.opcheck(torch.ops.mereo.vote_form.default, (*given, False, 3))


def test_compiles_and_exports() -> None:
    class Both(torch.nn.Module):
        def forward(self, c: Tensor, u: Tensor, W: Tensor) -> Tensor:
            return agree(u, W, combine(c, u, W))

    c, u, W, _ = tensors((2, 7, 3, 4, 5)).values()
    torch.compiler.reset()
    expected = Both()(c, u, W)
    assert torch.equal(torch.compile(Both(), fullgraph=True, backend="aot_eager")(c, u, W), expected)
    # A program of operators that need no mereo.
    program = torch.export.export(Both(), (c, u, W)).module()
    torch.testing.assert_close(program(c, u, W), expected)
    assert not any("mereo" in str(node.target) for node in program.graph.nodes)


def fail(*arguments: object) -> None:
    raise AssertionError("the wrong one ran")


def test_who_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    given = tensors((3, 9, 4, 5, 6))
    by_library = derivative("v", given)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "einsum", fail)
        assert torch.equal(derivative("v", given), by_library)
    with monkeypatch.context() as patch:
        patch.setattr(votes, "_vote_form", fail)
        for other in (torch.float64, torch.bfloat16):
            derivative("v", {name: x.to(other) for name, x in given.items()})
        combine(given["c"], given["u"], given["W"][:, 0])
    monkeypatch.setattr(votes, "_vote_form", None)
    torch.testing.assert_close(derivative("v", given), by_library, rtol=1e-5, atol=1e-5)
