"""Measurements cached in a file next to the measured network, and repeated if their settings differ."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mereo.files import read_regular, write_atomically

_LONGEST_FILE = 2**20


def cached_measurement(
    path: Path, settings: Mapping[str, Any], measure: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """The measurement in a file, if it was made with these settings; otherwise measure and write the file.

    Args:
        path: of a JSON document.
        settings: plain values that the measurement depends on.
        measure: returns plain values.
    """
    settings = json.loads(json.dumps(settings))
    try:
        content = json.loads(read_regular(path, _LONGEST_FILE))
    except (OSError, ValueError, RecursionError):
        content = None
    if isinstance(content, dict) and content.get("settings") == settings and isinstance(content.get("measured"), dict):
        return dict(content["measured"])
    measured = json.loads(json.dumps(measure()))
    write_atomically(path, json.dumps({"settings": settings, "measured": measured}, indent=2) + "\n")
    return dict(measured)
