"""Observed: a point where gates, states or kept tokens can be recorded and changed, as couplings are in `Coupling`."""

from torch import Tensor, nn

from mereo.errors import check_choice

KINDS = ("gates", "states", "kept tokens")


class Observed(nn.Module):
    """Pass a tensor on unchanged, so that `record` and `intervene` have a module to attach to.

    y = x

    Args:
        kind: what passes, "gates", "states" or "kept tokens".

    Shapes: any -> the same.
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        check_choice("kind", kind, KINDS)
        self.kind = kind

    def forward(self, value: Tensor) -> Tensor:
        return value

    def extra_repr(self) -> str:
        return repr(self.kind)
