"""Text of unknown origin made harmless: names of files and classes, licences and commands hold any characters."""

import re
import unicodedata

_MARKDOWN = re.compile(r"([\\`*{}\[\]<>#|~$&@]|(?<!\w)_|_(?!\w)|(?<=:)/(?=/)|(?<=www)\.)")
"""What begins markup, HTML or a link."""
_ESCAPED = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
"""Categories of characters that a screen obeys or cannot show: control, format (bidi overrides), surrogates ..."""


def for_terminal(text: object, *, lines: bool = False) -> str:
    r"""Text that a terminal shows and never obeys: control and format characters as \x1b, \u202e.

    Args:
        text: what is shown, as `str` gives it.
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
    """Text that stands in Markdown as it is, on one line: no markup, no HTML, no end of a table's cell."""
    return _MARKDOWN.sub(r"\\\1", for_terminal(text))


def fenced(text: object, language: str = "") -> str:
    """Text as a block of code in Markdown, within a fence longer than any in the text."""
    body = for_terminal(text, lines=True)
    ticks = max((len(run) for run in re.findall("`+", body)), default=0)
    fence = "`" * max(ticks + 1, 3)
    return f"{fence}{language}\n{body}\n{fence}"


def cut(text: str, most: int) -> str:
    """Text of at most so many characters, its middle left out where it is longer."""
    if len(text) <= most:
        return text
    half = (most - 5) // 2
    return f"{text[:half]} ... {text[-half:]}"
