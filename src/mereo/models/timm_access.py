"""timm, imported when a network of it is asked for, and the names of its own networks."""

from functools import cache
from typing import Any

from mereo.errors import UsageError


def import_timm() -> Any:
    """The package; UsageError if it is not installed."""
    try:
        import timm
    except ImportError as error:
        raise UsageError("timm is not installed; install it with: pip install 'mereo[timm]'.") from error
    return timm


def own_networks() -> tuple[str, ...]:
    """Names of timm's own networks, without networks that mereo and others registered with it. No name is an address of
    a hub or a folder."""
    import_timm()
    return _own_networks()


@cache
def _own_networks() -> tuple[str, ...]:
    timm = import_timm()
    return tuple(name for name in timm.list_models() if timm.model_entrypoint(name).__module__.startswith("timm."))
