"""How threads of OpenMP wait, which is fixed when torch is loaded."""

import os


def spin_less() -> None:
    """Let idle threads give up their core soon, unless the user says otherwise; call it before torch is loaded.

    By default a thread of GNU's OpenMP waits for milliseconds before it lets another program have its core.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
