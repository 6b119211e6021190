"""Techniques: functions that change how a model is built or trained (model -> model), one file each.

`SURGERIES` has all functions that give a changed copy of a network, those beside a mechanism included.
"""

from mereo.core.surgery import SURGERIES as SURGERIES
from mereo.core.surgery import operate as operate
from mereo.mechanisms.attention.hosted import watchable as watchable
from mereo.mechanisms.attention.sparse.sea_model import sea as sea
from mereo.mechanisms.attention.sparse.sparsifiner_model import sparsifiner as sparsifiner
from mereo.mechanisms.select.evit import evit as evit
from mereo.surgery.insert import Insertion as Insertion
from mereo.surgery.insert import insert as insert
from mereo.surgery.insert import remove as remove
from mereo.surgery.linearise import linearise as linearise
from mereo.surgery.moh import moh as moh
