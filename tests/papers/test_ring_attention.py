"""The experiment on attention over processes: exact, counted, and the balance of causal work."""

import pytest

from papers.common.processes import run_processes
from papers.listing import EXPERIMENTS
from papers.unified_view.ring_attention import balance, check
from processes import needs_gloo


@needs_gloo
def test_errors_in_two_processes() -> None:
    for rows in run_processes(2, check, 24):
        assert len(rows) == 6
        assert all(row["output"] < 1e-12 and row["gradient"] < 1e-10 for row in rows)
    assert not EXPERIMENTS["ring_attention"].uses


def test_balance() -> None:
    assert balance(1024, 4, "contiguous") == pytest.approx(1.75, abs=0.01)
    assert balance(1024, 4, "zigzag") == pytest.approx(1, abs=0.01) == balance(1024, 64, "zigzag")
