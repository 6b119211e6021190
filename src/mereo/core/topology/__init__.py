"""Which senders each receiver can attend to, and their positions: values made once, at construction."""

from mereo.core.topology.base import Causal, Tiles, Topology
from mereo.core.topology.blocks import Blocks, Halo, SequenceBlocks, Spread, regions
from mereo.core.topology.circle import Circle
from mereo.core.topology.grid import Grid, grid_groups
from mereo.core.topology.key_lists import KeyLists
from mereo.core.topology.neighborhood import Neighborhood
from mereo.core.topology.windows import Windows

__all__ = [
    "Blocks",
    "Causal",
    "Circle",
    "Grid",
    "Halo",
    "KeyLists",
    "Neighborhood",
    "SequenceBlocks",
    "Spread",
    "Tiles",
    "Topology",
    "Windows",
    "grid_groups",
    "regions",
]
