"""A training that is killed again and again, at random moments, ends with the weights of one that never was."""

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
import torch

from mereo.models.weights import load_tensors

KILLS = 20
WORDS = [
    "train", "--data", "digits", "--limit", "96", "--batch-size", "16", "--epochs", "8", "--device", "cpu",
    "--img-size", "16", "--model-args", "channels=[4,8,8]", "patch_size=2", "--ema-decay", "0.9",
    "--checkpoint-seconds", "0.000001",
]  # fmt: skip


class Server:
    """Runs `mereo` in forks of one process, so that a start costs no import."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).parent / "fork_server.py")],
            cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip

    def run(self, words: list[str], *, seconds: float | None = None, event: int | None = None) -> int:
        """The exit code of one command; killed some seconds after its start, or before its n-th touch of a file."""
        self.process.stdin.write(json.dumps({"words": words, "seconds": seconds, "event": event}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "the server is gone"
        return int(line)

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(timeout=10)
        self.process.stdout.close()


@pytest.fixture
def server(tmp_path):
    server = Server(tmp_path)
    yield server
    server.close()


def leftovers(folder: Path) -> list[Path]:
    return list(folder.glob("**/.*"))


def figures(folder: Path) -> list[tuple[str, ...]]:
    rows = csv.DictReader((folder / "results.csv").read_text().splitlines())
    return [tuple(row[name] for name in ("epoch", "lr", "train_loss", "val_loss", "val_accuracy")) for row in rows]


def assert_same(folder: Path, whole: Path) -> None:
    for name in ("last", "best"):
        ours, theirs = (load_tensors(f / "weights" / f"{name}.safetensors")[0] for f in (folder, whole))
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[n], theirs[n]) for n in ours), f"{name} of {folder.name} differs"
    assert figures(folder) == figures(whole)
    assert not leftovers(folder)


@pytest.mark.long
def test_twenty_kills_change_nothing(server, tmp_path):
    output, runs = tmp_path / "output.txt", tmp_path / "runs"
    assert server.run([*WORDS, "--name", "whole"]) == 0, output.read_text()
    random = Random(0)
    # By the clock a kill may strike anywhere; by the file it strikes in the midst of a start or of a checkpoint.
    moments = [moment for _ in range(KILLS // 2) for moment in (
        {"event": random.randint(1, 40)}, {"seconds": random.uniform(0, 1.5)},
    )]  # fmt: skip
    moments[0] = {"event": 1}
    kills, rounds, struck = 0, 0, set()
    while kills < KILLS:
        rounds += 1
        folder, code = runs / f"round{rounds}", -signal.SIGKILL
        while code != 0:
            moment = moments[kills] if kills < KILLS else {}
            resume = ["--resume"] if folder.exists() else []
            code = server.run([*WORDS, "--name", folder.name, *resume], **moment)
            assert code in (0, -signal.SIGKILL), output.read_text()
            if code:
                kills += 1
                struck.add("went on" if (folder / "state.safetensors").exists() else "started")
                struck |= {"writing" for _ in leftovers(folder)}
        assert_same(folder, runs / "whole")
    assert struck == {"started", "went on", "writing"}, f"{kills} kills in {rounds} rounds struck only {struck}"
