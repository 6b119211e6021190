"""Work counted from sizes, and the bound that a machine sets to it.

A multiply-add is two operations. Traffic counts every input, output and gradient once for each pass over it (forward;
backward), in float32: the least that any implementation needs, if nothing stays in a cache between passes.
"""

from dataclasses import dataclass

from torch import Tensor, nn

from mereo.bench.suite import Mode, Setting, Work
from mereo.inference.flops import count_flops

FLOAT = 4


def routing_flops(setting: Setting, mode: Mode) -> float:
    """Dynamic routing with votes made once: 2 V d, then `steps` sums and `steps` - 1 agreements of 2 V each.

    V = batch children parents parent_dim. The backward pass takes twice the forward pass.
    """
    votes = setting.size("batch") * setting.size("children") * setting.size("parents") * setting.size("parent_dim")
    forward = 2 * votes * (setting.size("child_dim") + 2 * setting.size("steps") - 1)
    return forward * (3 if mode == "training" else 1)


def routing_work(setting: Setting, mode: Mode) -> Work:
    """The task: children, weights and parents moved, no votes."""
    children = setting.size("batch") * setting.size("children") * setting.size("child_dim")
    weights = (
        setting.size("children") * setting.size("parents") * setting.size("child_dim") * setting.size("parent_dim")
    )
    parents = setting.size("batch") * setting.size("parents") * setting.size("parent_dim")
    numbers = children + weights + parents if mode == "forward" else 3 * (children + weights) + 2 * parents
    return Work(routing_flops(setting, mode), FLOAT * numbers)


def stored_votes_bytes(setting: Setting) -> int:
    """The tensor of votes."""
    return (
        FLOAT * setting.size("batch") * setting.size("children") * setting.size("parents") * setting.size("parent_dim")
    )


def stored_votes_work(setting: Setting, mode: Mode) -> Work:
    """The same with votes stored: written once, read in each of the 2 T - 1 sums and agreements.

    Backward: each of these reads the votes and adds to their gradient (read and write), which two products then read.
    """
    passes = 2 * setting.size("steps") - 1
    times = 1 + passes + (3 * passes + 2 if mode == "training" else 0)
    return Work(routing_flops(setting, mode), times * stored_votes_bytes(setting))


def attention_work(setting: Setting, mode: Mode) -> Work:
    """softmax(q k^T) v of every head: two products forward, four backward."""
    tensor = setting.size("batch") * setting.size("heads") * setting.size("tokens") * setting.size("dim")
    flops = 4 * tensor * setting.size("tokens")
    return Work(flops, FLOAT * 4 * tensor) if mode == "forward" else Work(3 * flops, FLOAT * 11 * tensor)


def network_work(model: nn.Module, images: Tensor, batch: int, mode: Mode) -> Work:
    """Convolutions and matrix products as PyTorch counts them on `images`, scaled to a batch; routing as it is written.

    Traffic counts parameters and images once forward; in training, parameters 10 times (forward, backward and gradient;
    Adam reads the gradient, reads and writes two moments and the parameters) and images twice.
    """
    parameters = sum(p.numel() for p in model.parameters())
    pixels = batch * images[0].numel()
    flops = count_flops(model, images, backward=mode == "training")
    numbers = parameters + pixels if mode == "forward" else 10 * parameters + 2 * pixels
    return Work(flops * batch / len(images), FLOAT * numbers)


@dataclass(frozen=True)
class Rates:
    """The rates of a machine in the same run: operations a second of a matrix product, bytes a second of a copy."""

    matmul: float
    copy: float


@dataclass(frozen=True)
class Bound:
    """The least time, and which of the two sets it."""

    seconds: float
    by: str


def bound(work: Work, rates: Rates) -> Bound:
    """The roofline: no faster than the arithmetic, no faster than the traffic."""
    arithmetic, traffic = work.flops / rates.matmul, work.bytes / rates.copy
    return Bound(arithmetic, "arithmetic") if arithmetic >= traffic else Bound(traffic, "traffic")
