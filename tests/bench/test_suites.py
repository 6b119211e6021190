"""Suites of the generative room at sizes of a test: contenders agree, and unavailable ones are left out."""

import pytest

from mereo.bench import Bench, Request, get_suite
from mereo.bench.cases import parse_sizes
from mereo.errors import UsageError


def measured(name, *sizes):
    request = Request(name, quick=True, seconds=1e-6, threads=(1,), memory=False, sizes=parse_sizes(sizes))
    return Bench(get_suite(name), request).measure()


def statuses(run, mode, **sizes):
    return {m.contender: m.status for m in run.measurements if m.mode == mode and sizes.items() <= m.sizes.items()}


def test_inversion():
    run = measured("inversion", "batch=3", "children=6", "parents=4", "dim=5")
    assert run.finished and {m.mode for m in run.measurements} == {"forward"}
    for task in ("free", "sphere"):
        assert statuses(run, "forward", task=task) == {"einsum": "ok", "invert": "ok"}
    routing = statuses(run, "forward", task="routing")
    assert {"einsum", "plain", "streamed", "fused"} <= set(routing)
    assert {routing[name] for name in ("einsum", "plain", "streamed")} == {"ok"}
    bounds = {m.sizes["task"]: m.flops for m in run.measurements}
    pairs = 3 * 6 * 4
    assert bounds["sphere"] == 4 * pairs * 25
    assert bounds["routing"] == 2 * pairs * 5 * (5 + 2 * 3 - 1)


def test_inversion_refuses_another_task():
    with pytest.raises(UsageError, match=r"task is 'spher'.*Did you mean 'sphere'"):
        measured("inversion", "task=spher")


@pytest.mark.parametrize("task", ["free", "sphere"])
def test_a_wrong_sweep_is_detected(task, monkeypatch):
    """The comparison of the suite can fail: halved responsibilities do."""
    from papers.kiefer_generative_capsules import inversion_suite as inversion

    def halved(problem):
        responsibilities, means = inversion.einsum_sweep(problem)
        return responsibilities / 2, means

    monkeypatch.setattr(inversion, "sweep", halved)
    run = measured("inversion", "batch=2", "children=4", "parents=3", "dim=3", f"task={task}")
    assert statuses(run, "forward") == {"einsum": "ok", "invert": "WRONG"}
