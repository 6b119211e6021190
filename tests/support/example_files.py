"""Loads the files of tests/examples without leaving what they register."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from mereo.core import MECHANISMS, Mechanism

FOLDER = Path(__file__).parents[1] / "examples"
_loaded: dict[Path, Mechanism] = {}


def files(room: str = "") -> list[Path]:
    """Examples, without their tests: the mechanisms, or examples in the folder "models", "data" or "tasks"."""
    return sorted(path for path in (FOLDER / room).glob("*.py") if not path.stem.endswith("_tests"))


def execute(path: Path) -> ModuleType:
    """One file as a module; what it registers stays."""
    name = f"example_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load(path: Path) -> Mechanism:
    """The one mechanism that a file registers, which leaves the catalogue again."""
    if path not in _loaded:
        before = dict(MECHANISMS)
        try:
            execute(path)
            (_loaded[path],) = (entry for key, entry in MECHANISMS.items() if key not in before)
        finally:
            MECHANISMS.clear()
            MECHANISMS.update(before)
    return _loaded[path]
