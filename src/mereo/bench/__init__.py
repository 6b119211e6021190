"""Measures speed and memory: suites of cases, contenders from any module, correctness checked before any speed-up."""

from mereo.bench.cases import Request
from mereo.bench.results import Measurement, Run, read_run
from mereo.bench.run_pictures import draw
from mereo.bench.runner import Bench
from mereo.bench.suite import Case, Contender, Setting, Suite, Table, UnavailableError, Work, Workload
from mereo.bench.suites import SUITES, get_suite
from mereo.bench.tables import comparison, markdown, read_comparable, tables_of

__all__ = [
    "SUITES",
    "Bench",
    "Case",
    "Contender",
    "Measurement",
    "Request",
    "Run",
    "Setting",
    "Suite",
    "Table",
    "UnavailableError",
    "Work",
    "Workload",
    "comparison",
    "draw",
    "get_suite",
    "markdown",
    "read_comparable",
    "read_run",
    "tables_of",
]
