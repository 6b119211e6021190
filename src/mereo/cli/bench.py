"""`mereo bench`."""

import fnmatch
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mereo.cli.comparison_options import BenchOptions
from mereo.cli.parse import parse
from mereo.cli.show import print_table
from mereo.errors import MereoError, UsageError
from mereo.files import check_outputs
from mereo.runtime.clone import find_papers
from mereo.runtime.printing import say

if TYPE_CHECKING:
    from mereo.bench import Request, Run, Suite, Table

SECONDS, SECONDS_QUICK = 5.0, 0.5


def list_suites() -> None:
    """One line per suite, and the names of the papers' suites in a clone."""
    print_table(("suite", "sizes", "what"), _suites())
    if papers := find_papers():
        say(f"suites of the papers: {', '.join(sorted(papers.SUITES))}")


def _suites() -> list[tuple[str, str, str]]:
    from mereo.bench import SUITES

    return [
        (suite.name, ", ".join(f"{k}={v}" for k, v in suite.sizes.items()), suite.summary) for suite in SUITES.values()
    ]


def request_of(options: BenchOptions) -> "Request":
    """The request that the options describe."""
    from mereo.bench.cases import Request, parse_sizes
    from mereo.runtime.device import choose_device

    sizes = parse_sizes([*options.sizes, *([] if options.batch_size is None else [f"batch={options.batch_size}"])])
    seconds = options.seconds
    if seconds is None:
        seconds = SECONDS_QUICK if options.quick else SECONDS
    return Request(
        suite=options.suite or "",
        quick=options.quick,
        sizes=sizes,
        threads=options.threads,
        outside=options.contender,
        compile=options.compile,
        memory=options.memory and not options.quick,
        seconds=seconds,
        device=str(choose_device(options.device)),
        limit=None if options.memory_limit is None else round(options.memory_limit * 2**30),
    )


def choose_models(suite: "Suite", pattern: str) -> "Suite":
    """The suite for the networks that match a pattern."""
    if pattern == "*":
        return suite
    if "model" not in suite.sweeps:
        raise UsageError(
            f"models is {pattern!r}; only the suites models and backbones take a pattern of networks, not"
            f" {suite.name!r}."
        )
    names = dict.fromkeys([*suite.models(), *map(str, suite.sweeps["model"])])
    chosen = tuple(name for name in names if fnmatch.fnmatch(name, pattern))
    if not chosen:
        raise UsageError(f"models is {pattern!r}, which no network matches; `mereo models` lists them.")
    return replace(suite, sweeps={**suite.sweeps, "model": chosen}, quick_sweeps={})


def write(run: "Run", options: BenchOptions, more: list["Table"], *, pictures: bool) -> None:
    """Write the files that the options name."""
    from mereo.bench import draw, markdown
    from mereo.files import write_atomically

    if options.json is not None:
        write_atomically(options.json, run.to_json().encode())
    if options.report is None:
        return
    name = run.suite.replace(":", ".")
    write_atomically(options.report / f"{name}.json", run.to_json().encode())
    if pictures:
        drawn = draw(run, options.report / f"{name}.png")
        text = markdown(run, f"{name}.png" if drawn else None, more)
        write_atomically(options.report / f"{name}.md", text.encode())


def show(tables: list["Table"]) -> None:
    """Tables on standard output."""
    for table in tables:
        say()
        say(table.title)
        for note in table.notes:
            say(f"  {note}")
        print_table(table.columns, table.rows)


def run(words: list[str], command: str) -> None:
    """Measure a suite, or list the suites."""
    options = parse(BenchOptions, words, command)
    if options.suite is None or options.list:
        list_suites()
        return
    from mereo.bench import Bench, comparison, get_suite, read_comparable, tables_of
    from mereo.bench.tables import heading
    from mereo.runtime.progress import Reporter

    inputs = [] if options.against is None else [options.against]
    check_outputs("json", [] if options.json is None else [options.json], inputs)
    suite = choose_models(get_suite(options.suite), options.models)
    request = request_of(options)
    if options.report is not None:
        name = suite.name.replace(":", ".")
        check_outputs("report", [options.report / f"{name}.{suffix}" for suffix in ("json", "md")], inputs)
    reporter = Reporter()
    bench = Bench(
        suite, request, progress=reporter.measured, save=lambda measured: write(measured, options, [], pictures=False)
    )
    # Check the outputs before minutes of measuring, not after.
    earlier = None if options.against is None else read_comparable(options.against, bench.run)
    stopped = False
    try:
        bench.measure()
    except KeyboardInterrupt:
        stopped = True
    finally:
        reporter.stop()
    measured = bench.run
    more = [] if earlier is None else [comparison(measured, earlier)]
    for line in heading(measured):
        say(line)
    show([*tables_of(measured), *more])
    write(measured, options, more, pictures=True)
    places = [str(Path(p)) for p in (options.json, options.report) if p is not None]
    if places:
        say(f"\nwritten: {', '.join(places)}")
    if stopped:
        done = len({m.case for m in measured.measurements})
        kept = "the results so far are above" + (f" and in {', '.join(places)}" if places else "")
        raise MereoError(f"stopped in case {done} of {len(bench.cases)}; {kept}.")
