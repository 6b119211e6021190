"""Every mechanism of the library: importing this module fills the catalogue."""

import mereo.attention
import mereo.routing  # noqa: F401
from mereo.core.catalogue import MECHANISMS, Mechanism, get_mechanism, list_mechanisms

__all__ = ["MECHANISMS", "Mechanism", "get_mechanism", "list_mechanisms"]
