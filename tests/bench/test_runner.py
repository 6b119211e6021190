"""The harness on small suites: marks, plans, contenders from outside."""

from pathlib import Path

import pytest
import torch

from mereo.bench import SUITES, Bench, Request, get_suite, tables_of
from mereo.bench.cases import compiled, contenders_of, load_callable, make_cases, parse_sizes
from mereo.bench.suite import Contender, Setting, UnavailableError, Workload
from mereo.bench.tables import case_table
from mereo.errors import UsageError
from papers import listing

FAST = Request("small", quick=True, seconds=1e-6, memory=False)


def measured(suite, request=FAST):
    return Bench(suite, request).measure()


def cell(run, contender, column, mode="training"):
    table = next(t for t in tables_of(run) if t.title.endswith(mode))
    row = next(r for r in table.rows if r[0] == contender)
    return row[next(i for i, name in enumerate(table.columns) if name.startswith(column))]


def test_right_and_wrong_contenders(suite):
    run = measured(suite(("again", lambda x, w: torch.einsum("bi,io->bo", x, w)), ("halved", lambda x, w: x @ w / 2)))
    assert run.finished and len(run.measurements) == 6
    assert cell(run, "product", "vs") == "1"
    assert "x" in cell(run, "again", "vs")
    assert cell(run, "halved", "vs") == "WRONG"
    wrong = run.find("threads=1", "training", "halved")
    assert wrong.status == "WRONG" and wrong.output_error == pytest.approx(0.5) and wrong.wall is not None
    assert not wrong.trusted and run.find("threads=1", "training", "again").trusted


def test_detached_gradients_are_wrong_only_in_training(suite):
    run = measured(suite(("detached", lambda x, w: x.detach() @ w + 0 * x.sum())))
    assert run.find("threads=1", "forward", "detached").status == "ok"
    assert run.find("threads=1", "training", "detached").status == "WRONG"


def test_the_others_go_on_when_one_fails(suite):
    def unavailable(x, w):
        raise UnavailableError("needs something that is not here")

    def broken(x, w):
        raise KeyError("some part")

    run = measured(suite(("absent", unavailable), ("broken", broken), ("good", lambda x, w: x @ w)))
    assert [m.status for m in run.measurements[:4]] == ["ok", "left out", "failed", "ok"]
    assert "needs something" in cell(run, "absent", "note")
    assert "some part" in cell(run, "broken", "note")
    assert cell(run, "broken", "vs") == "failed"


def test_nothing_is_compared_when_the_reference_fails(suite):
    def contenders(setting):
        def fail(*inputs):
            raise RuntimeError("no")

        return Contender("reference", lambda mode: Workload(fail)), Contender("other", lambda mode: Workload(torch.mm))

    run = measured(suite(contenders=contenders))
    assert run.find("threads=1", "training", "other").status == "unchecked"
    assert cell(run, "other", "vs") == "unchecked"


def test_what_would_not_fit_is_left_out(suite):
    def contenders(setting):
        huge = Contender("huge", lambda mode: Workload(torch.mm), needs=lambda mode: 2**60)
        return Contender("product", lambda mode: Workload(torch.mm)), huge

    run = measured(suite(contenders=contenders))
    assert "would take" in run.find("threads=1", "training", "huge").note


def test_a_part_has_a_share_and_no_speed_up(suite):
    def contenders(setting):
        part = Contender("half of it", lambda mode: Workload(lambda x, w: x @ w[:, :1]), "part")
        return Contender("product", lambda mode: Workload(torch.mm)), part

    run = measured(suite(contenders=contenders))
    assert cell(run, "half of it", "vs").endswith(" of it")
    assert run.find("threads=1", "training", "half of it").flops is None


def test_sizes_sweeps_and_threads(suite):
    swept = suite(sweeps={"wide": (2, 4)})
    request = Request("small", sizes=parse_sizes(["batch=1,3"]), threads=(1, 2, 1))
    cases = make_cases(swept, request)
    assert [c.name for c in cases] == [
        f"{s} threads={t}" for s in ("wide=2", "wide=4", "batch=1", "batch=3") for t in (1, 2)
    ]
    assert cases[0].setting.sizes == {"batch": 4, "wide": 2} and cases[-1].setting.sizes == {"batch": 3, "wide": 8}
    (case,) = make_cases(swept, Request("small", sizes=parse_sizes(["wide=5"])))
    assert case.setting.size("wide") == 5 and case.axis == ""


