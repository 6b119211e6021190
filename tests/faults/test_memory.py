"""Small files that state large things are refused before anything is built: little memory, few operations."""

import contextlib
import json
import os
import resource
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import save
from torch.nn.modules.module import register_module_module_registration_hook

import mereo
from made import Made, refused_with
from mereo.errors import UsageError
from mereo.models.registry import families, outline
from mereo.models.weights import load_tensors, read_metadata

MOST = 200 * 2**20
"""Bytes by which a refusal may let this process grow."""


def grown_by(work) -> int:
    """Bytes by which the largest size of a fork of this process grows while it works."""
    reader, writer = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            limit = 4 * 2**30 + int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
            work()
            after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            os.write(writer, str(after - before).encode())
        except BaseException as error:
            print(repr(error), file=sys.stderr)
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        printed = file.read()
    os.waitpid(process, 0)
    assert printed, "it failed; see its standard error"
    return int(printed) * 1024


SCORES = {"count": 10, "accuracy": 1e308, "accuracy_low": 0.1, "accuracy_high": 0.2}
VAST = json.dumps(
    {
        "parameters": 1, "chosen_on": "validation", "best_epoch": 1, "train_images": 3, "device": "cpu", "torch": "2",
        "seconds": 1.0, "images_per_second": 1.0, "test_best": SCORES, "test_last": SCORES,
    }
)  # fmt: skip
"""Results that are of the right kinds, and of which one is too large to draw."""
ARGUMENTS = [
    ("mspcaps_tiny", {"in_chans": 2**30}), ("mspcaps_tiny", {"num_classes": 2**31 - 1}),
    ("mspcaps_tiny", {"depth": 2**31 - 1}), ("mspcaps_tiny", {"img_size": 2**31 - 1}),
    ("mspcaps_tiny", {"channels": [2**31 - 1] * 3}), ("mspcaps_tiny", {"scales": [0] * 10**6}),
    ("mspcaps_tiny", {"out_dim": 2**31 - 1}), ("mspcaps_tiny", {"mid_dim": 2**31 - 1}),
    ("mspcaps_tiny", {"patch_size": 2**31 - 1}), ("mspcaps_tiny", {"pose_dims": [2**31 - 1] * 3}),
    ("capsnet", {"num_classes": 2**31 - 1}), ("capsnet", {"routing_steps": 2**31 - 1}),
    ("capsnet", {"in_chans": 2**31 - 1}), ("capsnet", {"middle_capsules": 2**31 - 1}),
    ("capsnet", {"img_size": [2**31 - 1, 2**31 - 1]}), ("capsnet", {"conv_channels": 2**31 - 1}),
    ("capsnet", {"decoder_hidden": [2**31 - 1] * 2}), ("capsnet", {"class_dim": 2**31 - 1}),
    ("efficient_capsnet", {"stem": [[5, 1, 1]] * 10**5}), ("efficient_capsnet", {"num_classes": 2**31 - 1}),
    ("efficient_capsnet", {"in_chans": 2**31 - 1}), ("efficient_capsnet", {"stem": [[2**31 - 1, 2**31 - 1, 1]]}),
    ("efficient_capsnet", {"primary_kernel": 2**31 - 1}), ("efficient_capsnet", {"class_dim": 2**31 - 1}),
]  # fmt: skip


@pytest.mark.parametrize(("model", "arguments"), ARGUMENTS, ids=lambda v: v if isinstance(v, str) else next(iter(v)))
def test_a_small_file_uses_little_memory(weights, model, arguments):
    tensors, _ = load_tensors(weights)
    defaults = mereo.create_model(model).config["args"]
    text = json.dumps({"format": 1, "model": model, "args": {**defaults, **arguments}, "pretrained_cfg": {}})
    Path("large.safetensors").write_bytes(save(tensors, {"mereo": text}))

    def refused():
        with Made() as made, pytest.raises(UsageError, match="large"):
            mereo.load("large.safetensors")
        refused_with(made)

    assert grown_by(refused) < MOST


def test_what_is_made_is_counted():
    with Made() as made:
        mereo.create_model("capsnet")
    assert made.modules > 5
    with pytest.raises(AssertionError, match="bytes was made"):
        refused_with(made)


