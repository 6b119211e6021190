"""The page of the benchmark suites, from their declarations."""

from mereo.bench import SUITES
from site_pages.docstrings import prose
from site_pages.tables import table

INTRODUCTION = """# Suites

What `mereo bench` can measure. `--sizes` changes the sizes; a contender from outside is given the inputs, and returns
what stands after the arrow.

"""


def pages() -> dict[str, str]:
    """The page of all suites."""
    rows = [
        (
            f"`{suite.name}`",
            f"{prose(suite.summary)} ({', '.join(f'`{name}={value}`' for name, value in suite.sizes.items())})",
            prose(suite.takes),
        )
        for suite in SUITES.values()
    ]
    return {"suites.md": INTRODUCTION + table(("suite", "what, at its sizes", "a contender"), rows)}
