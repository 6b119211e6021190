"""What gates of maps share: means along rows and columns, and products that keep no further map."""

from torch import Tensor


def strip_means(features: Tensor) -> tuple[Tensor, Tensor]:
    """The mean of every row and of every column.

    Shapes: features (batch, channels, height, width) -> (batch, channels, height), (batch, channels, width).
    """
    return features.mean(3), features.mean(2)


def gated(features: Tensor, *gates: Tensor) -> Tensor:
    """Features times each gate in turn; in place after the first if no gradient is needed.

    The product of the gates, which may be as large as the features, is never made.

    Shapes: features of any shape, gates broadcastable to it -> the shape of the features.
    """
    first, *others = gates
    out = features * first
    for gate in others:
        out = out * gate if out.requires_grad else out.mul_(gate)
    return out
