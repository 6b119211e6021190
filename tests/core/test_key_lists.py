"""Lists of senders: where their couplings lie among all senders, dense and sparse, and back."""

import torch

from mereo.core.topology import KeyLists


def test_places_and_back() -> None:
    senders = torch.tensor([[[[2, 0, -1], [1, -1, -1]]], [[[3, 1, 2], [-1, -1, -1]]]])
    couplings = torch.arange(1.0, 13.0).view(2, 1, 2, 3)
    lists = KeyLists(senders, 4)
    whole = lists.place(couplings)
    expected = torch.zeros(2, 1, 2, 4)
    for b in range(2):
        for r in range(2):
            for place, sender in enumerate(senders[b, 0, r].tolist()):
                if sender >= 0:
                    expected[b, 0, r, sender] = couplings[b, 0, r, place]
    assert torch.equal(whole, expected) and lists.exclusive
    sparse = lists.place(couplings, sparse=True)
    assert sparse.is_sparse and sparse._nnz() == 6 and torch.equal(sparse.to_dense(), expected)
    back = lists.pick(whole * 2, torch.full_like(couplings, -5.0))
    assert torch.equal(back, torch.where(senders >= 0, couplings * 2, torch.tensor(-5.0)))


def test_one_list_for_all_heads_and_gradients() -> None:
    lists = KeyLists(torch.tensor([[[[0, 2]]]]), 3)
    couplings = torch.rand(2, 3, 1, 2, requires_grad=True)
    lists.place(couplings)[..., 2].sum().backward()
    assert torch.equal(couplings.grad, torch.tensor([0.0, 1.0]).expand(2, 3, 1, 2))
