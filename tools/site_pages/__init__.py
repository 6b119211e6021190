"""Generates pages of the documentation from the code, one file for each kind of page."""
