"""Measures speed and memory: suites of cases, contenders from any module, correctness checked before any speed-up."""

from mereo.bench.against import comparison, read_comparable
from mereo.bench.case import Case, Contender, Setting, Suite, Table, UnavailableError, Work, Workload
from mereo.bench.pictures import draw
from mereo.bench.plan import Request
from mereo.bench.report import markdown, tables_of
from mereo.bench.results import Measurement, Run, read_run
from mereo.bench.runner import Bench
from mereo.bench.suites import SUITES, get_suite

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
