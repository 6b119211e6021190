"""Pointer: a loop over its equation, masks, worked numbers, and parts that are scored one after the other."""

import math

import pytest
import torch

import mereo
from mereo.errors import UsageError
from mereo.mechanisms.attention.dense import Pointer, pointer


def made(batch: int = 2, senders: int = 5, receivers: int = 3) -> tuple[Pointer, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    module = Pointer(4).double()
    for parameter in module.parameters():
        parameter.data *= 20
    return module, torch.randn(batch, senders, 4).double(), torch.randn(batch, receivers, 4).double()


def test_couplings_are_those_of_a_loop_over_the_equation() -> None:
    module, senders, receivers = made()
    found = module(senders, receivers)
    for b in range(2):
        for i in range(3):
            scores = [
                module.vector @ (module.keys.weight @ senders[b, j] + module.queries.weight @ receivers[b, i]).tanh()
                for j in range(5)
            ]
            torch.testing.assert_close(found[b, i], torch.stack(scores).softmax(0))


def test_masked_senders_get_exactly_nothing_and_those_of_a_receiver_may_differ() -> None:
    module, senders, receivers = made()
    mask = torch.tensor([[True, True, False, True, False]] * 2)
    found = module(senders, receivers, mask)
    assert (found[..., ~mask[0]] == 0).all()
    torch.testing.assert_close(found.sum(2), torch.ones(2, 3).double())
    torch.testing.assert_close(found[..., mask[0]], module(senders[:, mask[0]], receivers))
    each = mask.unsqueeze(1).repeat(1, 3, 1)
    each[:, 1] = torch.tensor([False, False, True, False, False])
    assert torch.equal(module(senders, receivers, each)[:, 1], each[:, 1].double())
    assert (module(senders, receivers, torch.zeros_like(mask)) == 0).all()
    with pytest.raises(UsageError, match="mask"):
        module(senders, receivers, mask.double())


def test_without_a_vector_all_are_as_probable_and_without_queries_all_receivers_are_alike() -> None:
    module, senders, receivers = made()
    with torch.no_grad():
        module.queries.weight.zero_()
        found = module(senders, receivers)
        assert torch.equal(found[:, :1].expand_as(found), found) and found[0, 0].std() > 0.01
        module.vector.zero_()
    torch.testing.assert_close(module(senders, receivers).log(), torch.full((2, 3, 5), -math.log(5)).double())


def test_parts_of_receivers_give_the_same_outputs_and_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    module, senders, receivers = made()
    gradients = []
    for largest in (2**25, 2 * 5 * 4):  # all at once, one receiver at a time
        monkeypatch.setattr(pointer, "LARGEST", largest)
        module.zero_grad()
        found = module(senders, receivers)
        (found * torch.arange(5)).square().sum().backward()
        gradients.append([found.detach(), *(p.grad for p in module.parameters())])
    torch.testing.assert_close(*gradients)


def test_what_is_recorded_is_the_output_and_what_is_changed_acts() -> None:
    module, senders, receivers = made()
    with mereo.record(module) as trace:
        found = module(senders, receivers)
    assert torch.equal(trace["coupling"].squeeze(1), found)
    with mereo.intervene(module, {"coupling": lambda couplings: couplings.flip(-1)}):
        assert torch.equal(module(senders, receivers), found.flip(-1))
