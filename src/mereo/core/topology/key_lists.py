"""Lists of senders: each receiver of each head attends to senders of its own."""

import torch
from torch import Tensor

from mereo.core.topology.base import Tiles


class KeyLists(Tiles):
    """One tile for all receivers of an image, in which every receiver of every head has its own senders.

    Scores and couplings have an entry for each place of the lists: (batch, heads, receivers, places).

    Args:
        senders: int64 (batch or 1, heads or 1, receivers, places), the number of a sender; -1 is padding. No sender
            occurs twice in a list.
        num_senders: how many there are.
    """

    def __init__(self, senders: Tensor, num_senders: int) -> None:
        receivers = torch.arange(senders.shape[-2], device=senders.device)
        super().__init__(receivers.unsqueeze(0), senders, senders.shape[-2], num_senders)

    @property
    def exclusive(self) -> bool:
        """Every receiver is there once."""
        return True

    def allowed(
        self, receivers: int | None = None, senders: int | None = None, device: torch.device | None = None
    ) -> Tensor:
        self._sizes(receivers, senders)
        there = self.place((self.senders >= 0).to(device or self.senders.device, torch.uint8), sparse=False)
        return there > 0

    def place(self, couplings: Tensor, sparse: bool | None = None) -> Tensor:
        """Entries of lists over all senders; a sparse tensor by default if a dense one would be too large.

        Shapes: (batch, heads, receivers, places) -> (batch, heads, receivers, senders).
        """
        batch, heads, receivers, _ = couplings.shape
        index = self.senders.to(couplings.device).expand_as(couplings)
        size = (batch, heads, receivers, self.num_senders)
        if not self.dense(couplings) if sparse is None else sparse:
            b, h, r, at = (index >= 0).nonzero(as_tuple=True)
            places = torch.stack((b, h, r, index[b, h, r, at]))
            return torch.sparse_coo_tensor(places, couplings[b, h, r, at], size, check_invariants=False).coalesce()
        # Padding goes behind the last sender.
        whole = couplings.new_zeros(*size[:3], self.num_senders + 1)
        return whole.scatter_add(3, index.where(index >= 0, self.num_senders), couplings)[..., :-1]

    def there(self, couplings: Tensor) -> Tensor:
        return (self.senders >= 0).to(couplings.device)

    def pick(self, couplings: Tensor, padding: Tensor) -> Tensor:
        """The inverse of `place`: (batch, heads, receivers, senders) -> as padding, which stays where no sender is."""
        index = self.senders.to(couplings.device).expand_as(padding)
        return torch.where(index >= 0, couplings.gather(3, index.clamp(min=0)), padding)
