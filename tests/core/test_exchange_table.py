"""The table in docs/architecture.md of where one exchange holds agrees with the code; new mechanisms may be missing."""

import re

import exchange_table


def cells(text: str) -> dict[tuple[str, int], set[str]]:
    """The names of mechanisms by family and column."""
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    names = {(row[0], column): re.sub(r"\(.*?\)", "", row[column]) for row in rows for column in range(1, len(row))}
    return {place: set(re.findall(r"\w+", text)) for place, text in names.items()}


def test_the_page_has_every_mechanism_where_the_code_has_it() -> None:
    page = exchange_table.PAGE.read_text(encoding="utf-8")
    start = page.index("| family | by the table of executions")
    shown, made = cells(page[start : page.index("\n\n", start)]), cells(exchange_table.table())
    assert len(set().union(*shown.values())) > 45
    for place, names in shown.items():
        assert names <= made[place], place
