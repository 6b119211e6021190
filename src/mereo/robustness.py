"""The former name of `mereo.measure`, kept so that existing code goes on working."""

from mereo.measure import *  # noqa: F403
