"""What a command writes never replaces what it reads, nor what mereo did not write."""

import os
from pathlib import Path

import pytest
from PIL import Image

import mereo
from mereo.errors import UsageError
from mereo.files import check_outputs, reading, write_atomically

OURS = b"a file of mereo"


@pytest.fixture
def photo():
    Image.new("L", (20, 20), 90).save("photo.png")
    return Path("photo.png")


def alias(path: Path, kind: str) -> Path:
    """Another name of a file."""
    other = Path(f"alias{path.suffix}")
    if kind == "itself":
        return path
    if kind == "roundabout":
        return Path("..", Path.cwd().name, path)
    (os.link if kind == "hard link" else os.symlink)(path, other)
    return other


NAMES = ["itself", "roundabout", "hard link", "symbolic link"]


@pytest.mark.parametrize("kind", NAMES)
def test_an_input_is_no_output_under_any_of_its_names(kind):
    source = Path("source.md")
    source.write_bytes(OURS)
    other = alias(source, kind)
    with pytest.raises(UsageError, match="one of the inputs"):
        check_outputs("out", [Path("new.md"), other], [source])
    with reading(source), pytest.raises(UsageError, match="one of the inputs"):
        write_atomically(other, b"new")
    assert source.read_bytes() == OURS
    write_atomically(other, b"new")
    assert source.read_bytes() == b"new" or kind == "hard link"


@pytest.mark.parametrize("words", [
    ["explain", "photo.png", "--weights", "network.safetensors", "--out", "photo.png"],
    ["explain", "photo.png", "--weights", "network.safetensors", "--out", "alias.png"],
    ["explain", "explanation.png", "--weights", "network.safetensors", "--out", "."],
    ["explain", "photo.png", "--weights", "network.safetensors", "--out", "theirs.png"],
    ["explain", "photo.png", "--weights", "network.safetensors", "--out", "theirs.html"],
    ["export", "model.safetensors", "--out", "."],
    ["export", "network.safetensors", "--out", "theirs"],
    ["evaluate", "network.safetensors", "--limit", "10", "--out", "theirs"],
    ["bench", "routing", "--quick", "--json", "theirs.json"],
    ["bench", "routing", "--quick", "--report", "theirs"],
    ["bench", "routing", "--quick", "--against", "before.json", "--json", "before.json"],
], ids=" ".join)  # fmt: skip
def test_no_command_replaces_an_input_or_a_file_of_others(call, weights, photo, words):
    os.symlink("photo.png", "alias.png")
    Path("theirs").mkdir()
    Path("explanation.png").write_bytes(photo.read_bytes())
    Path("model.safetensors").write_bytes(weights.read_bytes())
    for name in (
        "theirs.png",
        "theirs.html",
        "theirs.json",
        "theirs/README.md",
        "theirs/report.md",
        "theirs/routing.md",
    ):
        Path(name).write_text("years of work")
    Path("before.json").write_text('{"schema": 1, "mereo": 1}')
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    done = call(*words).check(words)
    assert done.code == 2 and ("one of the inputs" in done.err or "did not write" in done.err), done.err
    after = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    assert after == before


@pytest.mark.long
def test_what_mereo_wrote_is_written_again(call, weights, photo):
    for words in (
        ["explain", photo, "--weights", weights, "--out", "seen.png"],
        ["explain", photo, "--weights", weights, "--out", "seen.html"],
        ["export", weights, "--out", "net", "--limit", "8"],
    ):
        for _ in range(2):
            assert call(*words).check(words).code == 0


@pytest.mark.parametrize("name", [os.fsdecode(b"caf\xe9"), "nul\0"], ids=["not UTF-8", "NUL"])
@pytest.mark.parametrize("words", [
    ["train", "--limit", "32", "--name"], ["train", "--limit", "32", "--output"], ["demo", "--output"],
    ["compare", "mspcaps_tiny", "--output"], ["reproduce", "coupling_axis", "--output"], ["export", "--out"],
    ["evaluate", "--out"], ["explain", "photo.png", "--out"], ["bench", "routing", "--report"],
    ["bench", "routing", "--json"],
], ids=" ".join)  # fmt: skip
def test_a_name_that_could_not_be_read_back_is_refused_first(call, photo, words, name):
    done = call(*words, name).check(words)
    assert done.code == 2 and ("UTF-8" in done.err or "NUL" in done.err)
    assert {path.name for path in Path().iterdir()} == {"photo.png"}


def pipe(path: str) -> None:
    os.mkfifo(path)


def device(path: str) -> None:
    os.symlink("/dev/zero", path)


def socket(path: str) -> None:
    import socket as sockets

    with sockets.socket(sockets.AF_UNIX) as server:
        server.bind(path)


@pytest.mark.parametrize("make", [pipe, device, socket])
@pytest.mark.parametrize("words", [
    ["train", "odd"], ["train", "--weights", "odd"], ["predict", "odd"], ["predict", "photo.png", "--weights", "odd"],
    ["explain", "odd"], ["evaluate", "odd"], ["export", "odd"], ["bench", "routing", "--quick", "--against", "odd"],
    ["predict", "photo.png", "--weights", "run"], ["export", "exported"], ["export", "finished"], ["train", "run"],
], ids=" ".join)  # fmt: skip
def test_what_is_not_a_file_is_not_opened(call, network, photo, make, words):
    for folder in ("run/weights", "exported", "finished/weights"):
        Path(folder).mkdir(parents=True)
    mereo.save_weights("finished/weights/best.safetensors", network)
    mereo.save_pretrained(network, "exported")
    os.remove("exported/config.json")
    Path("finished/config.yaml").write_text("epochs: 1\n")
    for path in (
        "odd",
        "run/weights/best.safetensors",
        "run/config.yaml",
        "exported/config.json",
        "finished/results.json",
    ):
        make(path)
    done = call(*words).check(words)
    # A configuration or results that are not files are as good as none.
    assert done.code == 2 or words in (["export", "exported"], ["export", "finished"])
