"""The mark of reconstructions, held against what docstrings admit."""

import inspect
import re
import sys
from collections.abc import Callable
from typing import Any

ADMITS = re.compile(
    r"\b(?:only|neither|nor|not)\b[^.;]*\bavailable\b|\bhas no equations\b"
    r"|\bspecified here from\b|\breading of its abstract\b|\breadings of its abstract\b"
)
"""What a docstring says of a paper whose equations the authors of mereo did not have."""


def admits(target: Callable[..., Any]) -> bool:
    """Whether the docstring of a class or function, or of its module, says that equations were not available."""
    docs = (inspect.getdoc(target), inspect.getdoc(sys.modules[target.__module__]))
    return any(ADMITS.search(" ".join((doc or "").split())) for doc in docs)


def check_reconstruction(target: Callable[..., Any], reconstruction: str) -> None:
    """AssertionError for a docstring that says so without a mark, or a mark without a docstring that says so."""
    assert admits(target) == bool(reconstruction), f"{target.__name__}: {reconstruction or 'no reconstruction='}"
    assert reconstruction == reconstruction.strip().rstrip(".")
