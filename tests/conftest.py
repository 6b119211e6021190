"""What tests of several rooms share."""

import gc
import os
import sys
from pathlib import Path

import pytest
import torch

FROZEN = Path(__file__).parent / "frozen"


def pytest_collection_finish():
    # What is imported and collected stays, so the collector need not walk over it again in every test.
    gc.freeze()


@pytest.fixture(autouse=True)
def _alike_everywhere():
    # Tests run side by side, so that threads of one would wait for another's; and each starts from one seed,
    # whatever ran before it.
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    # What one test compiled counts towards the number of recompilations of the next.
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None and dynamo.utils.counters:
        dynamo.reset()
        dynamo.utils.counters.clear()


@pytest.fixture
def frozen():
    """Compares text with a file under tests/frozen; with MEREO_FREEZE=1 it writes the file instead."""

    def compare(name: str, text: str) -> None:
        path = FROZEN / name
        if os.environ.get("MEREO_FREEZE"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        assert path.read_text() == text, (
            f"{name} changed: if this is intended, run `make freeze` and add a line to CHANGELOG.md"
        )

    return compare


@pytest.fixture(scope="session")
def python() -> str:
    return sys.executable


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory) -> Path:
    """The folder of a short run on the digits, for tests that only read it."""
    from mereo.training.config import TrainConfig
    from mereo.training.report import Report
    from mereo.training.trainer import train

    torch.set_num_threads(1)
    config = TrainConfig().replace(
        model="mspcaps_tiny", data="digits", model_args={"channels": [4, 8, 8], "patch_size": 2}, img_size=16,
        limit=300, batch_size=32, epochs=3, lr=5e-3, warmup_epochs=0.0, augment=("none",), tensorboard=False,
        device="cpu", seed=3, output=str(tmp_path_factory.mktemp("runs")), name="small",
    )  # fmt: skip
    return train(config, Report(silent=True)).folder.path
