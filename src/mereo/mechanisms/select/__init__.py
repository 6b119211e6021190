"""Token selection: which tokens are kept, one file per mechanism."""

from mereo.mechanisms.select.capsule_pruning import CapsulePruning as CapsulePruning
from mereo.mechanisms.select.capsule_pruning import prune as prune
from mereo.mechanisms.select.evit import evit as evit
from mereo.mechanisms.select.evit import kept_patches as kept_patches
from mereo.mechanisms.select.evit import scheduled_keep_rate as scheduled_keep_rate
from mereo.mechanisms.select.evit import set_keep_rate as set_keep_rate
