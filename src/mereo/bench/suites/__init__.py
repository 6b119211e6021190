"""The suites of the library, and external ones by `module:name`."""

from mereo.bench.case import Suite
from mereo.bench.contenders import load_object
from mereo.bench.suites.attention import ATTENTION
from mereo.bench.suites.backbones import BACKBONES
from mereo.bench.suites.bessel import BESSEL
from mereo.bench.suites.capsule_layers import CAPSULE_LAYERS
from mereo.bench.suites.choose import CHOOSE
from mereo.bench.suites.clear import CLEAR
from mereo.bench.suites.clustered import CLUSTERED
from mereo.bench.suites.combiner import COMBINER
from mereo.bench.suites.data import DATA
from mereo.bench.suites.evit import EVIT
from mereo.bench.suites.inversion import INVERSION
from mereo.bench.suites.lightning import LIGHTNING
from mereo.bench.suites.moh import MOH
from mereo.bench.suites.neighborhood import NEIGHBORHOOD
from mereo.bench.suites.networks import CAPSNET, CAPSNET_224, MODELS, MSPCAPS
from mereo.bench.suites.ring import RING
from mereo.bench.suites.routing import MEMORY, ROUTING, ROUTING_SCALING
from mereo.bench.suites.routing_layers import INVERTED_LAYERS, SELF_ROUTING_LAYERS, VARIATIONAL_LAYERS
from mereo.bench.suites.sea import SEA
from mereo.bench.suites.sparsifiner import SPARSIFINER
from mereo.errors import UsageError, unknown

_ALL = (
    ROUTING, ROUTING_SCALING, MEMORY, CAPSNET, MSPCAPS, CAPSNET_224, ATTENTION, NEIGHBORHOOD, CLEAR, LIGHTNING, EVIT,
    INVERSION, BESSEL, DATA, MODELS, BACKBONES, CLUSTERED, COMBINER, CHOOSE, SEA, SPARSIFINER, MOH, RING,
    CAPSULE_LAYERS, VARIATIONAL_LAYERS, SELF_ROUTING_LAYERS, INVERTED_LAYERS,
)  # fmt: skip
SUITES: dict[str, Suite] = {suite.name: suite for suite in _ALL}


def get_suite(name: str) -> Suite:
    """A suite by its name, or one of another module by `module:name`."""
    if name in SUITES:
        return SUITES[name]
    if ":" not in name:
        raise unknown("suite", name, SUITES)
    suite = load_object(name, "suite")
    if not isinstance(suite, Suite):
        raise UsageError(f"suite is {name!r}, a {type(suite).__name__}; it must be a mereo.bench.Suite.")
    return suite


__all__ = ["SUITES", "get_suite"]
