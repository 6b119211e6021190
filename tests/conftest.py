"""What tests of several rooms share."""

import os
import sys
from pathlib import Path

import pytest

FROZEN = Path(__file__).parent / "frozen"


@pytest.fixture
def frozen():
    """Compares text with a file under tests/frozen; with MEREO_FREEZE=1 it writes the file instead."""

    def compare(name: str, text: str) -> None:
        path = FROZEN / name
        if os.environ.get("MEREO_FREEZE"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        assert path.read_text() == text, (
            f"{name} changed: if that is meant, run `make freeze` and say so in CHANGELOG.md"
        )

    return compare


@pytest.fixture
def python() -> str:
    return sys.executable
