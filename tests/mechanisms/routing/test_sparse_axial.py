"""Sparse axial routing: a slow reference, which capsules have an influence, sums of the couplings."""

import torch
from torch import Tensor

from mereo import record
from mereo.core.normalisers import entmax15
from mereo.mechanisms.routing import SparseAxialRouting

ROWS, COLUMNS, DIM, HEADS = 3, 4, 6, 2
SIZE = DIM // HEADS


def some() -> tuple[SparseAxialRouting, Tensor]:
    torch.manual_seed(0)
    return SparseAxialRouting(DIM, HEADS).double(), 2 * torch.randn(2, ROWS, COLUMNS, DIM, dtype=torch.float64)


@torch.no_grad()
def test_equals_the_equations() -> None:
    route, capsules = some()
    q, k, v = (capsules @ route.qkv.weight.T + route.qkv.bias).chunk(3, -1)
    summed = torch.zeros_like(v)
    for b in range(2):
        for h in range(HEADS):
            part = slice(h * SIZE, (h + 1) * SIZE)
            keys, queries, values = (x[b, ..., part] for x in (k, q, v))
            rows, columns = torch.zeros_like(values), torch.zeros_like(values)
            for y in range(ROWS):
                for x in range(COLUMNS):
                    fits = torch.stack([queries[y, x] @ keys[y, i] for i in range(COLUMNS)]) / SIZE**0.5
                    rows[y, x] = entmax15(fits, 0) @ values[y]
            for y in range(ROWS):
                for x in range(COLUMNS):
                    fits = torch.stack([queries[y, x] @ keys[i, x] for i in range(ROWS)]) / SIZE**0.5
                    columns[y, x] = entmax15(fits, 0) @ rows[:, x]
            for n in range(SIZE):
                fits = torch.stack([(queries[..., n] * keys[..., m]).sum() for m in range(SIZE)])
                share = entmax15(fits / (ROWS * COLUMNS) ** 0.5, 0)
                columns[..., n] += (values * share).sum(-1)
            summed[b, ..., part] = columns
    expected = summed @ route.proj.weight.T + route.proj.bias
    torch.testing.assert_close(route(capsules), expected)
    with record(route):
        torch.testing.assert_close(route(capsules), expected)


@torch.no_grad()
def test_rows_and_columns_see_only_themselves() -> None:
    route, capsules = some()
    q, k, v = (x.unflatten(3, (HEADS, SIZE)) for x in route.qkv(capsules).chunk(3, -1))
    others = torch.randn_like(v)
    for attended, axis in ((route.rows, 1), (route.columns, 2)):
        changed = [x.clone() for x in (q, k, v)]
        for x in changed:
            x.select(axis, 1).copy_(others.select(axis, 1))
        before, after = attended(q, k, v), attended(*changed)
        for line in range(v.shape[axis]):
            same = torch.equal(before.select(axis, line), after.select(axis, line))
            assert same == (line != 1)


@torch.no_grad()
def test_couplings_over_the_whole_map() -> None:
    route, capsules = some()
    with record(route) as trace:
        route(capsules)
    cells = torch.arange(ROWS * COLUMNS)
    together = {"along_rows": cells // COLUMNS, "along_columns": cells % COLUMNS}
    for name, line in together.items():
        couplings = trace[name]
        assert couplings.shape == (2, HEADS, len(cells), len(cells))
        torch.testing.assert_close(couplings.sum(3), torch.ones_like(couplings[..., 0]))
        assert (couplings[..., line[:, None] != line] == 0).all()
    sparse = trace["of_numbers"]
    assert sparse.shape == (2, HEADS, SIZE, SIZE) and (sparse == 0).any()
    torch.testing.assert_close(sparse.sum(3), torch.ones_like(sparse[..., 0]))
