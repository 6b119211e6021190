"""`mereo bench` and `mereo doctor` as a person uses them."""

import json
from pathlib import Path

import pytest
from PIL import Image

from mereo.bench import SUITES, read_run
from mereo.cli.main import main
from mereo.core.kernels.library import missing

TINY = """
import torch
from mereo.bench import Contender, Suite, Work, Workload

def inputs(setting, mode):
    x = torch.randn(setting.size("batch"), setting.size("wide"))
    return (x.requires_grad_(mode == "training"),)

def contenders(setting):
    def twice(x):
        if setting.size("wide") == 13:
            raise KeyboardInterrupt
        return x + x
    return (
        Contender("double", lambda mode: Workload(lambda x: 2 * x)),
        Contender("sum", lambda mode: Workload(twice)),
        Contender("triple", lambda mode: Workload(lambda x: 3 * x)),
    )

SUITE = Suite(
    "tiny", "twice a number", "(x) -> 2 x", {"batch": 4, "wide": 8}, inputs, contenders,
    lambda setting, mode: Work(setting.size("wide"), 8), threads=(1,),
)
"""
QUICK = ["bench", "tiny:SUITE", "--quick", "--seconds", "1e-6", "--no-memory", "--device", "cpu"]


@pytest.fixture
def call(capsys):
    Path("tiny.py").write_text(TINY)

    def run(*words):
        code = main(list(words))
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


@pytest.mark.parametrize("words", [["bench"], ["bench", "routing", "--list"]])
def test_suites_are_listed(call, words):
    code, out, _ = call(*words)
    assert code == 0
    assert all(f"{name} " in out for name in SUITES)


@pytest.mark.parametrize("command", ["bench", "doctor"])
def test_help_imports_no_torch(python, command):
    import subprocess

    code = f"import sys; from mereo.cli.main import main; done = main([{command!r}, '--help'])"
    subprocess.run([python, "-c", f"{code}; sys.exit(done or 'torch' in sys.modules)"], check=True, capture_output=True)


@pytest.mark.long
def test_a_run_is_printed_and_written(call):
    code, out, err = call(*QUICK, "--sizes", "wide=2,16", "--report", "reports", "--json", "run.json")
    assert code == 0, err
    assert "roofline" in out and "WRONG" in out
    assert "[2/2]" in err
    run = read_run(Path("run.json"))
    assert run.finished and len(run.measurements) == 2 * 2 * 3
    assert {p.name for p in Path("reports").iterdir()} == {"tiny.md", "tiny.png", "tiny.json"}
    text = Path("reports/tiny.md").read_text()
    assert "| triple |" in text and "WRONG" in text and "tiny.png" in text
    with Image.open("reports/tiny.png") as picture:
        assert picture.width > 400 and len(picture.convert("L").getcolors(256 * 256)) > 20


def test_against_an_earlier_run(call):
    assert call(*QUICK, "--json", "before.json")[0] == 0
    code, out, err = call(*QUICK, "--against", "before.json", "--report", "reports")
    assert code == 0, err
    assert "tiny, then and now" in out and "then and now" in Path("reports/tiny.md").read_text()
    other = json.loads(Path("before.json").read_text())
    other["machine"]["processor"] = "another one"
    Path("other.json").write_text(json.dumps(other))
    code, out, err = call(*QUICK, "--against", "other.json")
    assert code == 2 and "another machine" in err and "[1/1]" not in err


def test_an_interrupt_leaves_what_was_measured(call):
    code, out, err = call(*QUICK, "--sizes", "wide=4,13", "--json", "run.json", "--report", "reports")
    assert code == 1
    assert "stopped in case" in err and "run.json" in err
    run = read_run(Path("run.json"))
    assert not run.finished and {m.case for m in run.measurements} == {"wide=4 threads=1"}
    assert "wide=4" in out and Path("reports/tiny.md").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["bench", "routin"], "did you mean 'routing'"),
        (["bench", "nowhere:SUITE"], "nowhere"),
        ([*QUICK, "--contender", "tiny:nobody"], "has no 'nobody'"),
        ([*QUICK, "--contender", "tiny"], "module:name"),
        ([*QUICK, "--sizes", "wid=3"], "did you mean 'wide'"),
        ([*QUICK, "--batch-size", "-1"], "batch is -1"),
        ([*QUICK, "--threads", "-1"], "threads is -1"),
        ([*QUICK, "--seconds", "-1"], "seconds is -1"),
        ([*QUICK, "--memory-limit", "-1"], "limit is -"),
        ([*QUICK, "--against", "nothing.json"], "nothing.json"),
        ([*QUICK, "--models", "caps*"], "pattern of networks"),
        (["bench", "models", "--models", "nothing*"], "no network matches"),
        (["bench", "models", "--sizes", "model=capsnets", "--device", "cpu"], "capsnet"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(call, words, message):
    code, _, err = call(*words)
    assert code == 2
    assert message in err and err.startswith("mereo: error: ") and err.count("\n") == 1


def test_routing_at_sizes_of_ones_own(call):
    sizes = ["batch=2", "children=6", "parents=3", "child_dim=4", "parent_dim=5"]
    words = ["bench", "routing", "--quick", "--sizes", *sizes, "--threads", "1", "--seconds", "1e-6", "--no-memory"]
    code, _, err = call(*words, "--device", "cpu", "--json", "run.json")
    assert code == 0, err
    rows = read_run(Path("run.json")).measurements
    assert {m.contender for m in rows} == {"einsum", "plain", "streamed", "fused"}
    assert {m.status for m in rows if m.contender != "fused"} == {"ok"}
    assert {m.status for m in rows if m.contender == "fused"} <= {"ok", "left out"}


def test_doctor_tells_every_section(call):
    code, out, _ = call("doctor")
    assert code == 0
    lines = out.splitlines()
    for section in ("versions", "devices", "compute", "kernels", "data", "extras"):
        assert section in lines
    for fact in ("python", "torch", "threads", "memory free", "oneDNN", "routing, plain", "mnist", "tensorboard"):
        assert any(line.strip().startswith(fact) for line in lines), fact


def test_doctor_finds_data_and_what_is_missing(call):
    folder = Path("sets/MNIST/raw")
    folder.mkdir(parents=True)
    (folder / "train-images-idx3-ubyte").touch()
    code, out, _ = call("doctor", "--json", "--data-root", "sets")
    found = json.loads(out)
    assert code == 0
    assert found["data"]["root"] == "sets" and found["data"]["mnist"] == str(folder / "train-images-idx3-ubyte")
    assert found["data"]["multimnist"] == found["data"]["mnist"] and found["data"]["svhn"] == "not found"
    assert found["kernels"]["routing, plain"] == "available"
    compiled = "compiled" if missing is None else f"PyTorch: {missing}"
    assert found["kernels"]["agree and combine"] == compiled
