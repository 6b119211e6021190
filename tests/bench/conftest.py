"""Small suites, and a clock that moves only when a test moves it."""

import sys

import pytest
import torch

from mereo.bench.counting import Rates
from mereo.bench.results import Measurement, Run
from mereo.bench.suite import Contender, Setting, Suite, Work, Workload
from mereo.bench.timing import Clock, Quartiles


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    """Modules that a test writes are importable there, and forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MEREO_DATA", raising=False)
    before, threads = set(sys.modules), torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(sys.modules[name].__file__):
            del sys.modules[name]


@pytest.fixture(autouse=True)
def _known_machine(monkeypatch):
    """Probing the machine takes longer than all else; test_machine.py does it once."""
    monkeypatch.setattr("mereo.bench.runner.probe", lambda *sizes, **how: Rates(1e9, 1e9))


class FakeClock:
    """Wall time passes when a test moves it; CPU time twice as fast."""

    def __init__(self):
        self.now = 0.0
        self.clock = Clock(wall=lambda: self.now, cpu=lambda: 2 * self.now)

    def pass_time(self, seconds):
        self.now += seconds


@pytest.fixture
def fake():
    return FakeClock()


def product(x, w):
    return x @ w


def make_suite(*others, **changes):
    """A matrix product: the reference, and contenders (name, function)."""

    def inputs(setting, mode):
        shape = setting.size("batch"), setting.size("wide")
        training = mode == "training"
        return torch.randn(shape).requires_grad_(training), torch.randn(shape[1], 3).requires_grad_(training)

    def contenders(setting: Setting):
        pairs = [("product", product), *others]
        return tuple(Contender(name, lambda mode, f=function: Workload(f)) for name, function in pairs)

    def work(setting, mode):
        return Work(6.0 * setting.size("batch") * setting.size("wide"), 4.0 * setting.size("wide"))

    fields = {"name": "small", "summary": "a product", "takes": "(x, w)", "sizes": {"batch": 4, "wide": 8}}
    fields |= {"inputs": inputs, "contenders": contenders, "work": work, "threads": (1,), "memory": ()}
    return Suite(**fields | changes)


@pytest.fixture
def suite():
    return make_suite


@pytest.fixture
def run_of():
    """A hand-made run: contender -> (low, median, high) milliseconds."""

    def make(times, *, name="small", created="then", **facts):
        machine = {"processor": "P", "cores": 2, "device": "cpu", "torch": "2", "variables": {}, "load": None}
        machine |= {"cpu_capability": "-", "system": "-", "python": "3", "mereo": "0", "commit": None}
        run = Run(name, created, machine | facts, {}, 1e-4, {"1": {"matmul": 1e9, "copy": 1e9}})
        for contender, (low, median, high) in times.items():
            quartiles = Quartiles(median / 1e3, low / 1e3, high / 1e3, 5)
            run.measurements.append(
                Measurement("threads=1", {"batch": 4}, "", 1, "training", contender, "contender", next(iter(times)),
                            wall=quartiles, cpu=quartiles, flops=1e6, bytes=1e3)
            )  # fmt: skip
        run.finished = True
        return run

    return make
