"""Techniques: functions that change how a model is built or trained (model -> model), one file each."""

from mereo.technique.linearise import linearise as linearise
from mereo.technique.moh import moh as moh
