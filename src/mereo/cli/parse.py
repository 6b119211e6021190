"""Parses the command line; invalid usage gives an error of one line.

Checks that apply to the options of every command are made here: no empty words, no NUL characters, no number beyond
2^31, valid names of outputs, and regular files as inputs.
"""

import contextlib
import dataclasses
import io
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, TypeVar, get_args, get_origin

from mereo.cli.wrong_values import reworded
from mereo.errors import UsageError
from mereo.files import check_name

T = TypeVar("T")
_LONGEST = 500
_LARGEST = 2**31
LONGEST_PATH = 4096
OUTPUTS = ("out", "output", "name", "report")
"""Options that name outputs, in addition to `json` where it is a path."""
BOUNDS = {
    "batch_size": 2**20, "accumulate": 2**20, "in_chans": 2**12, "top": 2**20, "keep": 2**20, "threads": 2**12,
    "seeds": 10**4, "steps": 10**6, "queries": 10**7, "restarts": 10**4, "masking_images": 10**6, "epochs": 10**6,
    "memory_limit": 2**20, "seconds": 10**6, "checkpoint_seconds": 10**7, "images": 10**8,
}  # fmt: skip
"""Largest values of the options that sizes are computed from, in every command that has them."""
MAY_BE_EMPTY = ("--prompt",)
"""Options of which an empty value is valid."""
_EMPTY = "\0"
"""Stands for an empty word until its option is known, because an empty path would become the working folder."""
TASK_OPTION = "--task."
"""How an option of a task begins."""
MOST_SIDE = 2**15
"""Largest side of an image in pixels."""
_FRAME = re.compile(r"[─-╿]+|-{5,}")
"""The frame of an error message; drawn with minus signs in locales without line characters."""


def one_line(message: str) -> str:
    """The content of a framed error message: its first paragraph and the suggested options."""
    lines = [_FRAME.sub("", line).strip() for line in message.splitlines()[1:]]
    while lines and not lines[0]:
        lines.pop(0)
    paragraph: list[str] = []
    for line in lines:
        if not line:
            break
        paragraph.append(line)
    suggested: list[str] = []
    if "Perhaps you meant:" in lines:
        after = lines[lines.index("Perhaps you meant:") + 1 :]
        suggested = [line.split()[0].rstrip(",") for line in after if line.startswith("--")]
    text = " ".join(paragraph).rstrip(".") or " ".join(message.split())
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]} ..."
    if suggested:
        text += "; did you mean " + " or ".join(dict.fromkeys(suggested[:3])) + "?"
    return text if text.endswith("?") else text + "."


def _check_sides(words: Sequence[str]) -> None:
    """UsageError for the two sides of an image given as two words, because the second would be read as another
    argument."""
    for option, height, width in zip(words, words[1:], words[2:], strict=False):
        if option == "--img-size" and height.isdigit() and width.isdigit():
            raise UsageError(f"img_size is {height} {width}; write --img-size {height}x{width}, height x width.")


def _mark_empty(words: Sequence[str]) -> list[str]:
    """The words with a mark in place of empty ones and of empty values after an equals sign."""
    marked = []
    for before, word in zip(["", *words], words, strict=False):
        option, equals, value = word.partition("=")
        given = value if option.startswith("--") and equals else word
        empty = not given and (option if equals else before) not in MAY_BE_EMPTY
        marked.append(word + _EMPTY if empty else word)
    return marked


def is_empty(name: str) -> UsageError:
    """The error for an empty value of an option or argument."""
    return UsageError(f"{name} is ''; give a value, or leave it out.")


def join_task_options(words: Sequence[str]) -> list[str]:
    """The words with `--task.NAME VALUE` in the form that is parsed: one `--task-options NAME=VALUE ...` at the end.

    Raises:
        UsageError: for a `--task.NAME` without a value.
    """
    rest, options, left = list[str](), list[str](), list(words)
    while left:
        word = left.pop(0)
        if not word.startswith(TASK_OPTION):
            rest.append(word)
            continue
        name, equals, value = word.removeprefix(TASK_OPTION).partition("=")
        if not equals:
            if not left or left[0].startswith("--"):
                raise UsageError(f"{word} has no value; give one, such as {word} 0.5.")
            value = left.pop(0)
        options.append(f"{name.replace('-', '_')}={value}")
    return [*rest, "--task-options", *options] if options else rest


