"""Write what `mereo bench backbones` measured into docs/backbones.md: python tools/measured_lines.py RUN.json ...

The line of a network goes below its mark, such as `<!-- measured davit_tiny -->`, and the line about the machine below
`<!-- measured conditions -->`; networks that were not measured keep their lines. If several files have a measurement,
the first one is used, so name a run with the times of a quiet machine before a run made for its peaks of memory.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import document_marks
from mereo.bench.results import Measurement, Run, read_run
from mereo.bench.suites.backbones import COMPILED, FUSED, OURS, TIMM, TIMM_COMPILED
from mereo.bench.tables import milliseconds

PAGE = Path(__file__).parent.parent / "docs" / "backbones.md"
WIDTH = 120


def _find(runs: Sequence[Run], model: str, batch: int, mode: str, contender: str, fact: str) -> Measurement | None:
    """The first trusted measurement that has a fact."""
    wanted = (model, batch, mode, contender)
    measured = (m for run in runs for m in run.measurements if m.trusted and getattr(m, fact) is not None)
    return next((m for m in measured if (m.sizes["model"], m.sizes["batch"], m.mode, m.contender) == wanted), None)


def _time(runs: Sequence[Run], model: str, batch: int, mode: str, contender: str) -> float | None:
    m = _find(runs, model, batch, mode, contender, "wall")
    return m.wall.median if m is not None and m.wall is not None else None


def _reference(runs: Sequence[Run], model: str) -> tuple[str, str]:
    """The contender beside ours, and its name in the page: the authors' code where it was given, or timm."""
    given = {contender for run in runs for contender in run.options["outside"]}
    measured = [m.contender for run in runs for m in run.measurements if m.sizes["model"] == model]
    names = [name for name in measured if name in given]
    return (names[0], "the authors' code") if names else (TIMM, "timm")


def _against(runs: Sequence[Run], model: str, batch: int, mode: str, pairs: Sequence[tuple[str, str, str]]) -> str:
    """ "371 ms; fused 350 ms; timm 427 ms (1.15, fused 1.22 times as fast)", as far as it was measured."""
    ours = _time(runs, model, batch, mode, OURS)
    if ours is None:
        return ""
    shown = [f"{milliseconds(ours)} ms"]
    ratios = []
    for title, contender, reference in pairs:
        one, other = _time(runs, model, batch, mode, contender), _time(runs, model, batch, mode, reference)
        if one is None:
            continue
        if contender != OURS:
            shown.append(f"{title} {milliseconds(one)} ms")
        if other is not None:
            ratios.append(f"{title} {other / one:.2f}".strip())
    contender, title = _reference(runs, model)
    theirs = _time(runs, model, batch, mode, contender)
    if theirs is not None:
        shown.append(f"{title} {milliseconds(theirs)} ms")
    return ", ".join(shown) + (f" ({', '.join(ratios)} times as fast)" if ratios else "")


def _peaks(runs: Sequence[Run], model: str, batch: int) -> str:
    parts = []
    for title, mode in (("inference", "forward"), ("training", "training")):
        ours, theirs = (_find(runs, model, batch, mode, name, "resident") for name in (OURS, TIMM))
        if ours is None or ours.resident is None:
            continue
        ratio = f" ({ours.resident / theirs.resident:.2f} of timm's)" if theirs and theirs.resident else ""
        parts.append(f"{title} {ours.resident / 2**20:,.0f} MiB{ratio}")
    return ", ".join(parts)


def line(runs: Sequence[Run], model: str) -> str:
    """What was measured of a network, in sentences; "" where nothing was."""
    batches = sorted({m.sizes["batch"] for run in runs for m in run.measurements if m.sizes["model"] == model})
    reference, _ = _reference(runs, model)
    sentences = []
    for batch in reversed(batches):
        images = "1 image" if batch == 1 else f"{batch} images"
        eager = [("", OURS, reference), ("fused", FUSED, reference)]
        compiled = [("compiled", COMPILED, TIMM_COMPILED)]
        times = _against(runs, model, batch, "forward", eager if batch == 1 else [*eager, *compiled])
        sentences += [f"{images} {times}"] if times else []
        times = _against(runs, model, batch, "training", [("", OURS, reference), *compiled])
        sentences += [f"training step of {images} {times}"] if times else []
        peaks = _peaks(runs, model, batch)
        sentences += [f"peak memory {peaks}"] if peaks else []
    return f"Measured, `{model}`: {'; '.join(sentences)}." if sentences else ""


def conditions(runs: Sequence[Run]) -> str:
    """The machine of the first run, and how it measured."""
    facts, options = runs[0].machine, runs[0].options
    threads = " and ".join(map(str, sorted({m.threads for m in runs[0].measurements})))
    peaks = any(m.resident is not None for run in runs for m in run.measurements)
    return (
        f"Measured on {facts['processor']} with {threads} threads, torch {facts['torch']}, float32: medians of rounds"
        f" in which the networks took turns, {options['seconds']:g} s for each or longer"
        f"{'; memory above weights and inputs' if peaks else ''}. In brackets: timm's or the authors' time over ours,"
        " of compiled networks timm's compiled one over ours."
    )


def _wrapped(text: str) -> str:
    """Lines of at most `WIDTH` columns."""
    lines = [""]
    for word in text.split(" "):
        if lines[-1] and len(lines[-1]) + 1 + len(word) > WIDTH:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    return "\n".join(lines)


def fill(page: Path, runs: Sequence[Run]) -> list[str]:
    """Write the lines of all networks that were measured into the page; the arguments of the marks that were filled."""
    models = sorted({m.sizes["model"] for run in runs for m in run.measurements})
    lines = {"conditions": conditions(runs), **{model: line(runs, model) for model in models}}
    blocks = {argument: _wrapped(text) for argument, text in lines.items() if text}
    document_marks.fill(page, "measured", blocks, blocks.__getitem__)
    return list(blocks)


if __name__ == "__main__":
    if not sys.argv[1:]:
        sys.exit("give the JSON files of mereo bench backbones, the one with the best times first")
    print(f"{PAGE}: {', '.join(fill(PAGE, [read_run(Path(name)) for name in sys.argv[1:]]))}")
