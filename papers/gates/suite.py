"""Gates of one map, compared with reading and writing the map once, and with the blocks of timm or of the equations."""

from collections.abc import Callable
from typing import Any

import torch
from timm.layers import EcaModule, SEModule
from timm.layers.cbam import CbamModule
from timm.layers.coord_attn import CoordAttn, EfficientLocalAttn
from torch import Tensor, nn

import mereo
from mereo.bench.counting import FLOAT
from mereo.bench.results import Run
from mereo.bench.suite import Contender, Mode, Setting, Suite, Table, Work, Workload
from mereo.errors import check_choice
from mereo.mechanisms.gate import GAAM, ULSAM, PolarizedSelfAttention, load_published

OURS, PUBLISHED, COPY = "mereo", "as published", "read and write"
RATIO = 16
"""Channels of a map to the hidden width of squeeze and excite and of CBAM."""
TIMM: dict[str, tuple[Callable[[int], nn.Module], Callable[[int], dict[str, Any]]]] = {
    "se": (lambda width: SEModule(width, rd_channels=width // RATIO), lambda width: {"hidden": width // RATIO}),
    "eca": (EcaModule, lambda width: {}),
    "cbam": (lambda width: CbamModule(width, rd_channels=width // RATIO), lambda width: {"hidden": width // RATIO}),
    "coordinate_attention": (lambda width: CoordAttn(width, rd_channels=8), lambda width: {"hidden": 8}),
    "ela": (EfficientLocalAttn, lambda width: {"norm_groups": 1, "separate": True, "activation": "silu"}),
}
"""Block of timm, and the arguments with which ours computes the same."""


def looped_ulsam(gate: ULSAM, features: Tensor) -> Tensor:
    """A pass for each group of channels, as in the authors' code; in evaluation, with batch norm."""
    out = []
    for n, part in enumerate(features.chunk(len(gate.point.weight), 1)):
        width = part.shape[1]
        rows = slice(n * width, (n + 1) * width)
        scores = part
        for layer, norm, chosen in (
            (gate.scale, gate.scale_norm, rows),
            (gate.point, gate.point_norm, slice(n, n + 1)),
        ):
            assert isinstance(norm, nn.BatchNorm2d) and layer.bias is not None
            assert norm.running_mean is not None and norm.running_var is not None
            if layer is gate.point:
                scores = gate.pool(scores)
            groups = width if layer is gate.scale else 1
            scores = torch.conv2d(scores, layer.weight[chosen], layer.bias[chosen], groups=groups)
            means, spreads = norm.running_mean[chosen], norm.running_var[chosen]
            scores = nn.functional.batch_norm(
                scores, means, spreads, norm.weight[chosen], norm.bias[chosen], eps=norm.eps
            )
            scores = scores.relu()
        shares = scores.flatten(1).softmax(1).view(scores.shape)
        out.append(shares * part + part)
    return torch.cat(out, 1)


def literal_polarized(gate: PolarizedSelfAttention, features: Tensor) -> Tensor:
    """With maps of half of the channels, as the equations and the authors' code make them."""
    cells = features.flatten(2).mT
    shares = gate.channel_query(cells).softmax(1)
    pooled = (gate.channel_value(cells).mT @ shares).squeeze(2)
    channels = gate.channel_up(pooled).sigmoid()[:, :, None, None]
    query = gate.spatial_query(cells).mean(1).softmax(1)
    scores = gate.spatial_value(cells) @ query.unsqueeze(2)
    positions = scores.sigmoid().mT.unflatten(2, features.shape[2:])
    return channels * features + positions * features


def literal_gaam(gate: GAAM, features: Tensor) -> Tensor:
    """A product over the Gaussians of each head, as in the authors' library."""
    out = []
    for part, offsets, widths in zip(features.chunk(gate.heads, 1), gate.offsets, gate.widths, strict=True):
        mean, variance = part.mean(1, keepdim=True), part.var(1, keepdim=True) + 1e-8
        weights = torch.ones_like(part)
        for offset, width in zip(offsets, widths, strict=True):
            away = (part - (mean + offset)) / variance.sqrt()
            weights = weights * (-(away**2) / (2 * width**2)).exp() / (2 * torch.pi * width**2).sqrt()
        out.append(part * weights / weights.sum(1, keepdim=True).clamp(min=1e-8))
    return torch.cat(out, 1)


LITERAL: dict[str, Callable[..., Tensor]] = {
    "ulsam": looped_ulsam,
    "polarized_self_attention": literal_polarized,
    "gaam": literal_gaam,
}
GATES_TIMED = (*TIMM, *LITERAL)


def inputs(setting: Setting, mode: Mode) -> tuple[Any, ...]:
    """A map (batch, channels, side, side)."""
    side = setting.size("side")
    shape = (setting.size("batch"), setting.size("channels"), side, side)
    return (torch.randn(shape, device=setting.device),)


def work(setting: Setting, mode: Mode) -> Work:
    """One product for each value, and the map read and written once."""
    values = setting.size("batch") * setting.size("channels") * setting.size("side") ** 2
    return Work(values, FLOAT * 2 * values)


def _gate(setting: Setting) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    """Ours and the published one, with the same weights."""
    name, channels = setting.word("gate"), setting.size("channels")
    check_choice("gate", name, GATES_TIMED)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if name in TIMM:
            make, arguments = TIMM[name]
            block = make(channels).to(setting.device)
            ours = mereo.create_mechanism(name, channels, **arguments(channels)).to(setting.device)
            load_published(ours, block.state_dict())
            return ours.eval(), block.eval()
        ours = mereo.create_mechanism(name, channels).to(setting.device).eval()
    return ours, lambda features: LITERAL[name](ours, features)


def _contender(setting: Setting, name: str) -> Contender:
    def build(mode: Mode) -> Workload:
        ours, published = _gate(setting)
        calls: dict[str, Callable[[Tensor], Tensor]] = {OURS: ours, PUBLISHED: published, COPY: lambda x: x * 2}
        return Workload(torch.inference_mode()(calls[name]))

    return Contender(name, build, "unchecked" if name == COPY else "contender")


def contenders(setting: Setting) -> tuple[Contender, ...]:
    """The published block first, ours, and a product with one number, which reads and writes the map once."""
    return tuple(_contender(setting, name) for name in (PUBLISHED, OURS, COPY))


def digest(run: Run) -> list[Table]:
    """A row for each gate: times, and ours in units of reading and writing the map and of the published block.

    On a CPU it is the time of the processor, which other processes change less.
    """
    on_cpu = run.machine["device"] == "cpu"
    measured = {
        (m.sizes["gate"], m.contender, m.threads): time.median
        for m in run.measurements
        if (time := m.cpu if on_cpu else m.wall) is not None
    }
    rows = []
    for gate, threads in dict.fromkeys((gate, threads) for gate, _, threads in measured):
        ours, published, copy = (measured.get((gate, name, threads)) for name in (OURS, PUBLISHED, COPY))
        if ours is not None and published is not None and copy is not None:
            times = (f"{1e3 * seconds:.3g}" for seconds in (ours, published, copy))
            rows.append((str(gate), str(threads), *times, f"{ours / copy:.2f}", f"{ours / published:.2f}"))
    unit = "CPU ms" if on_cpu else "ms"
    names = (f"{name}, {unit}" for name in (OURS, PUBLISHED, COPY))
    columns = ("gate", "threads", *names, "of read and write", "of published")
    return [Table("Gates, forward", columns, tuple(rows))] if rows else []


GATES = Suite(
    "gates",
    "gates of feature maps, compared with reading and writing the map once and with the published blocks",
    "features (batch, channels, side, side) -> the same",
    {"batch": 8, "channels": 256, "side": 56, "gate": "ela"},
    inputs,
    contenders,
    work,
    sweeps={"gate": GATES_TIMED},
    quick={"batch": 2, "channels": 32, "side": 8},
    threads=(1,),
    modes=("forward",),
    memory=("forward",),
    digest=digest,
)
