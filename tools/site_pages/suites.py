"""The page of the benchmark suites, from their declarations."""

from mereo.bench import SUITES, get_suite
from mereo.runtime.clone import find_papers
from site_pages.docstrings import prose
from site_pages.tables import table

INTRODUCTION = """# Suites

The suites of `mereo bench`, single papers last: their suites are in `papers/` of the repository. `--sizes` changes the
sizes; your own contender takes the inputs before the arrow and returns the result after it.

"""


def pages() -> dict[str, str]:
    """The page of all suites."""
    rows = [
        (
            f"`{suite.name}`",
            f"{prose(suite.summary)} ({', '.join(f'`{name}={value}`' for name, value in suite.sizes.items())})",
            prose(suite.takes),
        )
        for suite in (*SUITES.values(), *map(get_suite, find_papers().SUITES))
    ]
    return {"suites.md": INTRODUCTION + table(("suite", "what, at its sizes", "a contender"), rows)}
