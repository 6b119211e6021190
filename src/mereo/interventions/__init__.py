"""Interventions: changes to a running model (model -> context manager), one file each."""
