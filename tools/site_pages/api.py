"""A page for each room of the package, filled by mkdocstrings."""

import ast
import inspect
import pkgutil
from importlib import import_module
from pathlib import Path
from types import ModuleType

import mereo
import mereo.mechanisms
from site_pages.docstrings import markdown

INTRODUCTION = """# API

The public names of each package. [How mereo is built](../architecture.md) describes the packages.

"""


def rooms() -> list[str]:
    """The packages under mereo, one for each family of mechanisms; the command line has a reference of its own."""
    packages = [m.name for m in pkgutil.iter_modules(mereo.__path__) if m.ispkg]
    families = [f"mechanisms.{m.name}" for m in pkgutil.iter_modules(mereo.mechanisms.__path__) if m.ispkg]
    return sorted([*(name for name in packages if name not in ("cli", "mechanisms")), *families])


def home(module: ModuleType, name: str) -> str:
    """Where a public name of a module is defined, in full: a function and its file may share a name."""
    value = getattr(module, name)
    if inspect.isclass(value) or inspect.isfunction(value):
        return f"{value.__module__}.{value.__qualname__}"
    for node in ast.parse(Path(module.__file__ or "").read_text()).body:
        if isinstance(node, ast.ImportFrom) and name in (alias.name for alias in node.names):
            return home(import_module(node.module or ""), name)
    return f"{module.__name__}.{name}"


def page(name: str) -> str:
    """The page of one room: its public names, or, where it names none, its files."""
    module = import_module(name)
    if hasattr(module, "__all__"):
        shown = [f"::: {home(module, public)}" for public in sorted(module.__all__, key=str.lower)]
    else:
        files = [f"{name}.{m.name}" for m in pkgutil.iter_modules(module.__path__) if not m.name.startswith("_")]
        shown = [f"::: {file}\n    options:\n      show_root_full_path: true" for file in files]
    return "\n\n".join((f"# {name}", markdown(module.__doc__ or "").rstrip(), *shown)) + "\n"


def pages() -> dict[str, str]:
    """All of them, and a list."""
    names = ["mereo", *(f"mereo.{room}" for room in rooms())]
    made = {f"api/{name.rpartition('.')[2]}.md": page(name) for name in names}
    summaries = ((import_module(name).__doc__ or "").splitlines()[0] for name in names)
    listed = "".join(f"- [{n}]({n.rpartition('.')[2]}.md): {s}\n" for n, s in zip(names, summaries, strict=True))
    return {"api/index.md": INTRODUCTION + listed} | made
