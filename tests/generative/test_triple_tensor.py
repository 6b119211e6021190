"""Tensor models of triples against loops, their symmetries, and joints that sum to one."""

import itertools

import pytest
import torch

from mereo.errors import UsageError
from mereo.generative import TripleTensor
from mereo.generative.triple_tensor import KINDS

every_kind = pytest.mark.parametrize("kind", KINDS)
ALL = torch.tensor(list(itertools.product(range(4), range(3), range(4))))


def made(kind: str) -> TripleTensor:
    torch.manual_seed(1)
    return TripleTensor(4, 3, 2, kind).double()


@every_kind
def test_scores_are_the_sums_of_the_equations(kind: str) -> None:
    model = made(kind)
    a, b = model.entities.tolist(), model.predicates.tolist()
    core = None if model.core is None else model.core.tolist()
    expected = []
    for s, p, o in ALL.tolist():
        total = 0.0
        for i in range(2):
            for j in range(2):
                if kind == "rescal":
                    total += a[s][i] * b[p][i][j] * a[o][j]
                elif kind == "distmult":
                    total += a[s][i] * b[p][i] * a[o][j] if i == j else 0.0
                else:
                    assert core is not None
                    total += sum(core[k][i][j] * a[s][i] * b[p][k] * a[o][j] for k in range(2))
        expected.append(total)
    torch.testing.assert_close(model(ALL), torch.tensor(expected).double())
    torch.testing.assert_close(model.table().flatten(), torch.tensor(expected).double())


@every_kind
def test_joint_and_answers_are_distributions_of_the_same_scores(kind: str) -> None:
    model = made(kind)
    joint = model.log_prior(ALL).exp().view(4, 3, 4)
    torch.testing.assert_close(joint.sum(), torch.ones((), dtype=torch.float64))
    for place, slot in enumerate(("subject", "predicate", "object")):
        given = (joint / joint.sum(place, keepdim=True)).movedim(place, -1)
        others = ALL[:, [n for n in range(3) if n != place]]
        torch.testing.assert_close(model.log_shares(ALL, slot).exp(), given[others[:, 0], others[:, 1]])


def test_symmetric_relations_give_symmetric_facts_and_a_diagonal_is_distmult() -> None:
    rescal, distmult = made("rescal"), made("distmult")
    assert not torch.allclose(rescal.facts(), rescal.facts().transpose(0, 2))
    with torch.no_grad():
        rescal.predicates.copy_(rescal.predicates + rescal.predicates.mT)
    torch.testing.assert_close(rescal.facts(), rescal.facts().transpose(0, 2))
    with torch.no_grad():
        rescal.entities.copy_(distmult.entities)
        rescal.predicates.copy_(distmult.predicates.diag_embed())
    torch.testing.assert_close(rescal(ALL), distmult(ALL))


def test_distmult_cannot_tell_who_does_it_to_whom() -> None:
    for kind, tells in (("distmult", False), ("rescal", True), ("tucker", True)):
        model = made(kind)
        assert torch.allclose(model(ALL), model(ALL.flip(1))) != tells


@pytest.mark.parametrize(
    ("kind", "count"), [("rescal", 4 * 2 + 3 * 4), ("distmult", 4 * 2 + 3 * 2), ("tucker", 4 * 2 + 3 * 2 + 8)]
)
def test_parameters(kind: str, count: int) -> None:
    assert sum(p.numel() for p in made(kind).parameters()) == count


def test_wrong_triples() -> None:
    with pytest.raises(UsageError, match="triples hold 3 as predicate; it must be from 0 to 2"):
        made("rescal")(torch.tensor([[0, 3, 0]]))
    with pytest.raises(UsageError, match=r"triples are torch.int64 of shape \(2,\)"):
        made("rescal")(torch.tensor([0, 1]))
    with pytest.raises(UsageError, match="slot is 'verb'"):
        made("rescal").log_shares(ALL, "verb")
