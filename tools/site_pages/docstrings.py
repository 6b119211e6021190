"""Docstrings of this project as Markdown.

A docstring has paragraphs and sections. A section starts with one of SECTIONS and a colon, or a cost with its condition
(`Cost at 28x28:`). A paragraph that is indented, or that does not end as a sentence does, is a formula or code and is
shown as it stands.
"""

import inspect
import re
from collections.abc import Callable

from mereo.core.source import Source

LISTS = ("Args", "Attributes")
SECTIONS = (*LISTS, "Shapes", "Returns", "Raises", "Reads as", "Deviates", "Reference", "Source", "Cost", "Examples")
_SECTION = re.compile(rf"^({'|'.join(SECTIONS)}|Cost [\w ]+):(?:\s+|$)", re.MULTILINE)
_ENTRY = re.compile(r"(?:([\w*]+(?:, [\w*]+)*): )?(.*)")
_SOURCE = re.compile(r"(arXiv:\d{4}\.\d{4,5}|doi:10\.\d{4,9}/[^\s,;)]*[\w/]|https?://[^\s,;)]*[\w/])")


def prose(text: str) -> str:
    """A paragraph: characters that Markdown would interpret are escaped, arXiv ids, DOIs and URLs become links."""
    parts = " ".join(text.split()).split("`")
    for i in range(0, len(parts), 2):
        pieces = _SOURCE.split(parts[i])
        pieces[::2] = [re.sub(r"([\\*_\[\]|])", r"\\\1", piece).replace("<", "&lt;") for piece in pieces[::2]]
        pieces[1::2] = [Source(piece).markdown for piece in pieces[1::2]]
        parts[i] = "".join(pieces)
    return "`".join(parts)


def code(text: str) -> str:
    """A formula or code, as it stands."""
    return f"```text\n{inspect.cleandoc(text)}\n```"


def entries(body: str) -> list[tuple[str, str]]:
    """The entries of a list section, `names: what they are`, as (names, text); one without a name has "" for it."""
    lines = [" ".join(entry.split()) for entry in re.split(r"\n(?!\s)", inspect.cleandoc(body))]
    return [(match[1] or "", match[2]) for line in lines if (match := _ENTRY.fullmatch(line)) is not None]


def blocks(text: str) -> list[tuple[str, str]]:
    """The parts of a docstring in order, as (section, body); the section of a plain paragraph is ""."""
    sections: list[tuple[str, str]] = []
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        if sections and sections[-1][0] in LISTS and paragraph.startswith(" "):
            sections[-1] = sections[-1][0], f"{sections[-1][1]}\n{paragraph}"
            continue
        pieces = _SECTION.split(paragraph)
        if pieces[0].strip():
            sections.append(("", pieces[0].rstrip()))
        sections += [(name, body.rstrip()) for name, body in zip(pieces[1::2], pieces[2::2], strict=True)]
    return sections


def _row(names: str, text: str) -> str:
    return f"- `{names.replace(', ', '`, `')}`: {prose(text)}" if names else f"- {prose(text)}"


def _paragraph(body: str) -> str:
    verbatim = body.startswith(" ") or not body.endswith((".", ":", "?"))
    return code(body) if verbatim else prose(body)


def markdown(text: str, keep: Callable[[str], bool] = lambda section: True) -> str:
    """A docstring as Markdown.

    Args:
        text: the docstring.
        keep: whether a section shall be there, by its name.
    """
    parts = []
    for i, (section, body) in enumerate(blocks(text)):
        if not keep(section):
            continue
        if not section:
            # The first line is a sentence even where it lacks its full stop.
            parts.append(prose(body) if i == 0 else _paragraph(body))
        elif section in LISTS:
            parts += [f"**{section}**", "\n".join(_row(names, entry) for names, entry in entries(body))]
        elif section == "Examples":
            parts += [f"**{section}**", code(body)]
        else:
            parts.append(f"**{section}:** {prose(body)}")
    # Neighbouring pieces of code are one.
    return "\n\n".join(parts).replace("\n```\n\n```text\n", "\n\n") + "\n"
