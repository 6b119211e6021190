"""The losses of classification, now in `mereo.tasks`, under their earlier import path."""

from mereo.tasks.classification import ClassificationObjective as Objective
from mereo.tasks.losses import many_hot, margin_loss, reconstruction_loss, score_loss, spread_loss

__all__ = ["Objective", "many_hot", "margin_loss", "reconstruction_loss", "score_loss", "spread_loss"]
