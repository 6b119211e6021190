"""Suites of attention that scales, at sizes of a test, and the exponents that are fitted to what they measure."""

from pathlib import Path

import pytest

from mereo.bench import Bench, Request, draw, get_suite
from mereo.bench.cases import parse_sizes
from mereo.bench.tables import exponent
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


@pytest.mark.long
@pytest.mark.skipif(library.missing is not None, reason=str(library.missing))
def test_clear():
    run = measured("clear", "tokens=36,64", "text=3", "dim=4", "radius=2,3")
    for mode in ("forward", "training"):
        found = statuses(run, mode, tokens=64)
        assert found.pop("full attention") == "unchecked"
        assert found == dict.fromkeys(("dense masked", "tiles", "compiled"), "ok")
    titles = [table["title"] for table in run.tables]
    assert titles[-2:] == [f"Time and operations by radius, {mode}, 1 threads" for mode in ("forward", "training")]
    radii = {row[0]: float(row[4]) for row in run.tables[-2]["rows"]}
    assert radii["2"] < radii["3"] < 100


@pytest.mark.long
@pytest.mark.skipif(library.missing is not None, reason=str(library.missing))
def test_lightning():
    run = measured("lightning", "heads=2", "tokens=70,200", "dim=8")
    for mode in ("forward", "training"):
        found = statuses(run, mode, tokens=200)
        assert found.pop("causal SDPA") == "unchecked"
        assert found == dict.fromkeys(("loop over blocks", "parallel", "chunked", "compiled"), "ok")
    assert len(run.tables) == 2


@pytest.mark.long
def test_evit():
    pytest.importorskip("timm")
    run = measured("evit", "batch=1", "side=32")
    unchecked = dict.fromkeys(("keep 0.9", "keep 0.7", "keep 0.5"), "unchecked")
    assert statuses(run, "forward") == statuses(run, "training") == {"host": "ok", **unchecked}


@pytest.mark.long
def test_clustered():
    run = measured("clustered", "heads=2", "tokens=64,100", "dim=8")
    for mode in ("forward", "training"):
        assert statuses(run, mode, tokens=100) == {"as written": "ok", "clusters": "ok", "causal SDPA": "unchecked"}
    assert run.tables[0]["columns"][-1] == "time in theory"
    assert {row[0]: row[-1] for row in run.tables[0]["rows"]}["clusters"] == "1.50"


def test_combiner():
    run = measured("combiner", "heads=2", "tokens=60,100", "dim=8")
    for mode in ("forward", "training"):
        found = statuses(run, mode, tokens=100)
        assert found.pop("as written") == found.pop("fixed") == "ok"
        others = ("logsparse", "axial_vertical", "axial_rowmajor", "axial_mixture", "causal SDPA")
        assert found == dict.fromkeys(others, "unchecked")


def test_choose():
    from mereo.bench.suites.choose import CHOICES

    assert len({choice.name for choice in CHOICES}) == len(CHOICES)
    run = measured("choose", "tokens=64", "dim=16", "heads=2")
    for mode in ("forward", "training"):
        found = statuses(run, mode, tokens=64)
        assert found.pop("multi-head") == "ok" and set(found.values()) == {"unchecked"}
        assert len(found) == len(CHOICES) - 1
    (table,) = (table for table in run.tables if table["title"] == "Which attention, 1 threads")
    assert [row[0] for row in table["rows"]] == [choice.name for choice in CHOICES]
    assert all(float(row[4]) > 0 and float(row[5]) > 0 for row in table["rows"])


@pytest.mark.skipif(library.missing is not None, reason=str(library.missing))
@pytest.mark.parametrize("form", ["all", "causal"])
def test_sea(form):
    run = measured("sea", "tokens=70,200", "dim=8", "columns=16", f"form={form}")
    for tokens in (70, 200):
        found = statuses(run, "forward", tokens=tokens)
        assert found == {"SEA": "ok", "SEA, mask over all keys": "ok", "SDPA": "unchecked"}
    assert {row[0] for row in run.tables[0]["rows"]} == {"SEA", "SEA, mask over all keys", "SDPA"}


@pytest.mark.skipif(library.missing is not None, reason=str(library.missing))
def test_sparsifiner():
    found = statuses(measured("sparsifiner", "batch=1", "tokens=17", "dim=24"), "forward")
    assert found.pop("dense") == "ok"
    assert set(found.values()) == {"unchecked"} and len(found) == 4
