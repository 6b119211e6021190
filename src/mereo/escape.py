"""Escapes text of unknown origin: names of files and classes, licences and commands may contain any character."""

import re
import unicodedata
from collections.abc import Sequence

_MARKDOWN = re.compile(r"([\\`*{}\[\]<>#|~$&@]|(?<!\w)_|_(?!\w)|(?<=:)/(?=/)|(?<=www)\.)")
"""Characters that start markup, HTML or a link."""
_ESCAPED = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
"""Unicode categories that a terminal interprets or cannot show: control, format (bidi overrides), surrogates ..."""


def for_terminal(text: object, *, lines: bool = False) -> str:
    r"""Text that is safe to print on a terminal: control and format characters are written as \x1b, \u202e.

    Args:
        text: shown as `str` gives it.
        lines: whether line breaks are kept.
    """
    shown = str(text)
    if shown.isprintable():
        return shown
    return "".join(
        c if (lines and c == "\n") or unicodedata.category(c) not in _ESCAPED else c.encode("unicode_escape").decode()
        for c in shown
    )


def for_markdown(text: object) -> str:
    """Text as a single line of literal Markdown: no markup, no HTML, no end of a table cell."""
    return _MARKDOWN.sub(r"\\\1", for_terminal(text))


def fenced(text: object, language: str = "") -> str:
    """Text as a block of code in Markdown, within a fence longer than any in the text."""
    body = for_terminal(text, lines=True)
    ticks = max((len(run) for run in re.findall("`+", body)), default=0)
    fence = "`" * max(ticks + 1, 3)
    return f"{fence}{language}\n{body}\n{fence}"


def cut(text: str, most: int) -> str:
    """Text of limited length; the middle of a longer text is left out."""
    if len(text) <= most:
        return text
    half = (most - 5) // 2
    return f"{text[:half]} ... {text[-half:]}"


def listed(entries: Sequence[str], most: int = 3) -> str:
    """The first entries, the middle of long ones left out, and how many more there are."""
    more = f"; and {len(entries) - most} more" if len(entries) > most else ""
    return "; ".join(cut(entry, 200) for entry in entries[:most]) + more
