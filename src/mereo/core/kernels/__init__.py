"""How the verbs are executed: one function for each, and a table of predicates that chooses the implementation."""


def backends() -> dict[str, str]:
    """For each method of routing "available", or what it lacks on this machine."""
    # Routing is written on votes, and votes are executed by the modules of this package.
    from mereo.core.kernels.routing import backends as methods

    return methods()


__all__ = ["backends"]
