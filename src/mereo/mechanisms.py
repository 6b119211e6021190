"""Every mechanism of the library: importing this module fills the catalogue."""

import mereo.attention.dense
import mereo.attention.local
import mereo.attention.memory
import mereo.attention.sparse
import mereo.gate
import mereo.intervention
import mereo.mixer
import mereo.routing
import mereo.scan
import mereo.select
import mereo.technique  # noqa: F401
from mereo.core.catalogue import FAMILIES, MECHANISMS, PROMISES, Mechanism, get_mechanism, list_mechanisms

__all__ = ["FAMILIES", "MECHANISMS", "PROMISES", "Mechanism", "get_mechanism", "list_mechanisms"]
