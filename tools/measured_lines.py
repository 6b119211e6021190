"""Write what `mereo bench backbones` measured into docs/backbones.md: python tools/measured_lines.py RUN.json ...

Each network's section has a comment such as `<!-- measured davit_tiny -->`, below which its line stands, and
`<!-- measured conditions -->` stands above the line about the machine; both lines begin with "Measured". Where several
runs measured the same, the first file counts, so that times of a quiet machine go before a run made for its peaks of
memory.
"""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from mereo.bench.report import milliseconds
from mereo.bench.results import Measurement, Run, read_run
from mereo.bench.suites.backbones import COMPILED, FUSED, OURS, TIMM, TIMM_COMPILED

PAGE = Path(__file__).parent.parent / "docs" / "backbones.md"
MARK = re.compile(r"(<!-- measured ([\w.]+) -->\n)(?:\nMeasured[^\n]*\n(?:[^\n]+\n)*)?")
WIDTH = 120


def _find(runs: Sequence[Run], model: str, batch: int, mode: str, contender: str, fact: str) -> Measurement | None:
    """The first trusted measurement that has a fact."""
    wanted = (model, batch, mode, contender)
    measured = (m for run in runs for m in run.measurements if m.trusted and getattr(m, fact) is not None)
    return next((m for m in measured if (m.sizes["model"], m.sizes["batch"], m.mode, m.contender) == wanted), None)


def _time(runs: Sequence[Run], model: str, batch: int, mode: str, contender: str) -> float | None:
    m = _find(runs, model, batch, mode, contender, "wall")
    return m.wall.median if m is not None and m.wall is not None else None


def _against(runs: Sequence[Run], model: str, batch: int, mode: str, pairs: Sequence[tuple[str, str, str]]) -> str:
    """ "371 ms; fused 350 ms; timm 427 ms (1.15, fused 1.22 times as fast)", as far as it was measured."""
    ours = _time(runs, model, batch, mode, OURS)
    if ours is None:
        return ""
    shown = [f"{milliseconds(ours)} ms"]
    ratios = []
    for title, contender, beside in pairs:
        one, other = _time(runs, model, batch, mode, contender), _time(runs, model, batch, mode, beside)
        if one is None:
            continue
        if contender != OURS:
            shown.append(f"{title} {milliseconds(one)} ms")
        if other is not None:
            ratios.append(f"{title} {other / one:.2f}".strip())
    theirs = _time(runs, model, batch, mode, TIMM)
    if theirs is not None:
        shown.append(f"timm {milliseconds(theirs)} ms")
    return ", ".join(shown) + (f" ({', '.join(ratios)} times as fast)" if ratios else "")


def _peaks(runs: Sequence[Run], model: str, batch: int) -> str:
    parts = []
    for title, mode in (("inference", "forward"), ("training", "training")):
        ours, theirs = (_find(runs, model, batch, mode, name, "resident") for name in (OURS, TIMM))
        if ours is None or ours.resident is None:
            continue
        beside = f" ({ours.resident / theirs.resident:.2f} of timm's)" if theirs and theirs.resident else ""
        parts.append(f"{title} {ours.resident / 2**20:,.0f} MiB{beside}")
    return ", ".join(parts)


def line(runs: Sequence[Run], model: str) -> str:
    """What was measured of a network, in sentences; "" where nothing was."""
    batches = sorted({m.sizes["batch"] for run in runs for m in run.measurements if m.sizes["model"] == model})
    sentences = []
    for batch in reversed(batches):
        images = "1 image" if batch == 1 else f"{batch} images"
        eager = [("", OURS, TIMM), ("fused", FUSED, TIMM)]
        compiled = [("compiled", COMPILED, TIMM_COMPILED)]
        said = _against(runs, model, batch, "forward", eager if batch == 1 else [*eager, *compiled])
        sentences += [f"{images} {said}"] if said else []
        said = _against(runs, model, batch, "training", [("", OURS, TIMM), *compiled])
        sentences += [f"training step of {images} {said}"] if said else []
        peaks = _peaks(runs, model, batch)
        sentences += [f"peak memory {peaks}"] if peaks else []
    return f"Measured, `{model}`: {'; '.join(sentences)}." if sentences else ""


def conditions(runs: Sequence[Run]) -> str:
    """The machine of the first run, and how it measured."""
    facts, options = runs[0].machine, runs[0].options
    threads = " and ".join(map(str, sorted({m.threads for m in runs[0].measurements})))
    return (
        f"Measured on {facts['processor']} with {threads} threads, torch {facts['torch']}, float32: medians of rounds"
        f" in which the networks took turns, {options['seconds']:g} s for each or longer; memory above weights and"
        " inputs. In brackets: timm's time over ours, of compiled networks timm's compiled one over ours."
    )


def _wrapped(text: str) -> str:
    """Lines of at most `WIDTH` columns."""
    lines = [""]
    for word in text.split(" "):
        if lines[-1] and len(lines[-1]) + 1 + len(word) > WIDTH:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    return "\n".join(lines) + "\n"


def fill(text: str, runs: Sequence[Run]) -> tuple[str, list[str]]:
    """The page with the lines of all networks that were measured, and the names of those."""
    filled: list[str] = []

    def replaced(mark: re.Match[str]) -> str:
        measured = conditions(runs) if mark[2] == "conditions" else line(runs, mark[2])
        filled.extend([mark[2]] if measured else [])
        return f"{mark[1]}\n{_wrapped(measured)}" if measured else mark[0]

    return MARK.sub(replaced, text), filled


if __name__ == "__main__":
    if not sys.argv[1:]:
        sys.exit("give the JSON files of mereo bench backbones, the one with the best times first")
    page, names = fill(PAGE.read_text(), [read_run(Path(name)) for name in sys.argv[1:]])
    PAGE.write_text(page)
    print(f"{PAGE}: {', '.join(names)}")
