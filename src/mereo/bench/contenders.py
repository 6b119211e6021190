"""External contenders, given as `module:callable`, and compiled versions of contenders."""

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from mereo.bench.case import Contender, Mode, Setting, Suite, Workload
from mereo.errors import UsageError, nearest


@contextlib.contextmanager
def _working_folder_importable() -> Iterator[None]:
    """The working folder on the path of imports, where `python -m` has it and a command does not."""
    here = str(Path.cwd())
    if here in sys.path:
        yield
        return
    # At the end, so that a json.py there does not replace Python's.
    sys.path.append(here)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(here)


def load_object(path: str, what: str) -> Any:
    """The object named `module:attribute`, with modules of the working folder."""
    module_name, colon, attribute = path.partition(":")
    if not (module_name and colon and attribute):
        raise UsageError(f"{what} is {path!r}; it must be written module:name, such as my_routing:route.")
    try:
        with _working_folder_importable():
            module = importlib.import_module(module_name)
    except Exception as error:  # an error of the other module is the caller's to fix
        reason = " ".join(str(error).split())
        raise UsageError(f"{what} is {path!r}; importing {module_name!r} failed: {reason}.") from error
    target: Any = module
    for part in attribute.split("."):
        if not hasattr(target, part):
            close = nearest(part, [n for n in dir(target) if not n.startswith("_")])
            hint = " Did you mean " + " or ".join(map(repr, close)) + "?" if close else ""
            raise UsageError(f"{what} is {path!r}; {module_name!r} has no {part!r}.{hint}")
        target = getattr(target, part)
    return target


def load_callable(path: str) -> Callable[..., Any]:
    """The callable that `module:callable` names."""
    target = load_object(path, "contender")
    if not callable(target):
        raise UsageError(f"contender is {path!r}, a {type(target).__name__}; it must be callable.")
    return target


def from_outside(path: str, suite: Suite, setting: Setting) -> Contender:
    """A contender that is not part of this package; `suite.takes` describes its arguments."""
    return Contender(path, suite.adopt(load_callable(path), setting), suite.adopted)


def compiled(contender: Contender) -> Contender:
    """The same under torch.compile, with eager's random numbers, so that both can be compared in training."""

    def build(mode: Mode) -> Workload:
        import torch

        workload = contender.build(mode)
        call = torch.compile(workload.call, dynamic=False, options={"fallback_random": True})
        return replace(workload, call=call)

    return replace(contender, name=f"{contender.name} compiled", build=build)
