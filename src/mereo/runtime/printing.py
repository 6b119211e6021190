"""What is printed: the only place that writes to the standard streams, with control characters escaped."""

import sys
from typing import TextIO

from mereo.escape import for_terminal


def say(text: object = "", *, file: TextIO | None = None) -> None:
    """Print lines of text with control characters escaped; None for standard output."""
    print(for_terminal(text, lines=True), file=sys.stdout if file is None else file, flush=True)
