"""The suites of attention over processes and of mixtures of heads, at sizes of a test."""

import pytest

from mereo.bench import Bench, Request, get_suite
from mereo.bench.cases import parse_sizes
from papers.unified_view.ring_processes import slowest
from papers.unified_view.suite import processes


@pytest.mark.long
def test_mixture_of_heads() -> None:
    pytest.importorskip("timm")
    request = Request("moh", quick=True, seconds=1e-6, threads=(1,), memory=False, sizes=parse_sizes(["side=32"]))
    run = Bench(get_suite("moh"), request).measure()
    assert {m.status for m in run.measurements} <= {"ok", "unchecked"}
    assert {m.contender for m in run.measurements} >= {"host", "50% of heads", "50% of heads, all computed"}


def test_a_process_has_its_share_of_the_elements() -> None:
    sizes = {"batch": 1, "heads": 2, "tokens": 96, "dim": 8}
    found = slowest(2, 1, sizes, True, "zigzag", 1)
    assert found["elements"] == 2 * (1 + 3) * 48 * 16 and found["forward"] > 0 < found["backward"]


def test_the_table_of_processes(monkeypatch) -> None:
    def measured(ranks, threads, sizes, causal, layout, repeats):
        return {"forward": 2.0 / ranks, "backward": 4.0 / ranks, "bytes": 2**20 * (1 + (ranks > 1)), "elements": 7.0}

    monkeypatch.setattr("papers.unified_view.suite.slowest", measured)
    setting = Bench(get_suite("ring"), Request("ring", quick=True)).cases[0].setting
    (table,) = processes(setting, True)
    assert len(table.rows) == 6 and len(table.columns) == len(table.rows[0])
    assert table.rows[0][:7] == ("2", "all pairs", "1.000", "2.000", "2.00", "2.0", "4.00")
