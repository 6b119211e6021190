"""Losses, recipes and the engine. Import from its modules: `from mereo.training.engine import train`."""
