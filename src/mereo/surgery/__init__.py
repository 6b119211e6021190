"""Techniques: functions that change how a model is built or trained (model -> model), one file each.

`SURGERIES` has all functions that give a changed copy of a network.
"""

from mereo.core.surgery import SURGERIES as SURGERIES
from mereo.core.surgery import operate as operate
from mereo.surgery.dual_cross_attention import DualBranches as DualBranches
from mereo.surgery.dual_cross_attention import dual_cross_attention as dual_cross_attention
from mereo.surgery.dual_cross_attention import dual_embedding as dual_embedding
from mereo.surgery.dual_cross_attention import dual_loss as dual_loss
from mereo.surgery.evit import evit as evit
from mereo.surgery.evit import scheduled_keep_rate as scheduled_keep_rate
from mereo.surgery.evit import set_keep_rate as set_keep_rate
from mereo.surgery.insert import Insertion as Insertion
from mereo.surgery.insert import insert as insert
from mereo.surgery.insert import remove as remove
from mereo.surgery.linearise import linearise as linearise
from mereo.surgery.moh import moh as moh
from mereo.surgery.sea import sea as sea
from mereo.surgery.sea import set_top_k as set_top_k
from mereo.surgery.sigma_reparam import fold as fold
from mereo.surgery.sigma_reparam import remove_norms as remove_norms
from mereo.surgery.sigma_reparam import sigma_reparam as sigma_reparam
from mereo.surgery.sparsifiner import sparsifiner as sparsifiner
from mereo.surgery.tap import tap as tap
from mereo.surgery.watchable import watchable as watchable
