"""The table of docs/architecture.md of where one exchange holds is that of the code."""

import exchange_table


def test_the_page_has_the_table_of_the_code() -> None:
    assert exchange_table.table() in exchange_table.PAGE.read_text(encoding="utf-8")
