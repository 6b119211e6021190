"""Put into docs/architecture.md which mechanisms exchange by the table of executions, and which do not.

Run as `python tools/exchange_table.py`. Every mechanism of the catalogue runs its example once, unwatched. Of those
that record couplings, some call `mereo.core.kernels.methods.execute`; the others make them by the verbs alone.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

import document_marks
from mereo.catalogue import MECHANISMS
from mereo.core import Mechanism
from mereo.core.kernels.methods import execute
from mereo.core.mechanism_checks import build, example, gives_a_module

PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"
COLUMNS = ("family", "by the table of executions", "by the verbs alone", "without couplings (it records)")


@contextmanager
def calls_of(function: Callable[..., Any]) -> Iterator[list[CodeType]]:
    """The calls of a function inside the block."""
    made: list[CodeType] = []

    def watch(frame: FrameType, event: str, value: Any) -> None:
        if event == "call" and frame.f_code is function.__code__:  # type: ignore[attr-defined]
            made.append(frame.f_code)

    sys.setprofile(watch)
    try:
        yield made
    finally:
        sys.setprofile(None)


def way(entry: Mechanism) -> str:
    """ "table", "verbs", or what the mechanism records instead of couplings."""
    whole = gives_a_module(entry)
    module, inputs = build(entry) if whole else example(entry)
    with calls_of(execute) as made, torch.no_grad(), nullcontext() if whole else entry.target(module):
        module(*inputs)
    if entry.records != "couplings":
        return entry.records
    return "table" if made else "verbs"


def table() -> str:
    """The table, a row a family."""
    families: dict[str, dict[str, list[str]]] = {}
    for name, entry in sorted(MECHANISMS.items()):
        families.setdefault(entry.family, {}).setdefault(way(entry), []).append(name)
    rows = [f"| {' | '.join(COLUMNS)} |", "|---|---|---|---|"]
    for family, ways in sorted(families.items()):
        through, alone = (", ".join(ways.pop(kind, [])) or "-" for kind in ("table", "verbs"))
        others = "; ".join(f"{', '.join(names)} ({kind})" for kind, names in sorted(ways.items())) or "-"
        rows.append(f"| {family} | {through} | {alone} | {others} |")
    return "\n".join(rows)


if __name__ == "__main__":
    document_marks.fill(PAGE, "exchange", ["families"], lambda _: table())
