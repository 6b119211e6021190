"""Markdown tables, and the table of a constructor's arguments."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from site_pages.docstrings import blocks, entries, prose


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def arguments(of: Callable[..., Any]) -> str:
    """The arguments of a class or function: what its docstring says of each, beside its default."""
    parameters = inspect.signature(of).parameters
    described = {
        name: text
        for section, body in blocks(inspect.getdoc(of) or "")
        if section == "Args"
        for names, text in entries(body)
        for name in names.split(", ")
    }
    rows = []
    for name, parameter in parameters.items():
        default = "required" if parameter.default is parameter.empty else f"`{parameter.default!r}`"
        rows.append((f"`{name}`", default, prose(described.get(name, ""))))
    return table(("argument", "default", "what it is"), rows)
