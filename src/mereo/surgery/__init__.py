"""Techniques: functions that change how a model is built or trained (model -> model), one file each."""

from mereo.surgery.insert import Insertion as Insertion
from mereo.surgery.insert import insert as insert
from mereo.surgery.insert import remove as remove
from mereo.surgery.linearise import linearise as linearise
from mereo.surgery.moh import moh as moh
