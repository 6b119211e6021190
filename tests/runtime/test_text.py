"""Numbers as text."""

import pytest

from mereo.runtime.text import counted, duration, gibibytes, megabytes, percent, rounded


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (duration(45.4), "45 s"), (duration(59.6), "1 min 0 s"), (duration(7500), "2 h 5 min"),
        (counted(1, "step"), "1 step"), (counted(0, "step"), "0 steps"), (counted(1200, "step"), "1,200 steps"),
        (percent(0.9953), "99.53 %"), (percent(1, 0), "100 %"),
        (rounded(1234.4), "1,234"), (rounded(9.96), "10"), (rounded(9.94), "9.9"), (rounded(0.4), "0.4"),
        (rounded(0.042), "0.042"), (rounded(0), "0"),
        (gibibytes(3.2 * 2**30), "3.20 GiB"), (gibibytes(2**28), "0.25 GiB"), (gibibytes(2**28 - 1), "256 MiB"),
        (megabytes(3_200_000), "3.20 MB"), (megabytes(20_500), "20.5 kB"),
    ],
)  # fmt: skip
def test_numbers_as_text(text, expected):
    assert text == expected