def large(value: object, number: int) -> Iterator[object]:
    """A value with one of its whole numbers replaced by a large one, at every place in turn."""
    if type(value) is int:
        yield number
    elif isinstance(value, tuple):
        for place, entry in enumerate(value):
            yield from ((*value[:place], changed, *value[place + 1 :]) for changed in large(entry, number))


@pytest.mark.long
@pytest.mark.parametrize("family", sorted(families()))
def test_large_numbers_of_every_network_use_little_memory(family):
    entry = families()[family]
    tiny = dict(entry.defaults) | dict(entry.tiny)

    def build_all():
        built = 0

        def count(*_: object) -> None:
            nonlocal built
            built += 1
            assert built < 50_000, "a number of layers without a bound"

        hook = register_module_module_registration_hook(count)
        for name, value in tiny.items():
            for changed in large(value, 2**31 - 1):
                built = 0
                with contextlib.suppress(UsageError):
                    outline(entry.name, **(dict(entry.tiny) | {name: changed}))
        hook.remove()

    assert grown_by(build_all) < MOST


def test_a_header_without_end_is_not_read():
    for size in (2**24 + 1, 2**40, 2**64 - 1):
        with open("endless.safetensors", "wb") as file:
            file.write(struct.pack("<Q", size))
            file.truncate(min(size, 2**33) + 8)
        with pytest.raises(UsageError, match="header"):
            load_tensors("endless.safetensors")


def test_the_metadata_is_read_without_the_tensors(weights):
    assert read_metadata(weights) == load_tensors(weights)[1]


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "{", "", "{}", "[]", "null", '{"test_best": {}}', "\x00\xff", "1" * 9**5, VAST]
)
@pytest.mark.parametrize("command", ["export", "compare"])
def test_results_of_wrong_kinds_are_refused(call, network, command, text):
    if command == "export":
        folder, words = Path("run"), ["export", "run"]
    else:
        folder = Path("runs/compare-digits/mspcaps_tiny-seed0")
        words = ["compare", "mspcaps_tiny", "--epochs", "1", "--limit", "32", "--plain", "none", "--device", "cpu"]
    (folder / "weights").mkdir(parents=True)
    mereo.save_weights(folder / "weights/best.safetensors", network, data="digits")
    if command == "export":
        (folder / "config.yaml").write_text("epochs: 1\n")
    (folder / "results.json").write_text(text)
    done = call(*words).check(words)
    assert done.code == 2 and "results.json" in done.err and len(done.err) < 2000


@pytest.mark.parametrize("results", [
    {}, [], 3, "x", {"test": {}}, {"test": {"accuracy": "high"}}, {"test": None, "which": []},
    {"chosen_on": "validation", "which": "best", "device": "cpu", "torch": "2", "epochs": 1, "best_epoch": 1,
     "train_images": 3, "seconds": float("nan"), "test": {"count": 1, "accuracy": 1, "accuracy_low": 0,
     "accuracy_high": 1}},
], ids=range(8))  # fmt: skip
def test_metadata_of_wrong_kinds_is_refused(call, network, results):
    mereo.save_weights("odd.safetensors", network, data="digits", results=results)
    done = call("export", "odd.safetensors", "--limit", "8").check(results)
    assert done.code == 2 and "results of the weights" in done.err
    assert not list(Path("exported").glob("*")) if Path("exported").exists() else True


@pytest.mark.parametrize("data", ["/", "..", "~", "photos", "/proc/self/fd", "\0", "x" * 10**5])
def test_the_data_of_a_file_is_not_followed(call, network, monkeypatch, data):
    mereo.save_weights("odd.safetensors", network, data=data)
    Path("photos/train/a").mkdir(parents=True)

    def walked(*_, **__):
        raise AssertionError("a folder was read that nobody named")

    monkeypatch.setattr("mereo.data.sources.read_layout", walked)
    monkeypatch.setattr("mereo.data.sources.open_stream", walked)
    done = call("evaluate", "odd.safetensors").check(data)
    assert done.code == 2 and "--data" in done.err
    done = call("export", "odd.safetensors", "--out", "net").check(data)
    assert done.code == (2 if len(data) > 10**4 else 0)
