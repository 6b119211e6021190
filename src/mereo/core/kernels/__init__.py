"""Execution of the core verbs: one function for each, a table of predicates that chooses how it runs."""
