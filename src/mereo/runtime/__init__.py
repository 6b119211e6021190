"""Devices, free memory, progress, and numbers as text."""
