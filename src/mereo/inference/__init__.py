"""Predictions of trained networks, and figures of merit."""
