"""What is beside the library in a clone of the repository and not in its wheel: the folder `papers`."""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

ELSEWHERE = (
    "the experiments and suites of the papers are in papers/ of the repository, not in the installed package;"
    " run the command in a clone."
)


def find_papers() -> ModuleType | None:
    """The module `papers.listing` of the clone that mereo is imported from, or of the working folder; None outside."""
    for root in (Path(__file__).parents[3], Path.cwd()):
        if (root / "papers" / "listing.py").is_file() and (root / "src" / "mereo").is_dir():
            if str(root) not in sys.path:
                # At the end, so that no folder of the clone replaces an installed package.
                sys.path.append(str(root))
            return import_module("papers.listing")
    return None
