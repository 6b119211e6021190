"""Token selection: which tokens are kept, one file per mechanism."""

from mereo.mechanisms.select.capsule_pruning import CapsulePruning as CapsulePruning
from mereo.mechanisms.select.capsule_pruning import prune as prune
from mereo.mechanisms.select.evit import ReducingBlock as ReducingBlock
from mereo.mechanisms.select.evit import kept_patches as kept_patches
