"""Four processes on two simulated nodes train on shards, are killed and go on, on four processes or on two."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from mereo.data.stream import write_shards
from mereo.models.weights import load_tensors
from pictures import picture

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
EPOCHS = 5
# Without batch normalisation, whose statistics differ between parts of a batch.
WORDS = [
    "-m", "mereo", "train", "--model", "capsnet", "--model-args", "img_size=20", "conv_channels=8", "primary_types=2",
    "--data", "shards", "--epochs", str(EPOCHS), "--batch-size", "32", "--validation-fraction", "0", "--device", "cpu",
    "--no-tensorboard",
]  # fmt: skip


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def launch(folder: Path, nodes: int, processes: int, name: str, *words: str) -> list[subprocess.Popen]:
    """One `torchrun` a node, as on machines of their own."""
    port = str(free_port())
    return [
        subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(nodes), "--node-rank", str(rank),
             "--nproc-per-node", str(processes), "--master-addr", "127.0.0.1", "--master-port", port,
             *WORDS, "--name", name, *words],
            cwd=folder, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(nodes)
    ]  # fmt: skip


def finish(launched: list[subprocess.Popen]) -> None:
    outputs = [process.communicate(timeout=300)[0] for process in launched]
    assert all(process.returncode == 0 for process in launched), "\n".join(outputs)


def kill(launched: list[subprocess.Popen]) -> None:
    """SIGKILL to the launchers and to the processes they started, which are sessions of their own."""
    numbers = [str(process.pid) for process in launched]
    children = [Path(f"/proc/{n}/task/{n}/children").read_text().split() for n in numbers]
    for number in [*(c for group in children for c in group), *numbers]:
        os.kill(int(number), signal.SIGKILL)
    for process in launched:
        process.communicate()


def weights(folder: Path, name: str) -> dict[str, torch.Tensor]:
    return load_tensors(folder / "runs" / name / "weights" / "last.safetensors")[0]


def losses(folder: Path, name: str) -> list[float]:
    progress = load_tensors(folder / "runs" / name / "state.safetensors")[1]["progress"]
    return [row["train_loss"] for row in progress["history"]]


@pytest.mark.long
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds the processes to kill in /proc")
def test_four_processes_on_two_nodes_are_killed_and_follow_one(tmp_path):
    for split, count in (("train", 16), ("test", 2)):
        for label in range(6):
            place = tmp_path / "photos" / split / f"class{label}"
            place.mkdir(parents=True)
            for index in range(count):
                picture(1000 * label + index, (20, 20), channels=1).save(place / f"{index}.png")
    assert len(write_shards(tmp_path / "photos", tmp_path / "shards", shard_bytes=40_000)) > 3

    subprocess.run([sys.executable, *WORDS, "--name", "one"], cwd=tmp_path, env=ENVIRONMENT, check=True, timeout=300)
    launched = launch(tmp_path, 2, 2, "four", "--checkpoint-seconds", "0.001")
    state, kept = tmp_path / "runs" / "four" / "state.safetensors", tmp_path / "kept.safetensors"
    while all(process.poll() is None for process in launched):
        if state.exists():
            shutil.copy(state, kept)
            if load_tensors(kept)[1]["progress"]["step"]:
                break
        time.sleep(0.01)
    kill(launched)
    # A later checkpoint may have been written before the processes were gone.
    kept.replace(state)
    assert load_tensors(state)[1]["progress"]["step"] > 0, "no checkpoint was written within an epoch"

    shutil.copytree(tmp_path / "runs" / "four", tmp_path / "runs" / "two")
    finish(launch(tmp_path, 2, 2, "four", "--resume"))
    finish(launch(tmp_path, 1, 2, "two", "--resume"))
    one = weights(tmp_path, "one")
    for name in ("four", "two"):
        for tensor, other in zip(one.values(), weights(tmp_path, name).values(), strict=True):
            torch.testing.assert_close(other, tensor, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(losses(tmp_path, name), losses(tmp_path, "one"), rtol=1e-4, atol=1e-5)
