"""What needs processes of its own: a kill that nothing can catch, and two processes that share a batch."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from mereo.models.weights import load_tensors

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
CAPSNET = [
    "--model", "capsnet", "--model-args", "img_size=20", "conv_channels=8", "primary_types=2", "--data", "digits",
    "--limit", "96", "--batch-size", "32", "--device", "cpu", "--no-tensorboard",
]  # fmt: skip


def mereo(*words: str) -> list[str]:
    return [sys.executable, "-m", "mereo", "train", *CAPSNET, *words]


def run(command: list[str], folder: Path) -> str:
    done = subprocess.run(
        command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def last_weights(folder: Path, name: str) -> dict[str, torch.Tensor]:
    return load_tensors(folder / "runs" / name / "weights" / "last.safetensors")[0]


@pytest.mark.long
def test_a_killed_run_goes_on_to_the_same_weights(tmp_path):
    words = ["--epochs", "60", "--checkpoint-seconds", "0.05"]
    run(mereo(*words, "--name", "whole"), tmp_path)
    killed, resume = 0, []
    command = mereo(*words, "--name", "killed")
    state = tmp_path / "runs" / "killed" / "state.safetensors"
    while True:
        # The first start waits for something to resume from; later ones are killed sooner or later after they begin.
        process = subprocess.Popen(
            [*command, *resume], cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        if killed < 3:
            while not state.exists() and process.poll() is None:
                time.sleep(0.01)
            for _ in range(2 + 3 * killed):
                assert process.stdout is not None
                process.stdout.readline()
            process.send_signal(signal.SIGKILL)
        output = process.communicate(timeout=300)[0].decode()
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, output
        killed, resume = killed + 1, ["--resume"]
    assert killed == 3, "the run was over before it could be killed"
    whole, resumed = last_weights(tmp_path, "whole"), last_weights(tmp_path, "killed")
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert not list((tmp_path / "runs" / "killed").glob("**/.*")), "a half-written file was left behind"


@pytest.mark.long
def test_two_processes_with_half_the_batch_follow_one_with_the_whole(tmp_path):
    run(mereo("--epochs", "2", "--name", "one"), tmp_path)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    output = run([*launcher, *mereo("--epochs", "2", "--name", "two")[1:]], tmp_path)
    assert output.count("epoch 1/2") == 1, "only the first process reports"
    one, two = last_weights(tmp_path, "one"), last_weights(tmp_path, "two")
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-5, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.long
def test_a_sharded_training_is_saved_whole_and_goes_on_the_same(tmp_path):
    script = Path(__file__).parent / "sharded_state.py"
    run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script), "."],
        tmp_path,
    )
    assert load_tensors(tmp_path / "state.safetensors")[1]["progress"] == {"step": 2}
