"""Every mechanism of the library: importing this module fills the catalogue."""

import mereo.interventions
import mereo.mechanisms.attention.dense
import mereo.mechanisms.attention.higher_order
import mereo.mechanisms.attention.local
import mereo.mechanisms.attention.memory
import mereo.mechanisms.attention.sparse
import mereo.mechanisms.gate
import mereo.mechanisms.mixer
import mereo.mechanisms.routing
import mereo.mechanisms.scan
import mereo.mechanisms.select
import mereo.surgery  # noqa: F401
from mereo.core.catalogue import (
    FAMILIES,
    INTERFACES,
    MECHANISMS,
    PROMISES,
    Mechanism,
    get_mechanism,
    list_mechanisms,
)

__all__ = ["FAMILIES", "INTERFACES", "MECHANISMS", "PROMISES", "Mechanism", "get_mechanism", "list_mechanisms"]
