"""A full disk and folders without write access: reported in one line, and no finished checkpoint is lost."""

import os
import resource
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import mereo
from mereo.files import write_atomically
from mereo.models.weights import load_tensors
from mereo.training.trainer import Trainer


@pytest.fixture
def small_disk(tmp_path):
    """small_disk(bytes) mounts a disk of that size; skipped where mounting is not permitted."""
    mounted = []

    def mount(size: int, *options: str) -> Path:
        place = tmp_path / f"disk{len(mounted)}"
        place.mkdir()
        words = ["mount", "-t", "tmpfs", "-o", ",".join((f"size={size}", *options)), "tmpfs", str(place)]
        if subprocess.run(words, capture_output=True, check=False).returncode:
            pytest.skip("mounting a disk is not permitted here")
        mounted.append(place)
        return place

    yield mount
    for place in mounted:
        subprocess.run(["umount", str(place)], check=True)


@contextmanager
def full(disk):
    """A disk without a free byte."""
    ballast = disk / "ballast"
    try:
        with open(ballast, "wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
    except OSError:
        pass
    try:
        yield
    finally:
        ballast.unlink()


@contextmanager
def files_of_at_most(size):
    """The kernel refuses to let a file of this process grow beyond a size."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


def train_until_full(call, words, trouble, monkeypatch):
    """Train into trouble that begins after the first epoch; the output of the command."""
    finish, stack = Trainer.finish_epoch, []

    def then_trouble(self, epoch, *rest):
        row = finish(self, epoch, *rest)
        if epoch == 0:
            stack.append(trouble())
            stack[0].__enter__()
        return row

    monkeypatch.setattr(Trainer, "finish_epoch", then_trouble)
    try:
        return call(*words).check()
    finally:
        stack[0].__exit__(None, None, None)
        monkeypatch.setattr(Trainer, "finish_epoch", finish)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["full disk", "file too large"])
def test_a_training_that_cannot_write_goes_on_when_it_can(call, train_words, small_disk, monkeypatch, kind):
    disk = small_disk(8 << 20) if kind == "full disk" else Path()
    trouble = (lambda: full(disk)) if kind == "full disk" else (lambda: files_of_at_most(2000))
    words = [*train_words, "--epochs", "3", "--checkpoint-seconds", "0.000001", "--no-tensorboard"]
    assert call(*words, "--name", "whole").code == 0
    words += ["--output", str(disk / "runs"), "--name", "stopped"]
    done = train_until_full(call, words, trouble, monkeypatch)
    message = os.strerror(28 if kind == "full disk" else 27)
    assert done.code == 1 and message in done.err and done.err.count("\n") == 1
    folder = disk / "runs" / "stopped"
    assert str(folder) in done.err
    assert load_tensors(folder / "state.safetensors")[1]["progress"]["epoch"] == 1
    assert mereo.load(folder).metadata["epoch"] == 1
    assert not list(folder.rglob(".*")), "the half of a file was left"
    assert call(*words, "--resume").code == 0
    ours, theirs = (load_tensors(f / "weights/last.safetensors")[0] for f in (folder, Path("runs/whole")))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_events_that_cannot_be_written_stop_a_training_in_one_line(call, train_words, monkeypatch):
    words = [*train_words, "--epochs", "3", "--name", "run"]
    # What is written before the events of an epoch would not find room either.
    monkeypatch.setattr("mereo.training.trainer.write_history", lambda *_: None)
    monkeypatch.setattr(Trainer, "_save_weights", lambda *_: None)
    monkeypatch.setattr(Trainer, "save_state", lambda *_: None)
    done = train_until_full(call, words, lambda: files_of_at_most(300), monkeypatch)
    assert done.code == 1 and "events.out.tfevents" in done.err and done.err.count("\n") == 1


WRITERS = {
    "train": ["--epochs", "1", "--output", "{}/runs"],
    "explain": ["photo.png", "--weights", "network.safetensors", "--out", "{}/seen.png"],
    "evaluate": ["network.safetensors", "--limit", "10", "--device", "cpu", "--out", "{}/report"],
    "export": ["network.safetensors", "--out", "{}/network"],
    "compare": [
        "mspcaps_tiny:channels=[4,8,8]",
        "--plain",
        "none",
        "--limit",
        "32",
        "--epochs",
        "1",
        "--output",
        "{}/runs",
    ],
    "reproduce": ["coupling_axis", "--data", "digits", "--limit", "32", "--epochs", "1", "--output", "{}/runs"],
    "demo": ["--epochs", "1", "--output", "{}/runs"],
}


def refused(call, place, command, words, begin):
    words = [*begin, *words] if command == "train" else [command, *words]
    done = call(*(word.replace("{}", str(place)) for word in words)).check(words)
    assert done.code in (1, 2) and str(place) in done.err, done
    return done


@pytest.fixture
def photo(weights):
    from PIL import Image

    Image.new("L", (20, 20), 90).save("photo.png")


@pytest.mark.parametrize("command", WRITERS)
def test_a_folder_that_cannot_be_one_is_named(call, train_words, photo, command):
    Path("notes").write_text("a file where a folder is wanted")
    refused(call, "notes", command, WRITERS[command], train_words)
    assert Path("notes").read_text() == "a file where a folder is wanted"


@pytest.mark.parametrize("command", WRITERS)
def test_a_read_only_folder_is_named(call, train_words, photo, small_disk, command):
    place = small_disk(1 << 20, "ro")
    done = refused(call, place, command, WRITERS[command], train_words)
    assert "Read-only file system" in done.err and not os.listdir(place)


def test_what_is_no_file_is_not_replaced_by_one(call, photo):
    os.mkfifo("pipe.png")  # a device, to a program that writes
    os.symlink("pipe.png", "link.png")
    for name in ("pipe.png", "link.png"):
        done = call("explain", "photo.png", "--weights", "network.safetensors", "--out", name).check()
        assert done.code == 2 and "is not a file" in done.err
    assert Path("pipe.png").is_fifo() and Path("link.png").is_symlink()


def test_a_link_to_a_file_stays_one():
    Path("file").write_text("old")
    os.symlink("file", "link")
    write_atomically(Path("link"), b"new")
    assert Path("link").is_symlink() and Path("file").read_text() == "new"
