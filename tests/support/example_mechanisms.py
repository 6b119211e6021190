"""Loads the mechanisms of tests/examples without leaving them in the catalogue."""

import importlib.util
import sys
from pathlib import Path

from mereo.core import MECHANISMS, Mechanism

FOLDER = Path(__file__).parents[1] / "examples"
_loaded: dict[Path, Mechanism] = {}


def files() -> list[Path]:
    return sorted(path for path in FOLDER.glob("*.py") if not path.stem.endswith("_tests"))


def load(path: Path) -> Mechanism:
    """The one mechanism that a file registers."""
    if path not in _loaded:
        before, name = dict(MECHANISMS), f"example_mechanisms_{path.stem}"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
            (_loaded[path],) = (entry for key, entry in MECHANISMS.items() if key not in before)
        finally:
            MECHANISMS.clear()
            MECHANISMS.update(before)
    return _loaded[path]
