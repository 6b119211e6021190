"""Command lines that nobody would mean: every command answers in one line and an exit code, and touches nothing else.

Words are drawn from the options that each command declares, with values that are wrong, absurd or nearly right. The
work itself is kept tiny by what stands in `BEGIN`; amounts of work are drawn small or wrong, never absurd.
"""

import dataclasses
import json
import math
import os
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import mereo
from mereo.cli import options
from mereo.cli.main import COMMANDS, main
from mereo.models.weights import load_tensors
from mereo.training.engine import Trainer

SMALL = ["--model-args", "channels=[4,8,8]", "patch_size=2"]
BEGIN: dict[str, tuple[type | None, list[str]]] = {
    "train": (options.TrainOptions, ["--limit", "32", "--epochs", "1", "--img-size", "16", "--device", "cpu", *SMALL]),
    "predict": (options.PredictOptions, ["photo.png", "--weights", "network.safetensors"]),
    "explain": (options.ExplainOptions, ["photo.png", "--weights", "network.safetensors"]),
    "evaluate": (options.EvaluateOptions, ["network.safetensors", "--limit", "10"]),
    "export": (options.ExportOptions, ["network.safetensors", "--limit", "10"]),
    # These take minutes however little is asked of them, so they are stopped by a device that is not there.
    "demo": (options.DemoOptions, ["--device", "cuda:9"]),
    "reproduce": (options.ReproduceOptions, ["coupling_axis", "--device", "cuda:9"]),
    "compare": (options.CompareOptions, ["mspcaps_tiny", "--device", "cuda:9"]),
    "bench": (options.BenchOptions, ["routing", "--device", "cuda:9"]),
    "doctor": (options.DoctorOptions, []),
    "models": (options.ListOptions, []),
    "mechanisms": (options.ListOptions, []),
    "datasets": (options.ListOptions, []),
    "recipes": (options.ListOptions, []),
}
EXAMPLES = {"train": 150, "predict": 60, "explain": 25, "evaluate": 80, "export": 50}
"""How many command lines of each; 30 of the others."""
WORK = {"epochs", "limit", "steps", "queries", "restarts", "seeds", "threads", "seconds", "keep", "images"}
"""Amounts of work: an absurd one is a long wait, which is what was asked for."""
SLOW = {"compile"}

