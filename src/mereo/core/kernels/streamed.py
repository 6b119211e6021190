"""Passes of routing in plain PyTorch, a tile of children at a time: no tensor of votes in memory.

A vote is never made. With W V taken first, the agreement is an inner product in the space of the child, and the
couplings go onto the child before its transform:

    <W^T u, V> = <u, W V>            sum_s c_s W_s^T u_s = sum_s W_s^T (c_s u_s)

so all of the arithmetic is batched matrix products over the parents, with the batch of images as the innermost axis.
Every sum over parents or children then runs along vectors of images, and the transforms are read in place.

Cost of a pass: 4 S R d D FLOPs an image forward, 10 S R d D backward. Live at once: the children and their gradients
(batch S d), the parents (batch R D), and a few tensors of a tile, (R, tile d, batch) each.
"""

import torch
from torch import Tensor

from mereo.core.squash import accumulation_type

TILE_BYTES = {"cpu": 3 << 19, "cuda": 1 << 26}
"""Bytes of one tensor of a tile: on a CPU it should stay in cache, on a GPU fill the device."""

LARGEST = 1e16
"""Poses are held within this on both sides, as `bounded` does, so that sums of their products stay finite."""


def default_tile(children: Tensor, receivers: int) -> int:
    """The largest number of children in a tile that keeps (receivers, tile, d_in, batch) within `TILE_BYTES`."""
    batch, senders, d_in = children.shape
    row = receivers * d_in * batch * accumulation_type(children).itemsize
    return max(1, min(senders, TILE_BYTES.get(children.device.type, 1 << 26) // max(row, 1)))


class StreamedPasses:
    """One pass of routing after another over the same children; see `mereo.core.kernels.routing` for the loop.

    Args:
        children: (batch, senders, d_in).
        weight: (receivers, senders, d_in, d_out).
        prior: logits to start from, (receivers, senders), or None for zeros.
        leaky: one more parent, with score zero, takes votes that fit no other.
        share: the coupling if there is neither agreement nor a prior.
        tile: how many children are looked at together; None chooses from the sizes.
    """

    def __init__(
        self, children: Tensor, weight: Tensor, prior: Tensor | None, leaky: bool, share: float, tile: int | None
    ) -> None:
        wide = accumulation_type(children)
        lanes = children.permute(1, 2, 0)
        self.children = lanes.new_empty(lanes.shape, dtype=wide).copy_(lanes).clamp_(-LARGEST, LARGEST)
        self.weight = weight.to(wide).contiguous()
        self.prior = None if prior is None else prior.to(wide)
        self.leaky, self.share = leaky, share
        senders, tile = children.shape[1], default_tile(children, weight.shape[0]) if tile is None else tile
        self.tiles = [slice(first, min(first + tile, senders)) for first in range(0, senders, tile)]

    @staticmethod
    def _matrices(weight: Tensor, tile: slice) -> Tensor:
        """A view (receivers, tile d_in, d_out)."""
        part = weight[:, tile]
        return part.view(part.shape[0], -1, part.shape[3])

    def _couple(self, logits: Tensor, tile: slice) -> Tensor:
        if self.prior is not None:
            logits = logits + self.prior[:, tile, None]
        if not self.leaky:
            return logits.softmax(0)
        return torch.cat((torch.zeros_like(logits[:1]), logits)).softmax(0)[1:]

    def _uniform(self, tile: slice) -> Tensor:
        """Couplings before any agreement, the same for every image: (receivers, tile, 1)."""
        receivers, children = self.weight.shape[0], self.children[tile]
        if self.prior is None:
            return children.new_full((receivers, len(children), 1), self.share)
        return self._couple(children.new_zeros(receivers, len(children), 1), tile)

    def forward(self, agreed: Tensor | None) -> Tensor:
        """The sums of the votes: sum_s c_rs vote_rs, with couplings from agreement with `agreed`.

        Shapes: agreed (batch, receivers, d_out), None before any agreement -> the same.
        """
        receivers, _, _, d_out = self.weight.shape
        columns = None if agreed is None else agreed.permute(1, 2, 0).contiguous()
        parents = self.children.new_zeros(receivers, d_out, self.children.shape[2])
        for tile in self.tiles:
            children, matrices = self.children[tile], self._matrices(self.weight, tile)
            if columns is None:
                couplings = self._uniform(tile)
            else:
                back = torch.bmm(matrices, columns).unflatten(1, children.shape[:2])
                couplings = self._couple(back.mul_(children).sum(2), tile)
            coupled = couplings.unsqueeze(2) * children
            parents.baddbmm_(matrices.transpose(1, 2), coupled.flatten(1, 2))
        return parents.permute(2, 0, 1)

    def start_backward(self) -> None:
        """Make room for the gradients that `backward` adds to."""
        self.d_children, self.d_weight = torch.zeros_like(self.children), torch.zeros_like(self.weight)
        self.d_prior = None if self.prior is None else torch.zeros_like(self.prior)

    def backward(self, agreed: Tensor | None, grad: Tensor) -> Tensor | None:
        """Gradient of `forward` at `agreed`: adds to children's, weight's and prior's, returns `agreed`'s.

        The gradient of a vote is couplings * grad + change * agreed, where `change` is the gradient of the scores. The
        two products are concatenated along the batch, so that both go through each matrix product together.

        Shapes: agreed and grad (batch, receivers, d_out) -> (batch, receivers, d_out), None if `agreed` is None.
        """
        columns = grad.permute(1, 2, 0)
        batch = columns.shape[2]
        columns = columns.contiguous() if agreed is None else torch.cat((columns, agreed.permute(1, 2, 0)), 2)
        d_agreed = None if agreed is None else torch.zeros_like(columns[..., :batch])
        for tile in self.tiles:
            children, matrices = self.children[tile], self._matrices(self.weight, tile)
            back = torch.bmm(matrices, columns).unflatten(1, children.shape[:2])
            if agreed is None:
                couplings = self._uniform(tile)
                factors = couplings.expand(-1, -1, batch)
            else:
                couplings = self._couple((back[..., batch:] * children).sum(2), tile)
            if agreed is not None or self.d_prior is not None:
                fit = (back[..., :batch] * children).sum(2)
                change = couplings * (fit - (couplings * fit).sum(0))
                if self.d_prior is not None:
                    self.d_prior[:, tile] += change.sum(2)
                if agreed is not None:
                    factors = torch.cat((couplings, change), 2)
            self.d_children[tile] += back.mul_(factors.unsqueeze(2)).sum(0).unflatten(2, (-1, batch)).sum(2)
            coupled = factors.unflatten(2, (-1, batch)).unsqueeze(2) * children.unsqueeze(2)
            coupled = coupled.reshape(matrices.shape[0], matrices.shape[1], columns.shape[2])
            self._matrices(self.d_weight, tile).baddbmm_(coupled, columns.transpose(1, 2))
            if d_agreed is not None:
                d_agreed.baddbmm_(matrices.transpose(1, 2), coupled[..., batch:])
        return None if d_agreed is None else d_agreed.permute(2, 0, 1)

    def gradients(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Gradients of children, weight and prior, shaped as the arguments; 0 for clamped children."""
        self.d_children.masked_fill_(self.children.abs_() >= LARGEST, 0)
        del self.children
        return self.d_children.permute(2, 0, 1), self.d_weight, self.d_prior
