"""From words on the command line to options, with wrong use told in one line."""

import contextlib
import io
import re
from collections.abc import Sequence
from typing import TypeVar

from mereo.errors import UsageError

T = TypeVar("T")
_LONGEST = 500
_FRAME = re.compile(r"[─-╿]+|-{5,}")
"""Lines are drawn with minus signs where the locale has no others."""


def one_line(message: str) -> str:
    """The sense of a framed error message: its first paragraph, and the options it suggests."""
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


def parse(options: type[T], words: Sequence[str], command: str, default: T | None = None) -> T:
    """Options of one command; UsageError for what cannot be parsed. `--help` prints and leaves with 0."""
    import tyro

    _check_sides(words)
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            if default is None:
                return tyro.cli(options, args=list(words), prog=f"mereo {command}")
            return tyro.cli(options, args=list(words), prog=f"mereo {command}", default=default)
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise UsageError(f"{one_line(errors.getvalue())} See mereo {command} --help.") from None
