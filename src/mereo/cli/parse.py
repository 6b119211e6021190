"""Parses the command line; invalid usage gives an error of one line."""

import contextlib
import dataclasses
import io
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, TypeVar, get_args, get_origin

from mereo.cli.help_groups import grouped
from mereo.cli.wrong_values import reworded
from mereo.errors import UsageError
from mereo.training.arguments import EMPTY, check_values

T = TypeVar("T")
_LONGEST = 500
MAY_BE_EMPTY = ("--prompt",)
"""Options whose empty value is valid."""
TASK_OPTION = "--task."
"""How an option of a task begins."""
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
        marked.append(word + EMPTY if empty else word)
    return marked


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


class _Printed(io.StringIO):
    """Collects what is printed, with the characters of the terminal."""

    encoding: str = "ascii"

    def __init__(self) -> None:
        super().__init__()
        self.encoding = getattr(sys.stdout, "encoding", None) or "ascii"


def parse(
    options: type[T], words: Sequence[str], command: str, *, groups: Mapping[str, Sequence[str]] | None = None
) -> T:
    """The options of one command; UsageError for invalid arguments. `--help` prints the help and exits with 0.

    Args:
        options: a dataclass.
        words: of the command line.
        command: its name.
        groups: names of options by the title under which the help prints them.
    """
    import tyro

    words = join_task_options(words)
    _check_sides(words)
    _show_defaults(options)
    errors, marked, printed = io.StringIO(), _mark_empty(words), _Printed()
    try:
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(printed) if groups else nullcontext():
            parsed = tyro.cli(options, args=marked, prog=f"mereo {command}")
    except SystemExit as stop:
        if stop.code in (0, None):
            if groups:
                sys.stdout.write(grouped(printed.getvalue(), groups))
            raise
        text = errors.getvalue().replace(EMPTY, "").replace(repr(EMPTY), "''")
        message = reworded(one_line(text), options, words)
        raise UsageError(f"{message} See mereo {command} --help.") from None
    check_values(parsed)
    return parsed
