"""Techniques: functions that change how a model is built or trained (model -> model), one file each."""

from mereo.surgery.linearise import linearise as linearise
from mereo.surgery.moh import moh as moh