WHOLE = ["0", "-1", "1", "2", "3", "1_0", "٣", "1.5", "0x10", "nan"]
HUGE = ["2147483647", "4294967296", "99999999999999999999", "-99999999999999999999", "9" * 5000]
REAL = ["0", "-1", "0.5", "1", "2.5", "1e-9", "nan", "inf", "-inf", "one"]
EXTREME = ["1e308", "-1e308", "1e-308", "1e30", "1e999", "5e-324"]
WORDS = [
    "", " ", "missing", "file", "folder", "./folder/", ".", "/dev/null", "/dev/full", "/proc/self/mem", "digits",
    "digitz", "é", "🤖", "\u202e", "\udcff", "a b", "a\nb", "\t", "%s%n", "$(touch ran)", "; touch ran", "--", "-", "=",
    "a=b", "{}", "[]", "None", "x" * 300, "photo.png", "*.png", "[", "**", "network.safetensors", "'", '"', "\\", "ran",
]  # fmt: skip
MEANT: dict[str, list[str]] = {
    "model": ["capsnet", "mspcaps_tiny", "efficient_capsnet", "capsnet_multimnist", "mspcap_tiny"],
    "data": ["digits", "mnist", "multimnist", "svhn", "cifar10", "folder", "file"],
    "recipe": ["mspcaps_paper", "capsnet_paper", "mspcaps_papr"],
    "device": ["cpu", "cpu:0", "cpu:7", "cuda:-1", "cuda:99999999999", "meta", "xla", "mps"],
    "augment": [
        "none", "auto", "flip", "flip=2", "rotate=15", "rotate=inf", "rotate=-1", "crop=1", "crop=99999999", "shift=-1",
        "shift=2.5", "contrast=nan:1", "contrast=1:2", "contrast=2:1", "brightness=1e9", "efficient_mnist", "rotate=",
        "crop=99999999999999999999", "rotat=1",
    ],
    "weights": ["network.safetensors", "photo.png", "folder"],
    "config": ["network.safetensors", "file", "bad.yaml", "bomb.yaml"],
    "images": ["photo.png", "file", "folder", "*", "network.safetensors"],
    "sizes": ["batch=0", "batch=99999999999", "nope=1", "batch=", "=1", "batch=1,2"],
    "models": ["mspcaps_tiny", "mspcaps_tiny:depth=0", "capsnet:routing_steps=-1", "capsnet:", ":", "mspc"],
    "to": ["hub", "timm", "tim"],
    "precision": ["fp32", "bf16", "int8", "fp16", "fp33"],
    "study": ["coupling_axis", "coupling_axes"],
    "variants": ["receivers", "recievers"],
    "suite": ["routing", "models", "nope", "os:system"],
    "model_args": [
        "depth=0", "depth=-1", "depth=99999999999", "depth=0x" + "f" * 5000, "depth=2.5", "depth=true", "depth=[1]",
        "depth=", "=1", "depth", "channels=[4,8]", "channels=[4,8,0]", "channels=[4,8,.nan]", "channels=4",
        "channels=[[4],8,8]", "channels={a: 1}", "channels=[1000000,1000000,1000000]", "routing=dynamic", "scales=[]",
        "routing=[dynamic]", "scales=[2,1]", "scales=[0.5]", "scales=[0]", "coupling_drop=.inf", "coupling_drop=2",
        "coupling_drop=-1", "img_size=[16]", "img_size=99999999", "img_size=[16,1000000000]", "img_size=[]",
        "img_size=[16,18]", "num_classes=3", "in_chans=3", "pretrained=true", "checkpoint_path=network.safetensors",
        "name=capsnet", "share_weights=2", "mid_dim=!!python/name:os.system", "mid_dim=&a [*a]", "mid_dim=2001-99-99",
        "mid_dim=" + "[" * 2000, "mid_dim=!!bool x", "out_dim=1000000000000", "routing_steps=1000000000",
        "pose_dims=[8,8,7]", "patch_size=99", "coupling_over=nothing",
    ],
}  # fmt: skip
"""Values for some options that get further than most."""


def values_for(field: dataclasses.Field) -> list[str]:
    """What an option of its kind may be given: sensible, nearly sensible, and beyond all measure."""
    kind, small = str(field.type), field.name in WORK
    if field.name in MEANT:
        return MEANT[field.name] * 3 + WORDS
    if "Literal" in kind:
        return re.findall(r"'(\w+)'", kind) * 3 + WORDS[:4]
    if "int" in kind:
        return WHOLE + ([] if small else HUGE)
    if "float" in kind:
        return REAL + ([] if small else EXTREME)
    return WORDS


@st.composite
def given_option(draw, declared: type) -> list[str]:
    """One option of a command, or one that looks like it, with values of whatever kind."""
    field = draw(st.sampled_from([f for f in dataclasses.fields(declared) if f.name not in SLOW]))
    kind, name = str(field.type), "--" + field.name.replace("_", "-")
    form = draw(st.sampled_from(["plain"] * 16 + ["equals", "no", "cut", "doubled", "bare", "odd"]))
    if "bool" in kind and form == "plain":
        form = draw(st.sampled_from(["bare", "no"]))
    if form in ("bare", "no", "cut"):
        return [{"bare": name, "no": f"--no-{name[2:]}", "cut": name[:-1]}[form]]
    count = draw(st.integers(1, 3)) if "tuple" in kind or "dict" in kind else 1
    pool = [*WORDS, *WHOLE, *REAL] if form == "odd" and field.name not in WORK else values_for(field)
    values = draw(st.lists(st.sampled_from(pool), min_size=count, max_size=count))
    if form == "equals":
        return [f"{name}={values[0]}"]
    place = [] if "Positional" in kind else [name]
    return [*place, *values] * (2 if form == "doubled" else 1)


@st.composite
def command_line(draw, command: str) -> list[str]:
    declared, begin = BEGIN[command]
    drawn = draw(st.lists(given_option(declared), min_size=1, max_size=2))
    words = [word for option in drawn for word in option]
    # What comes last counts. The commands that take minutes must be stopped, so there it is always `begin`.
    return [command, *(begin + words if command in EXAMPLES and draw(st.booleans()) else words + begin)]


