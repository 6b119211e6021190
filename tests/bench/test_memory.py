"""Peak memory in a process of its own."""

from pathlib import Path

import pytest

from mereo.bench import Request, get_suite
from mereo.bench.cases import make_cases
from mereo.bench.memory import measure_peak
from mereo.runtime.memory import resident_peak, status

MIB = 2**20
HOLDER = """
import torch
from mereo.bench import Contender, Suite, Workload

def hold(x):
    held = torch.ones(int(x.shape[0]) * 2**18)
    return held[:1].clone()

SUITE = Suite(
    "holder", "keeps so many MiB", "(x)", {"mebibytes": 64},
    lambda setting, mode: (torch.zeros(setting.size("mebibytes")),),
    lambda setting: (Contender("holds", lambda mode: Workload(hold)),),
    lambda setting, mode: None,
    quick={"mebibytes": 1}, modes=("forward",), memory=("forward",),
)
"""


@pytest.fixture
def peak():
    Path("holder.py").write_text(HOLDER)
    request = Request("holder:SUITE", threads=(1,))
    (case,) = make_cases(get_suite("holder:SUITE"), request)

    def measure(limit=None, contender="holds"):
        return measure_peak(case, contender, "forward", request, limit)

    return measure


@pytest.mark.long
def test_a_known_amount_is_measured(peak):
    found = peak()
    assert not found.failure and found.allocator is None
    if found.by == "VmHWM":
        assert 60 * MIB <= found.resident <= 128 * MIB < found.process
    else:
        assert found.resident is not None


@pytest.mark.long
@pytest.mark.skipif(status("VmData") is None, reason="the system limits no memory")
def test_exceeding_a_limit_is_reported(peak):
    found = peak(limit=32 * MIB)
    assert found.resident is None and found.failure == "does not fit 32 MiB"


@pytest.mark.long
def test_a_process_that_fails_reports_the_reason(peak):
    assert "StopIteration" in peak(contender="nobody").failure


def test_in_this_process():
    held = []
    found, by = resident_peak(lambda: held.append(bytearray(32 * MIB)))
    assert found is None or by != "VmHWM" or found >= 30 * MIB
