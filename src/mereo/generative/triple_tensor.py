"""Tensor models of triples: a table of subjects, predicates and objects from embeddings of few numbers.

Source: the semantic memory of arXiv:2001.11027 in its tensor form; RESCAL: Nickel, Tresp, Kriegel 2011; DistMult:
arXiv:1412.6575; Tucker: arXiv:1901.09590. Only the abstract of the first was available.
Cost: 2 r^2 FLOPs for a triple, 2 K r (r + K) for all triples of a predicate with K entities.
"""

import torch
from torch import Tensor, nn

from mereo.errors import UsageError, check_choice, check_count

KINDS = ("rescal", "distmult", "tucker")
SLOTS = ("subject", "predicate", "object")


class TripleTensor(nn.Module):
    """Score triples of subject, predicate and object.

    theta(s, p, o) = a_s^T R_p a_o

    RESCAL learns R_p; DistMult a diagonal R_p = diag(b_p); Tucker R_p = sum_j G_j b_pj with a core G.

    Args:
        entities, predicates: their numbers; both are counted from 0.
        rank: r, size of the embeddings.
        kind: "rescal", "distmult" or "tucker".

    Shapes: triples int64 (batch, 3), subject, predicate and object -> theta (batch,).

    Deviates: all parameters start normal with variance 1 / r, which is ours.

    Reference: arXiv:2001.11027, semantic memory; DistMult gives (s, p, o) and (o, p, s) the same score.
    """

    def __init__(self, entities: int, predicates: int, rank: int, kind: str = "rescal") -> None:
        super().__init__()
        check_count(1, entities=entities, predicates=predicates, rank=rank)
        check_choice("kind", kind, KINDS)
        self.kind, self.sizes = kind, (entities, predicates, entities)
        deviation = rank**-0.5
        shape = (predicates, rank, rank) if kind == "rescal" else (predicates, rank)
        self.entities = nn.Parameter(deviation * torch.randn(entities, rank))
        self.predicates = nn.Parameter(deviation * torch.randn(*shape))
        self.core = nn.Parameter(deviation * torch.randn(rank, rank, rank)) if kind == "tucker" else None

    def relations(self) -> Tensor:
        """R: (predicates, rank, rank)."""
        if self.core is not None:
            return torch.einsum("pj,jab->pab", self.predicates, self.core)
        return self.predicates if self.kind == "rescal" else self.predicates.diag_embed()

    def table(self) -> Tensor:
        """theta of all triples: (entities, predicates, entities)."""
        return torch.einsum("sa,pab,ob->spo", self.entities, self.relations(), self.entities)

    def forward(self, triples: Tensor) -> Tensor:
        subject, predicate, other = self._checked(triples).unbind(1)
        left = torch.einsum("na,nab->nb", self.entities[subject], self.relations()[predicate])
        return (left * self.entities[other]).sum(1)

    def _checked(self, triples: Tensor) -> Tensor:
        if triples.dim() != 2 or triples.shape[1] != 3 or triples.dtype != torch.int64:
            raise UsageError(
                f"triples are {triples.dtype} of shape {tuple(triples.shape)}; they must be int64 (batch, 3)."
            )
        for name, size, column in zip(SLOTS, self.sizes, triples.unbind(1), strict=True):
            if len(column) and not 0 <= int(column.min()) <= int(column.max()) < size:
                wrong = int(column.min()) if int(column.min()) < 0 else int(column.max())
                raise UsageError(f"triples hold {wrong} as {name}; it must be from 0 to {size - 1}.")
        return triples

    def facts(self) -> Tensor:
        """Probability that each triple is a fact, sigmoid(theta): (entities, predicates, entities)."""
        return self.table().sigmoid()

    def log_shares(self, triples: Tensor, slot: str) -> Tensor:
        """Logarithms of the probabilities of each answer in one slot, given the other two: (batch, answers).

        log P(o | s, p) = theta(s, p, o) - log sum_o' exp theta(s, p, o')
        """
        check_choice("slot", slot, SLOTS)
        place = SLOTS.index(slot)
        others = self._checked(triples)[:, [n for n in range(3) if n != place]]
        scores = self.table().movedim(place, -1)[others[:, 0], others[:, 1]]
        return scores.log_softmax(-1)

    def log_prior(self, triples: Tensor) -> Tensor:
        """Logarithm of the joint probability of triples: theta minus the logarithm of its sum over all, (batch,)."""
        return self(triples) - self.table().flatten().logsumexp(0)
