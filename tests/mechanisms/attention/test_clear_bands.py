"""CLEAR over several processes: equality with one process, and sizes that disagree."""

import os
import socket

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from mereo.errors import UsageError
from mereo.mechanisms.attention import clear_attention
from mereo.mechanisms.attention.local.clear_bands import band_of, clear_attention_bands, joined

CASES = [((9, 5), 2.5, 3), ((7, 4), 6, 2), ((6, 3), 1, 0), ((3, 8), 20, 1)]


def example(grid: tuple[int, int], text: int) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(2, 2, text + grid[0] * grid[1], dim, dtype=torch.float64) for dim in (4, 4, 3)]


def mine(tensors: list[Tensor], grid: tuple[int, int], text: int, rank: int, ranks: int) -> list[Tensor]:
    first, last = (text + row * grid[1] for row in band_of(grid[0], rank, ranks))
    return [torch.cat((x[:, :, :text], x[:, :, first:last]), 2) for x in tensors]


def work(rank: int, ranks: int, port: int) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    try:
        for grid, radius, text in CASES:
            tensors = example(grid, text)
            expected = clear_attention(*tensors, grid, radius, text_tokens=text)
            out = clear_attention_bands(*mine(tensors, grid, text, rank, ranks), grid, radius, text_tokens=text)
            torch.testing.assert_close(out, mine([expected], grid, text, rank, ranks)[0], rtol=0, atol=1e-12)
        q, k, v = mine(example((9, 5), 0), (9, 5), 0, rank, ranks)
        with pytest.raises(UsageError, match=r"process 1 has .*radius=3"):
            clear_attention_bands(q, k, v, (9, 5), 2 + (rank == 1))
        short = q if rank else q[:, :, 1:]
        with pytest.raises(UsageError, match=r"process 0 has not .* rows 0 to 2 .* 15 tokens"):
            clear_attention_bands(short, k, v, (9, 5), 2)
        with pytest.raises(UsageError, match=r"under torch\.no_grad"):
            clear_attention_bands(q.requires_grad_(), k, v, (9, 5), 2)
    finally:
        dist.destroy_process_group()


@pytest.mark.long
def test_three_processes_equal_one() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(work, (3, port), nprocs=3)


def test_parts_are_joined_exactly() -> None:
    scores, values = torch.randn(4, 9, dtype=torch.float64), torch.randn(9, 3, dtype=torch.float64)
    parts = (slice(0, 2), slice(2, 9))
    outputs = torch.stack([scores[:, p].softmax(-1) @ values[p] for p in parts])
    logs = torch.stack([scores[:, p].logsumexp(-1) for p in parts])
    torch.testing.assert_close(joined(outputs, logs), scores.softmax(-1) @ values)


def test_bands() -> None:
    assert [band_of(10, rank, 3) for rank in range(3)] == [(0, 3), (3, 6), (6, 10)]
    with pytest.raises(UsageError, match="3 processes for an image of 2 rows"):
        band_of(2, 0, 3)
