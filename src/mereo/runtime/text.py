"""Numbers, names and tables formatted for people."""

from collections.abc import Sequence

from mereo.escape import for_terminal

ABBREVIATIONS = {"apgd": "APGD"}
"""Names that are written in capitals."""


def heading(name: str) -> str:
    """The name of a value in words: calibration_error as "calibration error", apgd as "APGD"."""
    return ABBREVIATIONS.get(name, name.replace("_", " "))


def percent(share: float, digits: int = 2) -> str:
    """0.9953 as 99.53 %."""
    return f"{100 * share:.{digits}f} %"


def counted(count: int, unit: str) -> str:
    """1 step, 1,200 steps: a count with its unit, whose plural has an s."""
    return f"{count:,} {unit}{'' if count == 1 else 's'}"


def rounded(number: float) -> str:
    """A rate or another amount in whole numbers, below ten with two digits: 1,234, 50, 2.5 or 0.04."""
    return f"{number:,.0f}" if number >= 9.95 or number == 0 else f"{number:.2g}"


def duration(seconds: float) -> str:
    """Seconds as 45 s, 3 min 20 s or 2 h 5 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def gibibytes(count: float) -> str:
    """Bytes of memory as 3.20 GiB or 200 MiB."""
    return f"{count / 2**30:.2f} GiB" if count >= 2**28 else f"{count / 2**20:.0f} MiB"


def megabytes(count: float) -> str:
    """Bytes of a file as 3.20 MB or 20.5 kB."""
    return f"{count / 1e6:.2f} MB" if count >= 1e5 else f"{count / 1e3:.1f} kB"


def text_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table in plain columns; without a heading if the columns have no names."""
    cells = [[for_terminal(cell) for cell in row] for row in rows]
    lines = [list(columns), *cells] if any(columns) else cells
    widths = [max((len(line[place]) for line in lines), default=0) for place in range(len(columns))]
    return "\n".join(
        "  ".join(c.ljust(width) for c, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
