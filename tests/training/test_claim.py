"""One training a folder: claims of processes that start together, locks that end with their process."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mereo.cli.train import run
from mereo.errors import MereoError, UsageError
from mereo.training import run_lock
from mereo.training.config import TrainConfig
from mereo.training.run_folder import RunFolder, claimed, folder_to_resume
from mereo.training.run_lock import LOCK_NAME, LockedError, RunLock, check_unlocked

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
MEREO = [
    sys.executable, "-m", "mereo", "train", "--model", "capsnet", "--model-args", "img_size=17", "conv_channels=2",
    "primary_types=1", "--data", "digits", "--limit", "32", "--batch-size", "16", "--device", "cpu", "--no-tensorboard",
]  # fmt: skip


def config(tmp_path: Path, **changes: object) -> TrainConfig:
    return TrainConfig().replace(output=str(tmp_path / "runs"), device="cpu", **changes)


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*MEREO, *words], cwd=folder, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def end(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, out + err
    return out


@pytest.fixture
def slow_run(tmp_path):
    """A training that takes minutes and has written its first checkpoint; it is killed in the end."""
    process = start(tmp_path, "--name", "long", "--epochs", "100000", "--checkpoint-seconds", "0.05")
    state = tmp_path / "runs" / "long" / "state.safetensors"
    while not state.exists() and process.poll() is None:
        time.sleep(0.02)
    yield process
    process.kill()
    process.communicate(timeout=30)


def claim_and_wait(settings, everyone, names):
    everyone.wait()
    with claimed(settings) as folder:
        names.put(folder.path.name)
        (folder.path / "config.yaml").write_text("")
        everyone.wait()


@pytest.mark.long
@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_processes_that_start_together_get_folders_of_their_own(tmp_path, start_method):
    count = 3 if start_method == "spawn" else 8
    context = multiprocessing.get_context(start_method)
    everyone, names = context.Barrier(count), context.Queue()
    workers = [context.Process(target=claim_and_wait, args=(config(tmp_path), everyone, names)) for _ in range(count)]
    for worker in workers:
        worker.start()
    claims = {names.get(timeout=60) for _ in workers}
    for worker in workers:
        worker.join(30)
    assert len(claims) == count == len(list((tmp_path / "runs").iterdir()))
    assert not list((tmp_path / "runs").glob(f"*/{LOCK_NAME}"))


@pytest.mark.long
def test_trainings_that_start_together_all_keep_their_results(tmp_path):
    for process in [start(tmp_path, "--epochs", "1", "--seed", str(seed)) for seed in range(4)]:
        end(process)
    folders = [RunFolder(path) for path in sorted((tmp_path / "runs").iterdir())]
    assert [folder.path.name for folder in folders] == ["capsnet-digits", *(f"capsnet-digits-{n}" for n in (2, 3, 4))]
    assert {TrainConfig.from_yaml(folder.config).seed for folder in folders} == {0, 1, 2, 3}
    assert all(folder.results.exists() for folder in folders)


@pytest.mark.long
def test_a_run_that_is_being_trained_is_not_resumed_but_one_that_was_killed_is(tmp_path, slow_run):
    second = start(tmp_path, "--name", "long", "--resume")
    _, err = second.communicate(timeout=60)
    assert second.returncode == 2 and f"process {slow_run.pid} on " in err and "another --name" in err
    third = start(tmp_path, "--name", "long")
    assert "--resume" in third.communicate(timeout=60)[1] and third.returncode == 2
    assert slow_run.poll() is None, "the first training goes on"
    slow_run.send_signal(signal.SIGKILL)
    slow_run.wait(30)
    path = tmp_path / "runs" / "long" / "config.yaml"
    path.write_text(path.read_text().replace("epochs: 100000", "epochs: 1"))
    end(start(tmp_path, "--name", "long", "--resume"))
    assert not (tmp_path / "runs" / "long" / LOCK_NAME).exists()


@pytest.mark.long
def test_processes_of_one_launch_share_a_folder_and_an_error(tmp_path):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]

    def launch(*words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*launcher, *MEREO[1:], *words], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=120,
            check=False,
        )  # fmt: skip

    (tmp_path / "runs" / "capsnet-digits").mkdir(parents=True)
    done = launch("--epochs", "1")
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"capsnet-digits", "capsnet-digits-2"}
    done = launch("--epochs", "1", "--name", "capsnet-digits")
    assert done.returncode != 0 and done.stderr.count("mereo: error: ") == 1, "refused before the others are joined"
    done = launch("--epochs", "2", "--name", "capsnet-digits-2", "--resume")
    # The claim of the first is shared; the launcher may end the others before they report its error.
    assert done.returncode != 0 and done.stderr.count("mereo: error: ") in (1, 2)


def test_a_lock_names_its_holder_and_ends_with_it(tmp_path):
    lock = RunLock(tmp_path)
    holder = json.loads((tmp_path / LOCK_NAME).read_text())
    assert holder["process"] == os.getpid()
    with pytest.raises(LockedError, match=rf"process {os.getpid()} on .* since "):
        RunLock(tmp_path)
    lock.release()
    assert not (tmp_path / LOCK_NAME).exists()
    RunLock(tmp_path).release()


def test_a_killed_process_leaves_nothing_that_blocks_even_if_its_child_lives_on(tmp_path):
    ready = multiprocessing.get_context("fork").Event()
    parent = os.fork()
    if parent == 0:
        lock = RunLock(tmp_path)
        child = os.fork()
        if child == 0:
            ready.set()
            time.sleep(20)
            os._exit(0)
        (tmp_path / "child").write_text(str(child))
        time.sleep(60)
        lock.release()
        os._exit(0)
    assert ready.wait(20)
    while not (tmp_path / "child").exists():
        time.sleep(0.01)
    with pytest.raises(LockedError):
        RunLock(tmp_path)
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    RunLock(tmp_path).release()
    os.kill(int((tmp_path / "child").read_text() or 0), signal.SIGKILL)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe", b"5" * 4000])
def test_what_stands_in_a_lock_file_does_not_matter(tmp_path, content):
    (tmp_path / LOCK_NAME).write_bytes(content)
    lock = RunLock(tmp_path)
    (tmp_path / LOCK_NAME).write_bytes(content)
    with pytest.raises(LockedError, match="another process"):
        RunLock(tmp_path)
    lock.release()


def test_a_file_system_without_locks_is_warned_of(tmp_path, monkeypatch):
    def no_locks(descriptor):
        raise run_lock.NoLocksError(37, "No locks available")

    monkeypatch.setattr(run_lock, "_lock", no_locks)
    with pytest.warns(UserWarning, match="No locks available"):
        RunLock(tmp_path).release()


def test_a_folder_in_which_nothing_was_written_does_not_stay(tmp_path):
    with claimed(config(tmp_path)) as folder:
        assert folder.path.is_dir()
    assert not (tmp_path / "runs").exists()
    with claimed(config(tmp_path)) as folder:
        (folder.path / "results.csv").write_text("")
    assert [path.name for path in folder.path.iterdir()] == ["results.csv"]


def test_names_follow_what_is_there(tmp_path):
    for name in ("mspcaps_tiny-digits", "mspcaps_tiny-digits-7", "mspcaps_tiny-digits-x"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    with claimed(config(tmp_path)) as folder:
        assert folder.path.name == "mspcaps_tiny-digits-8"
    assert folder_to_resume(config(tmp_path)).path.name == "mspcaps_tiny-digits-7"
    with pytest.raises(UsageError, match="--resume"), claimed(config(tmp_path, name="mspcaps_tiny-digits")):
        pass


def test_a_taken_name_an_output_and_unknown_names_are_refused_before_anything_is_prepared(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mereo.training.plan.make_plan", lambda *_: pytest.fail("the data was read"))
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "file").write_text("")
    for words, match in (
        (["--name", "mine"], "runs/mine already exists; give --resume"),
        (["--output", "file"], "output is 'file', which is a file"),
        (["--track", "neptune"], "unknown tracker 'neptune'"),
        (["--resume", "--dry-run"], "no run runs/mspcaps_tiny-digits to resume"),
    ):
        with pytest.raises(UsageError, match=match):
            run(words, "train")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "runs"]


def test_an_output_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "runs").write_text("")
    with pytest.raises(MereoError, match="cannot write"), claimed(config(tmp_path)):
        pass


def test_resuming_what_is_no_run_names_the_commands_to_go_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    known = tmp_path / "runs" / "my photos"
    known.mkdir(parents=True)
    (known / "config.yaml").write_text(TrainConfig().to_yaml())
    (tmp_path / "runs" / "empty").mkdir()
    for words in (["runs/none"], ["runs/empty"], ["--data", "elsewhere"], ["--name", "other"], []):
        with pytest.raises(UsageError, match="no run") as caught:
            run([*words, "--resume"], "train")
        assert "mereo train 'runs/my photos' --resume" in str(caught.value)
    with pytest.raises(UsageError, match="no run runs to resume") as caught:  # the folder of the runs
        run(["runs", "--resume"], "train")
    assert "mereo train 'runs/my photos' --resume" in str(caught.value) and "has no runs" not in str(caught.value)
    with pytest.raises(UsageError, match=r"elsewhere has no runs\); leave out --resume"):
        run(["--output", "elsewhere", "--resume"], "train")


def test_a_live_run_is_refused_before_anything_is_prepared(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs" / "live"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(TrainConfig(name="live").to_yaml())
    check_unlocked(folder)
    lock = RunLock(folder)
    monkeypatch.setattr("mereo.training.plan.make_plan", lambda *_: pytest.fail("the data was read"))
    with pytest.raises(LockedError, match="is being trained by process"):
        run(["runs/live", "--resume"], "train")
    assert (folder / LOCK_NAME).exists()
    lock.release()
    check_unlocked(folder)
