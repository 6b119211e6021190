"""The experiments, benchmark suites and claims of the papers, a folder for each.

They are beside the library and not part of its wheel: `python -m papers` and `mereo reproduce` find them in a clone of
the repository.
"""