def _values(value: Any) -> Iterator[Any]:
    """All plain values of an option, including those in tuples and dicts."""
    if isinstance(value, dict):
        for name, entry in value.items():
            yield from (*_values(name), *_values(entry))
    elif isinstance(value, tuple | list):
        for entry in value:
            yield from _values(entry)
    else:
        yield value


def check_values(options: Any) -> None:
    """UsageError for the first option with a value that is invalid in every command."""
    for field in dataclasses.fields(options):
        name, given = field.name, getattr(options, field.name)
        for value in _values(given):
            if isinstance(value, str | Path):
                text = str(value)
                if text == _EMPTY:
                    raise is_empty(name)
                if "\0" in text or len(text) > LONGEST_PATH:
                    wrong = "contains NUL" if "\0" in text else f"is longer than {LONGEST_PATH} characters"
                    raise UsageError(f"{name} is {text[:60]!r}, which {wrong}.")
            elif isinstance(value, int) and not -_LARGEST < value < _LARGEST:
                raise UsageError(f"{name} is too large a number; it must be between -2^31 and 2^31.")
            if name in BOUNDS and isinstance(value, int | float) and value > BOUNDS[name]:
                raise UsageError(f"{name} is {value!r}; it must be at most {BOUNDS[name]:,}.")
            if name == "img_size" and isinstance(value, int) and value > MOST_SIDE:
                raise UsageError(f"img_size is {given!r}; it must be at most {MOST_SIDE:,}.")
        if given is not None and (name in OUTPUTS or (name == "json" and isinstance(given, Path))):
            check_name(name, given)
        # A pipe or a device might never answer.
        if isinstance(given, Path) and name in ("config", "weights", "against"):
            check_readable(name, given)
        if isinstance(given, tuple) and name == "weights":
            for path in given:
                check_readable(name, path)


def check_readable(name: str, path: Path) -> None:
    """UsageError for an existing path that is neither a file nor a folder."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise UsageError(f"{name} is {str(path)!r}, which is not a regular file or folder; give one.")


def _metavar(annotation: Any) -> str | None:
    """How the help names the value of an option that may be None: INT rather than {None}|INT."""
    marked = get_origin(annotation) is Annotated  # as positional
    kinds = set(get_args(get_args(annotation)[0] if marked else annotation))
    names: dict[Any, str] = {
        int: "INT", float: "FLOAT", str: "STR", Path: "PATH", tuple[float, ...]: "FLOAT [FLOAT ...]",
    }  # fmt: skip
    name = next((name for kind, name in names.items() if kinds == {kind, NoneType}), None)
    return f"[{name}]" if marked and name is not None else name


def _show_defaults(options: type) -> None:
    """Print a default in the help only where there is a value: for an empty list or None the text names the default."""
    from tyro.conf import arg

    def hint(value: str) -> str:
        return "" if value in ("", "None") else f"(default: {value})"

    for kind in options.__mro__:
        if dataclasses.is_dataclass(kind) and not kind.__dict__.get("_shows_defaults", False):
            for name, annotation in kind.__annotations__.items():
                kind.__annotations__[name] = Annotated[
                    annotation, arg(help_behavior_hint=hint, metavar=_metavar(annotation))
                ]
            type.__setattr__(kind, "_shows_defaults", True)


def parse(options: type[T], words: Sequence[str], command: str, default: T | None = None) -> T:
    """The options of one command; UsageError for invalid arguments. `--help` prints the help and exits with 0."""
    import tyro

    words = join_task_options(words)
    _check_sides(words)
    _show_defaults(options)
    errors, marked = io.StringIO(), _mark_empty(words)
    try:
        with contextlib.redirect_stderr(errors):
            if default is None:
                parsed = tyro.cli(options, args=marked, prog=f"mereo {command}")
            else:
                parsed = tyro.cli(options, args=marked, prog=f"mereo {command}", default=default)
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        text = errors.getvalue().replace(_EMPTY, "").replace(repr(_EMPTY), "''")
        message = reworded(one_line(text), options, words)
        raise UsageError(f"{message} See mereo {command} --help.") from None
    check_values(parsed)
    return parsed
