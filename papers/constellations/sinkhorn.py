"""Sinkhorn's normalisation: a matrix of scores becomes doubly stochastic, in the log domain."""

from torch import Tensor

from mereo.core import settle


def log_sinkhorn(scores: Tensor, rounds: int) -> Tensor:
    """Normalise columns, then rows, `rounds` times: log of a matrix whose rows sum to 1, and whose columns nearly do.

    log r <- log r - logsumexp over rows (log r);   log r <- log r - logsumexp over columns (log r)

    The limit of exp(scores) with both sums 1 approximates the marginals of a random permutation with these weights.

    Shapes: scores (..., n, n), finite -> (..., n, n).

    Reference: Sinkhorn and Knopp 1967; for assignments arXiv:2103.06676, section 3.
    """
    return settle(lambda scores: scores.log_softmax(-2).log_softmax(-1), scores, steps=rounds)