@pytest.mark.parametrize(
    ("texts", "message"),
    [(["batch"], "name=value"), (["batch="], "name=value"), (["bach=1"], "did you mean 'batch'"),
     (["batch=0"], "batch is 0"), (["batch=-3"], "batch is -3"), (["batch=many"], "whole number")],
)  # fmt: skip
def test_wrong_sizes(suite, texts, message):
    with pytest.raises(UsageError, match=message):
        make_cases(suite(), Request("small", sizes=parse_sizes(texts)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"seconds": -1.0}, "seconds is -1"), ({"threads": (-2,)}, "threads is -2"), ({"limit": 0}, "limit")],
)
def test_wrong_requests(suite, changes, message):
    with pytest.raises(UsageError, match=message):
        Bench(suite(), Request("small", **changes))


def test_contenders_from_outside():
    Path("outsider.py").write_text("import torch\nclass Ways:\n    plain = torch.mm\nnumber = 3\n")
    assert load_callable("outsider:Ways.plain") is torch.mm
    for path, message in [
        ("outsider", "module:name"), ("outsider:Way", "Did you mean 'Ways'"), ("outsider:number", "callable"),
        ("nowhere_at_all:f", "No module named 'nowhere_at_all'"), (":f", "module:name"),
    ]:  # fmt: skip
        with pytest.raises(UsageError, match=message):
            load_callable(path)
    Path("broken_outsider.py").write_text("import torch\nraise ValueError('half done')\n")
    with pytest.raises(UsageError, match="half done"):
        load_callable("broken_outsider:f")


def test_an_external_contender_is_measured_with_ours(suite):
    Path("my_product.py").write_text("def right(x, w):\n    return x @ w\ndef wrong(x, w):\n    return w.t() @ x.t()\n")
    run = measured(
        suite(), Request("small", quick=True, seconds=1e-6, outside=("my_product:right", "my_product:wrong"))
    )
    assert [m.status for m in run.measurements[:3]] == ["ok", "ok", "WRONG"]
    assert cell(run, "my_product:wrong", "error") == "inf"


def test_quick_leaves_out_what_is_compiled(suite):
    def contenders(setting):
        product = Contender("product", lambda mode: Workload(torch.mm))
        return product, compiled(product)

    both = suite(contenders=contenders)
    setting = Setting(both.sizes)
    names = {
        quick: [c.name for c in contenders_of(both, setting, Request("small", quick=quick))] for quick in (True, False)
    }
    assert names == {True: ["product"], False: ["product", "product compiled"]}
    twins = contenders_of(suite(), setting, Request("small", quick=True, compile=True))
    assert [c.name for c in twins] == ["product", "product compiled"]


def test_bounds_follow_the_best_probe(run_of):
    run = run_of({"a": (1, 2, 3)})
    run.set_bounds()
    (only,) = run.measurements
    assert only.bound == 1e-3 and only.bound_by == "arithmetic"
    assert "50 % (50 %)" in case_table([only], run).rows[0]
    run.probes["1"]["matmul"] = 1e12
    run.set_bounds()
    assert only.bound == 1e-6


def test_suites_have_nearest_names():
    with pytest.raises(UsageError, match="did you mean 'routing'"):
        get_suite("routin")
    with pytest.raises(UsageError, match=r"must be a mereo\.bench\.Suite"):
        get_suite("torch:mm")


@pytest.mark.parametrize("name", [*SUITES, *listing.SUITES])
def test_every_suite_plans_its_cases(name):
    suite = get_suite(name)
    for quick in (True, False):
        for case in make_cases(suite, Request(name, quick=quick)):
            assert contenders_of(suite, case.setting, Request(name, quick=quick))
    assert set(suite.quick) | set(suite.sweeps) | set(suite.quick_sweeps) <= set(suite.sizes)
