"""The cases of a request and their contenders: of the suite, from outside as `module:callable`, and compiled ones."""

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mereo.bench.suite import Case, Contender, Mode, Setting, Suite, Value, Workload
from mereo.errors import UsageError, check_positive, nearest, unknown


@dataclass(frozen=True)
class Request:
    """The cases to measure, and how to measure them.

    Attributes:
        suite: its name, or `module:attribute` of one from outside.
        quick: small sizes and few rounds; compiled contenders and gradients in float64 are left out.
        sizes: (name, values) to measure instead of the suite's own; several values make a sweep.
        threads: thread counts, 0 for all; the suite's own when empty.
        outside: contenders from outside, `module:callable`.
        compile: also measure a compiled version of every contender.
        memory: measure peak memory.
        seconds: spent on timing each contender in each mode.
        device: a device of PyTorch.
        limit: bytes that a contender may take while memory is measured; the suite's own when None.
    """

    suite: str
    quick: bool = False
    sizes: tuple[tuple[str, tuple[Value, ...]], ...] = ()
    threads: tuple[int, ...] = ()
    outside: tuple[str, ...] = ()
    compile: bool = False
    memory: bool = True
    seconds: float = 5.0
    device: str = "cpu"
    limit: int | None = None

    def check(self) -> None:
        """UsageError for invalid numbers."""
        check_positive(seconds=self.seconds)
        if self.limit is not None:
            check_positive(limit=self.limit)
        for count in self.threads:
            if count < 0:
                raise UsageError(f"threads is {count}; it must be at least 1, or 0 for all.")


def parse_sizes(texts: Sequence[str]) -> tuple[tuple[str, tuple[Value, ...]], ...]:
    """["batch=8", "parents=10,100"] -> (("batch", (8,)), ("parents", (10, 100)))."""
    pairs = []
    for text in texts:
        name, equals, values = text.partition("=")
        entries = tuple(v.strip() for v in values.split(","))
        if not (name and equals and all(entries)):
            raise UsageError(f"sizes has {text!r}; it must be written name=value or name=value,value.")
        pairs.append((name.strip(), tuple(int(v) if v.lstrip("+-").isdecimal() else v for v in entries)))
    return tuple(pairs)


def all_threads() -> int:
    """The number of threads that this process may run at once."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _checked(suite: Suite, name: str, values: tuple[Value, ...]) -> tuple[Value, ...]:
    if name not in suite.sizes:
        raise unknown(f"size of {suite.name}", name, suite.sizes)
    number = isinstance(suite.sizes[name], int)
    for value in values:
        if number != isinstance(value, int):
            kind = "a whole number" if number else "a name"
            raise UsageError(f"{name} is {value!r}; it must be {kind}.")
        if isinstance(value, int):
            check_positive(**{name: value})
    return values


def make_cases(suite: Suite, request: Request) -> list[Case]:
    """The cases of a suite, in the order in which they are measured."""
    base = {**suite.sizes, **(suite.quick if request.quick else {})}
    sweeps = {**suite.sweeps, **(suite.quick_sweeps if request.quick else {})}
    for name, values in request.sizes:
        checked = _checked(suite, name, values)
        if len(checked) > 1:
            sweeps[name] = checked
        else:
            base[name] = checked[0]
            sweeps.pop(name, None)
    places: list[tuple[str, dict[str, Value]]] = [(axis, {axis: v}) for axis, values in sweeps.items() for v in values]
    counts = [count or all_threads() for count in request.threads or suite.threads]
    cases = []
    for axis, changed in places or [("", {})]:
        setting = Setting({**base, **changed}, request.device)
        for threads in dict.fromkeys(counts):
            words = [f"{name}={value}" for name, value in changed.items()]
            cases.append(Case(" ".join([*words, f"threads={threads}"]), setting, axis, threads, suite.modes))
            for further, modes in suite.also:
                if further.items() <= setting.sizes.items():
                    continue  # measured already, as under --quick
                other = Setting({**setting.sizes, **further}, request.device)
                names = [*words, *(f"{name}={value}" for name, value in further.items()), f"threads={threads}"]
                cases.append(Case(" ".join(names), other, axis, threads, modes))
    return cases


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


def contenders_of(suite: Suite, setting: Setting, request: Request) -> list[Contender]:
    """Reference first, then the suite's own, those from outside, and compiled twins."""
    contenders = list(suite.contenders(setting))
    contenders += [from_outside(path, suite, setting) for path in request.outside]
    if request.compile:
        known = {c.name for c in contenders}
        twins = [compiled(c) for c in contenders if c.role != "part" and not c.name.endswith(" compiled")]
        contenders += [c for c in twins if c.name not in known]
    elif request.quick:
        contenders = [c for c in contenders if not c.name.endswith(" compiled")]
    names = [c.name for c in contenders]
    return [c if names.count(c.name) == 1 else replace(c, name=f"{c.name} ({i})") for i, c in enumerate(contenders)]
