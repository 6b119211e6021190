"""The compiled pass over kept columns, against loops, for every instruction set that it was compiled for."""

import math

import pytest
import torch

from mereo.core.kernels import column_attention as module
from mereo.core.kernels import library

pytestmark = pytest.mark.skipif(library.missing is not None, reason=str(library.missing))


@pytest.mark.parametrize(
    ("queries", "keys", "dim", "pose", "columns"),
    [(5, 5, 4, 4, 3), (3, 19, 7, 9, 4), (6, 40, 33, 17, 64), (1, 1, 1, 1, 1)],
)
def test_it_equals_its_loops(queries: int, keys: int, dim: int, pose: int, columns: int) -> None:
    generator = torch.Generator().manual_seed(queries)
    q, k, v = (torch.randn(2, 3, n, d, generator=generator) for n, d in ((queries, dim), (keys, dim), (keys, pose)))
    kept = torch.rand(2, 3, queries, columns, generator=generator) < 0.5
    lengths = torch.randint(0, keys + 1, (2, queries), generator=generator)
    weight = torch.rand(2, 3, queries, generator=generator)
    out = module.column_attention(q, k, v, kept, lengths, weight, 0.3)
    for b in range(2):
        for h in range(3):
            for i in range(queries):
                n = int(lengths[b, i])
                here = [j for j in range(n) if kept[b, h, i, max(math.floor((j + 0.5) / n * columns - 1e-4), 0)]]
                expected = torch.zeros(pose, dtype=torch.float64)
                if here:
                    shares = (0.3 * k[b, h, here].double() @ q[b, h, i].double()).softmax(0)
                    expected = weight[b, h, i] * (shares @ v[b, h, here].double())
                torch.testing.assert_close(out[b, h, i].double(), expected, atol=1e-5, rtol=1e-5)


def test_all_instruction_sets_and_numbers_of_threads_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = torch.randn(3, 1, 2, 600, 24)
    kept, weight = torch.rand(1, 2, 600, 32) < 0.5, torch.ones(1, 2, 600)
    given = (q, k, v, kept, torch.arange(1, 601).unsqueeze(0), weight, 0.2)
    expected, best = module.column_attention(*given), module._run
    before = torch.get_num_threads()
    torch.set_num_threads(2 if before == 1 else 1)
    try:
        assert torch.equal(module.column_attention(*given), expected)
    finally:
        torch.set_num_threads(before)
    for level in range(library._library.mereo_isa()):
        monkeypatch.setattr(module, "_run", best.at_level(level))
        torch.testing.assert_close(module.column_attention(*given), expected, atol=1e-5, rtol=1e-5)


def test_huge_inputs_give_finite_outputs() -> None:
    q, k, v = 1e18 * torch.randn(3, 1, 1, 9, 8)
    kept, weight = torch.ones(1, 1, 9, 4, dtype=torch.bool), torch.ones(1, 1, 9)
    assert module.column_attention(q, k, v, kept, torch.full((1, 9), 9), weight, 1.0).isfinite().all()


def test_when_it_fallback_reason() -> None:
    x = torch.randn(1, 1, 2, 2)
    assert module.cannot_run(x) is None
    assert "float32" in str(module.cannot_run(x.double()))
    assert "gradient" in str(module.cannot_run(x.requires_grad_()))
    with torch.no_grad():
        assert module.cannot_run(x) is None
