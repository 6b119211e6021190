"""Means over runs, and the times of networks."""

from collections.abc import Mapping, Sequence
from functools import partial
from statistics import mean, stdev

import torch
from torch import Tensor, nn

from mereo.runtime.turns import median_seconds


def means(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each figure over runs."""
    return {name: mean(run[name] for run in runs) for name in runs[0]}


def with_spread(name: str, runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The means over runs: first of `name`, with its standard deviation as "spread", then of all others."""
    values = [run[name] for run in runs]
    return {name: mean(values), "spread": stdev(values) if len(values) > 1 else 0.0, **means(runs)}


def span(name: str, values: Sequence[float]) -> dict[str, float]:
    """The mean of values as `name`, and their least and most."""
    return {name: mean(values), "least": min(values), "most": max(values)}


@torch.inference_mode()
def seconds_an_image(networks: Mapping[str, nn.Module], images: Tensor, rounds: int) -> dict[str, float]:
    """The median time for one of the images of each network, which take turns."""

    def infer(network: nn.Module) -> None:
        network.eval()(images).sum().item()

    times = median_seconds({name: partial(infer, network) for name, network in networks.items()}, rounds)
    return {name: seconds / len(images) for name, seconds in times.items()}
