"""Token selection: which tokens are kept, one file per mechanism."""

from mereo.mechanisms.select.capsule_pruning import CapsulePruning as CapsulePruning
from mereo.mechanisms.select.capsule_pruning import prune as prune
from mereo.mechanisms.select.evit import ReducingBlock as ReducingBlock
from mereo.mechanisms.select.evit import kept_patches as kept_patches
from mereo.mechanisms.select.global_local import GlobalLocalBlock as GlobalLocalBlock
from mereo.mechanisms.select.global_local import most_important as most_important
from mereo.mechanisms.select.global_local import rollout_row as rollout_row
