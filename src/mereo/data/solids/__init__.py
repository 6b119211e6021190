"""Simple solids under lighting, azimuth and elevation: shapes of five categories, and their renderer."""

from mereo.data.solids.photos import make_photos
from mereo.data.solids.render import render
from mereo.data.solids.shapes import CATEGORIES, make_instance

__all__ = ["CATEGORIES", "make_instance", "make_photos", "render"]
