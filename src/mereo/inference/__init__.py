"""Predictions of trained networks, and metrics."""
