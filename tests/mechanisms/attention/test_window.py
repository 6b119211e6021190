"""Window attention against loops over windows and cells."""

import pytest
import torch
from torch import Tensor

import mereo
from mereo.errors import UsageError
from mereo.mechanisms.attention.local.window import WindowAttention


def by_loops(attention: WindowAttention, maps: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs and couplings (heads, cells, cells) of one map, cell by cell; cells of the padding are zeros."""
    rows, columns, dim = maps.shape
    (down, across), heads = attention.window_size, attention.num_heads
    size = dim // heads
    out, couplings = torch.zeros_like(maps), maps.new_zeros(heads, rows * columns, rows * columns)

    def projected(y: int, x: int) -> Tensor:
        cell = maps[y, x] if y < rows and x < columns else maps.new_zeros(dim)
        return (attention.qkv.weight @ cell + attention.qkv.bias).view(3, heads, size)

    for y in range(rows):
        for x in range(columns):
            window = [(y // down * down + i, x // across * across + j) for i in range(down) for j in range(across)]
            merged = []
            for head in range(heads):
                query = projected(y, x)[0, head]
                fits = torch.stack([torch.dot(query, projected(*cell)[1, head]) / size**0.5 for cell in window])
                shares = fits.softmax(0)
                values = torch.stack([projected(*cell)[2, head] for cell in window])
                merged.append(shares @ values)
                for share, (i, j) in zip(shares, window, strict=True):
                    if i < rows and j < columns:
                        couplings[head, y * columns + x, i * columns + j] = share
            out[y, x] = attention.proj.weight @ torch.cat(merged) + attention.proj.bias
    return out, couplings


@pytest.mark.parametrize(("size", "shape"), [((2, 3), (4, 3)), ((3, 2), (4, 5)), ((4, 4), (2, 3))])
def test_outputs_and_couplings_of_each_cell(size: tuple[int, int], shape: tuple[int, int]) -> None:
    attention = WindowAttention(4, 2, size).double()
    maps = torch.randn(1, *shape, 4, dtype=torch.float64)
    expected, couplings = by_loops(attention, maps[0])
    torch.testing.assert_close(attention(maps)[0], expected)
    with mereo.record(attention) as trace:
        torch.testing.assert_close(attention(maps)[0], expected)
    torch.testing.assert_close(trace["coupling"][0], couplings)


def test_a_window_as_large_as_the_map_is_multi_head_attention() -> None:
    attention = WindowAttention(8, 2, 3).double()
    plain = mereo.mechanisms.attention.MultiHeadAttention(8, 2).double()
    for part, weight, bias in zip(
        (plain.query, plain.key, plain.value),
        attention.qkv.weight.chunk(3),
        attention.qkv.bias.chunk(3),
        strict=True,
    ):
        part.load_state_dict({"weight": weight, "bias": bias})
    plain.proj.load_state_dict(attention.proj.state_dict())
    maps = torch.randn(2, 3, 3, 8, dtype=torch.float64)
    torch.testing.assert_close(attention(maps).flatten(1, 2), plain(maps.flatten(1, 2)))


def test_cells_of_a_window_may_change_places_and_others_see_nothing() -> None:
    attention = WindowAttention(4, 1, 2).double()
    maps = torch.randn(1, 4, 4, 4, dtype=torch.float64)
    swapped = maps.clone()
    swapped[:, :2, :2] = maps[:, :2, :2].flip(1)
    expected = attention(maps)
    expected[:, :2, :2] = expected[:, :2, :2].flip(1)
    torch.testing.assert_close(attention(swapped), expected)
    across = maps[:, [0, 2, 1, 3]]  # rows change windows
    assert not torch.allclose(attention(across), attention(maps)[:, [0, 2, 1, 3]])


def test_wrong_arguments() -> None:
    with pytest.raises(UsageError, match="dim is 6 and num_heads 4"):
        WindowAttention(6, 4)
    with pytest.raises(UsageError, match="window_size is 0"):
        WindowAttention(6, 2, 0)
