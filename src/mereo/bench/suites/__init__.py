"""The suites of the library, and external ones by `module:name`."""

from mereo.bench.cases import load_object
from mereo.bench.suite import Suite
from mereo.bench.suites.attention import ATTENTION
from mereo.bench.suites.backbones import BACKBONES
from mereo.bench.suites.choose import CHOOSE
from mereo.bench.suites.networks import CAPSNET, CAPSNET_224, MODELS, MSPCAPS
from mereo.bench.suites.routing import MEMORY, ROUTING, ROUTING_SCALING
from mereo.errors import UsageError, unknown
from mereo.runtime.clone import ELSEWHERE, find_papers

_ALL = (ROUTING, ROUTING_SCALING, MEMORY, CAPSNET, MSPCAPS, CAPSNET_224, ATTENTION, MODELS, BACKBONES, CHOOSE)
SUITES: dict[str, Suite] = {suite.name: suite for suite in _ALL}


def get_suite(name: str) -> Suite:
    """A suite by its name, also of the papers in a clone of the repository, or one of another module, `module:name`."""
    if name in SUITES:
        return SUITES[name]
    if ":" not in name:
        papers = find_papers()
        if papers is None:
            raise UsageError(f"{unknown('suite', name, SUITES)} If it is of a paper: {ELSEWHERE}")
        if name not in papers.SUITES:
            raise unknown("suite", name, [*SUITES, *papers.SUITES])
        name = papers.SUITES[name]
    suite = load_object(name, "suite")
    if not isinstance(suite, Suite):
        raise UsageError(f"suite is {name!r}, a {type(suite).__name__}; it must be a mereo.bench.Suite.")
    return suite


__all__ = ["SUITES", "get_suite"]
