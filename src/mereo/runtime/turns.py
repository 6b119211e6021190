"""Times of calls that take turns, so that a temporarily busy machine slows all of them."""

import time
from collections.abc import Callable, Mapping
from statistics import median


def median_seconds(
    calls: Mapping[str, Callable[[], object]], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """The median time of each call over the rounds, after one round that prepares what later ones share."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name, call in calls.items():
            began = clock()
            call()
            if number:
                times[name].append(clock() - began)
    return {name: median(each) for name, each in times.items()}
