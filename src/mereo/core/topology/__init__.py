"""Allowed pairs of senders and receivers, and their positions: values made once, at construction."""

from mereo.core.topology.base import Causal, Grid, Topology, grid_groups
from mereo.core.topology.circle import Circle
from mereo.core.topology.neighborhood import Neighborhood

__all__ = ["Causal", "Circle", "Grid", "Neighborhood", "Topology", "grid_groups"]
