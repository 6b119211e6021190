"""Attacks in the maximum norm, and the search for gradients that are hidden rather than withstood."""
