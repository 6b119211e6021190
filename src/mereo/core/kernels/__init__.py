"""Execution of the core verbs: one function for each, a table of predicates that chooses how it runs."""

from mereo.core.kernels.routing import backends

__all__ = ["backends"]
