"""Counts what a process sends to the others of its group."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from mereo.errors import check_choice, check_positive


@dataclass
class Traffic:
    """Elements that this process sent, by operation.

    Attributes:
        sent: "ring" (keys and values, and in the backward pass their gradients), "gather", "scatter" (the transpose of
            gathering), "exchange" (sequence for heads) and "sum" of partial outputs; "agreement" is the few numbers by
            which the processes compare their arguments, the same for every length.
    """

    sent: dict[str, int] = field(default_factory=dict)

    @property
    def elements(self) -> int:
        """All but the agreement."""
        return sum(count for kind, count in self.sent.items() if kind != "agreement")


_COUNTERS: list[Traffic] = []


@contextmanager
def count_traffic() -> Iterator[Traffic]:
    """Count the elements that this process sends inside the block, forward and backward."""
    traffic = Traffic()
    _COUNTERS.append(traffic)
    try:
        yield traffic
    finally:
        _COUNTERS.remove(traffic)


def sent(kind: str, elements: int) -> None:
    """Add to the counters that are open."""
    for traffic in _COUNTERS:
        traffic.sent[kind] = traffic.sent.get(kind, 0) + elements


def expected_traffic(mode: str, length: int, dim: int, ranks: int, backward: bool = False) -> int:
    """Elements that one of P processes sends in a pass over L tokens of all heads together C, where P divides L.

    forward:   ring, allgather 2 (P - 1) L / P C;   alltoall 4 (L C / P) (P - 1) / P;   heads 2 L C (P - 1) / P
    backward:  ring 2 (2 P - 1) L / P C: keys and values travel P - 1 hops, their gradients one more; others as forward

    Reference: arXiv:2302.06218 for the setting; the counts follow from the algorithms (arXiv:2310.01889, 2105.13120).
    """
    check_choice("mode", mode, ["ring", "allgather", "alltoall", "heads"])
    check_positive(length=length, dim=dim, ranks=ranks)
    shard = length * dim // ranks
    if ranks == 1:
        return 0
    if mode == "ring" and backward:
        return 2 * (2 * ranks - 1) * shard
    if mode in ("ring", "allgather"):
        return 2 * (ranks - 1) * shard
    return 4 * shard * (ranks - 1) // ranks if mode == "alltoall" else 2 * length * dim * (ranks - 1) // ranks
