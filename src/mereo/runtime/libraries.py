"""Optional libraries, checked by name before any work is done."""

import sys
from importlib.util import find_spec

from mereo.errors import UsageError


def is_installed(name: str) -> bool:
    """Whether a library can be imported."""
    if name in sys.modules:
        return sys.modules[name] is not None
    return find_spec(name) is not None


def require(what: str, names: tuple[str, ...], extra: str) -> None:
    """UsageError that names what to install, unless all libraries are installed.

    Args:
        what: needs them, as the user wrote it.
        extra: of the package, which installs them.
    """
    missing = [name for name in names if not is_installed(name)]
    if missing:
        raise UsageError(
            f"{what} needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed;"
            f" pip install 'mereo[{extra}]'."
        )
