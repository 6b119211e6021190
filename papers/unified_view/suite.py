"""Ring attention on 2 and 4 processes: memory per process, and time compared with one process of equal threads."""

import torch.nn.functional as F
from torch import Tensor

from mereo.bench.counting import FLOAT
from mereo.bench.suite import Contender, Mode, Setting, Suite, Table, Work, Workload
from mereo.bench.suites.attention import inputs
from mereo.core.distributed import distributed_attention, expected_traffic
from papers.unified_view.ring_processes import slowest

PROCESSES = (1, 2, 4)
WAYS = ((False, "contiguous"), (True, "zigzag"), (True, "contiguous"))


def work(setting: Setting, mode: Mode) -> Work:
    """Scores and combinations; backward two and a half times that, with the scores made again."""
    tokens, width = setting.size("tokens"), setting.size("heads") * setting.size("dim")
    flops = 4 * setting.size("batch") * tokens**2 * width
    elements = setting.size("batch") * tokens * width
    forward = mode == "forward"
    return Work(flops * (1 if forward else 3.5), FLOAT * elements * (4 if forward else 12))


def materialised(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention with the matrix of scores in memory."""
    return (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).softmax(-1) @ v


def contenders(setting: Setting) -> tuple[Contender, ...]:
    """In one process."""
    pairs = setting.size("batch") * setting.size("heads") * setting.size("tokens") ** 2
    return (
        Contender("SDPA", lambda mode: Workload(F.scaled_dot_product_attention)),
        Contender("materialised", lambda mode: Workload(materialised), needs=lambda mode: 3 * FLOAT * pairs),
        Contender("distributed_attention, one process", lambda mode: Workload(distributed_attention)),
    )


def processes(setting: Setting, quick: bool) -> list[Table]:
    """Forward and backward on 1, 2 and 4 processes."""
    sizes = {name: setting.size(name) for name in ("batch", "heads", "tokens", "dim")}
    width = sizes["batch"] * sizes["heads"] * sizes["dim"]
    rows = []
    for causal, layout in WAYS:
        for count in PROCESSES[1:]:
            single = slowest(1, count, sizes, causal, "contiguous", 1 if quick else 5)
            result = slowest(count, 1, sizes, causal, layout, 1 if quick else 5)
            passes = [expected_traffic("ring", sizes["tokens"], width, count, backward) for backward in (False, True)]
            rows.append(
                (
                    str(count),
                    f"causal, {layout}" if causal else "all pairs",
                    f"{result['forward']:.3f}",
                    f"{result['backward']:.3f}",
                    f"{(single['forward'] + single['backward']) / (result['forward'] + result['backward']):.2f}",
                    f"{result['bytes'] / 2**20:.1f}",
                    f"{result['bytes'] * count / max(single['bytes'], 1):.2f}",
                    f"{int(result['elements']):,}",
                    f"{sum(passes):,}",
                )
            )
    columns = (
        "processes", "pairs", "forward s", "backward s", "speed-up over one process", "MiB a process",
        "times 1 / P of one process", "elements sent", "by the formula",
    )  # fmt: skip
    notes = (
        "Slowest process, one thread each, gloo. Memory: the peak above that before the inputs, which are included.",
        "Speed-up: over one process with one thread for each process, forward and backward.",
    )
    return [Table("Ring attention over processes", columns, tuple(rows), notes)]


RING = Suite(
    "ring",
    "attention over a sequence on 2 and 4 processes: time, memory a process, elements sent",
    "(q, k, v), each (batch, heads, tokens, dim) -> the same",
    {"batch": 1, "heads": 8, "tokens": 8192, "dim": 64},
    inputs,
    contenders,
    work,
    tables=processes,
    memory=(),
    quick={"tokens": 512},
)
