"""How many heads are shared and active in each layer of the published networks with mixtures of heads.

Source: arXiv:2410.11842, tables of appendix A, and the authors' configurations.
"""

from dataclasses import dataclass

from mereo.errors import UsageError, unknown
from mereo.mechanisms.attention.sparse.head_router import check_routed_heads


@dataclass(frozen=True)
class HeadSchedule:
    """Numbers of heads in each part of a network; the layers of a part are alike.

    Attributes:
        layers: layers of each part.
        dims: size of the tokens in each.
        heads, shared, active: of each; heads - shared are routed, and `active` of these act for a token.
    """

    layers: tuple[int, ...]
    dims: tuple[int, ...]
    heads: tuple[int, ...]
    shared: tuple[int, ...]
    active: tuple[int, ...]

    def __post_init__(self) -> None:
        if len({len(x) for x in (self.layers, self.dims, self.heads, self.shared, self.active)}) > 1:
            raise UsageError(f"the parts of {self} differ in number; give one entry for each part in all fields.")
        for heads, shared, active in zip(self.heads, self.shared, self.active, strict=True):
            check_routed_heads(heads, shared, active)

    @property
    def active_share(self) -> float:
        """Share of the heads of all layers that act for a token."""
        acting = sum(n * (s + a) for n, s, a in zip(self.layers, self.shared, self.active, strict=True))
        return acting / sum(n * heads for n, heads in zip(self.layers, self.heads, strict=True))

    @property
    def router_parameters(self) -> int:
        """Weights that routers add: C (h - h_s), 2 C if there are heads of both kinds, C h_s for h_s > 1."""
        total = 0
        for n, dim, heads, shared, active in zip(
            self.layers, self.dims, self.heads, self.shared, self.active, strict=True
        ):
            both = 2 if shared and active else 0
            total += n * dim * (heads - shared + both + (shared if shared > 1 else 0))
        return total


def _transnext(base: bool, shared: tuple[int, ...], active: tuple[int, ...]) -> HeadSchedule:
    depths, dims, heads = (5, 5, 23, 5), (96, 192, 384, 768), (4, 8, 16, 32)
    if not base:
        depths, dims, heads = (5, 5, 22, 5), (72, 144, 288, 576), (3, 6, 12, 24)
    return HeadSchedule(depths, dims, heads, shared, active)


def _diffusion(
    dim: int, layers: tuple[int, ...], heads: tuple[int, ...], shared: tuple[int, ...], active: tuple[int, ...]
) -> HeadSchedule:
    return HeadSchedule(layers, (dim,) * len(layers), heads, shared, active)


SCHEDULES: dict[str, HeadSchedule] = {
    "vit_s_80": _transnext(False, (3, 6, 3, 8), (0, 0, 6, 12)),
    "vit_s_75": _transnext(False, (3, 6, 3, 4), (0, 0, 6, 12)),
    "vit_b_75": _transnext(True, (4, 8, 4, 5), (0, 0, 8, 16)),
    "vit_b_50": _transnext(True, (2, 2, 2, 4), (2, 4, 6, 8)),
    "dit_s_90": _diffusion(384, (8, 4), (6, 6), (3, 6), (2, 0)),
    "dit_s_75": _diffusion(384, (2, 4, 4, 2), (6,) * 4, (2, 3, 3, 6), (1, 1, 2, 0)),
    "dit_b_90": _diffusion(768, (5, 5, 2), (12, 12, 12), (6, 7, 12), (4, 4, 0)),
    "dit_b_75": _diffusion(768, (2, 8, 2), (12, 12, 12), (4, 6, 12), (2, 3, 0)),
    "dit_l_90": _diffusion(1024, (8, 8, 8), (8, 16, 24), (8, 16, 16), (0, 0, 3)),
    "dit_l_75": _diffusion(1024, (8, 8, 8), (8, 16, 24), (8, 8, 12), (0, 4, 4)),
    "dit_xl_90": _diffusion(1152, (9, 10, 9), (8, 16, 24), (8, 16, 16), (0, 0, 3)),
    "dit_xl_75": _diffusion(1152, (9, 10, 9), (8, 16, 24), (8, 10, 14), (0, 2, 2)),
    "llama3_8b": HeadSchedule((32,), (4096,), (32,), (16,), (8,)),
}
"""Published schedules; hosts are TransNeXt, DiT and LLaMA3."""


def get_schedule(name: str) -> HeadSchedule:
    """A published schedule by its name."""
    if name not in SCHEDULES:
        raise unknown("schedule of heads", name, SCHEDULES)
    return SCHEDULES[name]
