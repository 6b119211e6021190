"""From words on the command line to options; wrong use is an error of one line.

What holds for the options of every command is checked here: no NUL, no number beyond 2^31, outputs with names that can
be read back, regular files where a file is read.
"""

import contextlib
import dataclasses
import io
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from mereo.errors import UsageError
from mereo.files import check_name

T = TypeVar("T")
_LONGEST = 500
_LARGEST = 2**31
LONGEST_PATH = 4096
OUTPUTS = ("out", "output", "name", "report")
"""Options that name what is written, beside `json` where it is a path."""
BOUNDS = {
    "batch_size": 2**20, "accumulate": 2**20, "in_chans": 2**12, "top": 2**20, "keep": 2**20, "threads": 2**12,
    "seeds": 10**4, "steps": 10**6, "queries": 10**7, "restarts": 10**4, "masking_images": 10**6, "epochs": 10**6,
    "memory_limit": 2**20, "seconds": 10**6, "checkpoint_seconds": 10**7, "images": 10**8,
}  # fmt: skip
"""The largest value of options from which sizes are computed, in every command that has them."""
MOST_SIDE = 2**15
"""Of images, in pixels."""
_FRAME = re.compile(r"[─-╿]+|-{5,}")
"""Lines are drawn with minus signs where the locale has no others."""


def one_line(message: str) -> str:
    """The content of a framed error message: its first paragraph, and the options it suggests."""
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
    """UsageError for two sides of an image as two words: the second would be taken for something else."""
    for option, height, width in zip(words, words[1:], words[2:], strict=False):
        if option == "--img-size" and height.isdigit() and width.isdigit():
            raise UsageError(f"img_size is {height} {width}; write --img-size {height}x{width}, height x width.")


def _values(value: Any) -> Iterator[Any]:
    """All plain values of an option, also those in tuples and tables."""
    if isinstance(value, dict):
        for name, entry in value.items():
            yield from (*_values(name), *_values(entry))
    elif isinstance(value, tuple | list):
        for entry in value:
            yield from _values(entry)
    else:
        yield value


def _check_values(options: Any) -> None:
    """UsageError for the first option that no command can use."""
    for field in dataclasses.fields(options):
        name, given = field.name, getattr(options, field.name)
        for value in _values(given):
            if isinstance(value, str | Path):
                text = str(value)
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
    """UsageError for a path that is there and is neither a file nor a folder."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise UsageError(f"{name} is {str(path)!r}, which is not a regular file or folder; name one.")


def parse(options: type[T], words: Sequence[str], command: str, default: T | None = None) -> T:
    """Options of one command; UsageError for what cannot be parsed. `--help` prints and leaves with 0."""
    import tyro

    _check_sides(words)
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            if default is None:
                found = tyro.cli(options, args=list(words), prog=f"mereo {command}")
            else:
                found = tyro.cli(options, args=list(words), prog=f"mereo {command}", default=default)
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise UsageError(f"{one_line(errors.getvalue())} See mereo {command} --help.") from None
    _check_values(found)
    return found