def laughs(levels: int) -> str:
    """A configuration whose last value would take 9 ** levels words to write out."""
    lines = ["a0: &a0 [ha]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, levels)]
    return "\n".join(["model_args:", *(f"  {line}" for line in lines), f"model: *a{levels - 1}"])


def no_network(*_, **__):
    raise OSError("no network")


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def check_written(folder: Path) -> None:
    """No NaN in anything that was written."""
    for path in folder.rglob("*"):
        if path.suffix == ".safetensors" and path.is_file():
            tensors, _ = load_tensors(path)
            assert all(t.isfinite().all() for t in tensors.values() if t.is_floating_point()), path
        elif path.suffix == ".json" and path.is_file():
            json.loads(path.read_text(), parse_constant=pytest.fail)


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_line_ends_in_a_traceback(command, tmp_path, monkeypatch, network, call):
    assert command in BEGIN, "a new command is not tried"
    monkeypatch.setattr("socket.getaddrinfo", no_network)
    for drawing in (
        "training.engine.draw_images", "training.engine.draw_curves", "training.engine.draw_test_samples",
        "robustness.evaluation._draw_judgement", "robustness.evaluation.draw_curves",
    ):  # fmt: skip
        monkeypatch.setattr(f"mereo.{drawing}", lambda *_, **__: None)  # most of the time of tiny work
    here, beside = tmp_path / "here", tmp_path / "beside"
    (here / "folder").mkdir()
    beside.mkdir()
    (beside / "precious").write_bytes(os.urandom(1000))
    Path("file").write_text("some words")
    Path("bad.yaml").write_text("epochs: [\n")
    Path("bomb.yaml").write_text(laughs(9))
    Image.new("L", (20, 20), 90).save("photo.png")
    mereo.save_weights(Path("network.safetensors"), network, class_names=tuple("0123456789"), data="digits")
    before, codes = snapshot(beside), set()

    @given(words=command_line(command))
    @settings(max_examples=EXAMPLES.get(command, 30), derandomize=True, deadline=None, database=None)
    def try_it(words):
        done = call(*words).check(words)
        codes.add(done.code)
        if done.code == 0 and "--json" in words and "--help" not in words and done.out.startswith(("{", "[")):
            done.document()

    try_it()
    assert codes <= {0, 1, 2} and codes & {1, 2}, codes
    assert snapshot(beside) == before and not list(tmp_path.rglob("ran"))
    assert {p.name for p in tmp_path.iterdir()} == {"here", "beside"}
    check_written(here)


STRAY = st.one_of(st.sampled_from([*WORDS, *REAL, "--help", "--version"]), st.text(max_size=8))


@given(words=st.lists(STRAY, max_size=3))
@settings(max_examples=100, derandomize=True, deadline=None, database=None)
def test_what_is_no_command_is_told(words):
    if words[:1] and words[0] in COMMANDS:
        return
    assert main(words) == (0 if words[:1] in (["--help"], ["--version"], ["-h"], ["help"]) else 2)


@pytest.mark.parametrize(("seconds", "step"), [("1e-9", 0), ("60", 1)], ids=["within an epoch", "at its end"])
def test_a_training_that_goes_astray_writes_no_weights(call, train_words, monkeypatch, seconds, step):
    optimise = Trainer.optimise

    def astray(self, epoch, number, order):
        found = optimise(self, epoch, number, order)
        if (epoch, number) == (1, step):
            # The loss before this step was finite, and that is what is looked at in every step.
            self.model.head.weight.data[0, 0] = math.inf
        return found

    monkeypatch.setattr(Trainer, "optimise", astray)
    words = ["--epochs", "3", "--checkpoint-seconds", seconds, "--name", "astray", "--no-tensorboard"]
    done = call(*train_words, *words).check()
    assert done.code == 1 and "head.weight holds values that are not finite" in done.err
    check_written(Path())
    assert load_tensors("runs/astray/state.safetensors")[1]["progress"]["epoch"] == 1
    assert mereo.load("runs/astray").metadata["epoch"] == 1
