"""Attacks in the maximum norm, and checks for gradient masking."""
