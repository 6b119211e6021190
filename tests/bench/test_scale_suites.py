"""Suites of attention that scales, at sizes of a test, and the exponents that are fitted to what they measure."""

from pathlib import Path

import pytest

from mereo.bench import Bench, Request, draw, get_suite
from mereo.bench.growth import exponent
from mereo.bench.plan import parse_sizes
from mereo.core.kernels import library


def measured(name, *sizes):
    request = Request(name, quick=True, seconds=1e-6, threads=(1,), memory=False, sizes=parse_sizes(sizes))
    return Bench(get_suite(name), request).measure()


def statuses(run, mode, **sizes):
    found = [m for m in run.measurements if m.mode == mode and sizes.items() <= m.sizes.items()]
    return {m.contender: m.status for m in found}


def test_exponents():
    assert exponent([(1.0, 3.0), (2.0, 12.0), (4.0, 48.0)]) == pytest.approx(2)
    assert exponent([(5.0, 1.0)]) is None and exponent([(5.0, 1.0), (5.0, 2.0)]) is None


@pytest.mark.skipif(library.missing is not None, reason=str(library.missing))
def test_neighborhood():
    run = measured("neighborhood", "batch=1", "tokens=36,64", "window=3", "dim=4", "dilation=1", "axes=2")
    for mode in ("forward", "training"):
        for tokens in (36, 64):
            found = statuses(run, mode, tokens=tokens)
            assert found == dict.fromkeys(("dense masked", "gathered", "tiles", "compiled"), "ok")
    tables = [table["title"] for table in run.tables]
    assert tables == ["Exponents of tokens, forward, 1 threads", "Exponents of tokens, training, 1 threads"]
    assert {row[0] for row in run.tables[0]["rows"]} == {"dense masked", "gathered", "tiles", "compiled"}
    assert draw(run, Path("growth.png")) and Path("growth.png").stat().st_size > 10_000


@pytest.mark.skipif(library.missing is not None, reason=str(library.missing))
def test_lightning():
    run = measured("lightning", "heads=2", "tokens=70,200", "dim=8")
    for mode in ("forward", "training"):
        found = statuses(run, mode, tokens=200)
        assert found.pop("causal SDPA") == "unchecked"
        assert found == dict.fromkeys(("loop over blocks", "parallel", "chunked", "compiled"), "ok")
    assert len(run.tables) == 2


def test_evit():
    pytest.importorskip("timm")
    run = measured("evit", "batch=1", "side=32")
    unchecked = dict.fromkeys(("keep 0.9", "keep 0.7", "keep 0.5"), "unchecked")
    assert statuses(run, "forward") == statuses(run, "training") == {"host": "ok", **unchecked}


@pytest.mark.skipif(library.missing is not None, reason=str(library.missing))
def test_capsule_layers():
    run = measured("capsule_layers", "batch=1", "types=2", "side=5")
    ways = dict.fromkeys(("compiled", "streamed", "stored votes", "plain"), "ok")
    expected = {**ways, "compiled, over positions": "unchecked"}
    assert statuses(run, "forward") == statuses(run, "training") == expected
