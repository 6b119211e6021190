"""Suites of the generative room at sizes of a test: contenders agree, and what cannot be had is left out."""

import sys
from pathlib import Path

import pytest
import torch

from mereo.bench import Bench, Request, draw, get_suite
from mereo.bench.cases import parse_sizes
from mereo.bench.suite import Setting
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


def test_bessel():
    run = measured("bessel", "numbers=50")
    for dimension in (2, 64):
        forward, training = (statuses(run, mode, dimension=dimension) for mode in ("forward", "training"))
        assert set(forward.values()) == {"ok"} and ("torch.special" in forward) == (dimension == 2)
        assert {name for name, status in training.items() if status == "left out"} == {"together", "together float32"}
        assert {status for name, status in training.items() if "together" not in name} == {"ok"}
    errors = [m.gradient_error for m in run.measurements if m.gradient_error is not None]
    assert len(errors) == 5 and max(errors) < 1e-6


def test_bessel_without_scipy(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    run = measured("bessel", "numbers=5", "dimension=3")
    assert statuses(run, "forward")["scipy.special.ive"] == "left out"
    assert run.find("threads=1", "forward", "scipy.special.ive").note == "scipy is not installed"


def test_numbers_are_spread_over_four_decades():
    torch.manual_seed(0)
    kappa, dimension = get_suite("bessel").inputs(Setting({"numbers": 10_000, "dimension": 7}), "training")
    assert dimension == 7 and kappa.requires_grad and kappa.dtype == torch.float64
    assert kappa.min() >= 0.1 and kappa.max() <= 1000
    torch.testing.assert_close(kappa.detach().log10().mean().item(), 1.0, atol=0.05, rtol=0)


def test_a_contender_that_is_left_out_of_a_mode_does_not_spoil_the_picture():
    run = measured("bessel", "numbers=5,9", "dimension=3")
    assert draw(run, Path("lines.png")) and Path("lines.png").stat().st_size > 10_000
