"""Losses, recipes and the trainer. Import from its modules: `from mereo.training.trainer import train`."""
