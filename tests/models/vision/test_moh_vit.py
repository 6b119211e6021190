"""Mixture of heads in a plain transformer: counts, gates, the balance, and the plain network as a special case."""

from typing import Any

import pytest
import torch

import mereo
from mereo.core import added_losses
from mereo.data import Batch
from mereo.errors import UsageError
from mereo.models.registry import families, outline
from mereo.models.vision import ViT
from mereo.tasks.classification import ClassificationObjective

TINY = families()["moh_vit"].tiny or {}


def tiny(**changes: Any) -> ViT:
    torch.manual_seed(0)
    model: ViT = mereo.create_model("moh_vit_cifar", **{**TINY, **changes})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def test_routers_add_960_parameters_a_layer() -> None:
    model = outline("moh_vit_cifar")
    own = [sum(p.numel() for p in block.attn.router.parameters()) for block in model.blocks]
    assert own == [960] * 6


def test_with_zero_routers_and_all_heads_active_it_is_the_plain_transformer() -> None:
    model, images = tiny(active=3), torch.rand(2, 3, 16, 16)
    names = ("img_size", "patch_size", "embed_dim", "depth", "num_heads", "num_classes")
    plain = mereo.create_model("deit_small", **{name: TINY[name] for name in names}).eval()
    state = model.state_dict()
    plain.load_state_dict({name: state[name] for name in plain.state_dict()})
    assert not torch.allclose(model(images), plain(images), atol=1e-4)
    with torch.no_grad():
        for block in model.blocks:
            for parameter in block.attn.router.parameters():
                parameter.zero_()
    torch.testing.assert_close(model(images), plain(images), rtol=1e-4, atol=1e-5)


def test_each_token_uses_the_shared_head_and_two_others() -> None:
    model = tiny()
    with mereo.record(model) as trace:
        model(torch.rand(2, 3, 16, 16))
    gates = trace["blocks.1.attn.router.gates"]
    assert gates.shape == (2, 17, 4) and (gates[..., 0] > 0).all() and ((gates[..., 1:] > 0).sum(-1) == 2).all()


def test_training_notes_the_balance_of_the_heads() -> None:
    model = tiny().train()
    scores = model(torch.rand(4, 3, 16, 16))
    (scores.square().sum() + added_losses(model)["balance"]).backward()
    assert all(block.attn.router.routed_heads.grad.abs().sum() > 0 for block in model.blocks)
    model.eval()(torch.rand(1, 3, 16, 16))
    assert added_losses(model) == {}


def test_wrong_numbers_of_heads() -> None:
    for changes in ({"shared": 5}, {"active": 4}, {"active": 0}, {"gate": "none"}):
        with pytest.raises(UsageError):
            tiny(**changes)


def test_training_adds_the_balance_of_the_heads_to_the_loss_and_evaluation_does_not() -> None:
    batch = Batch(torch.rand(4, 3, 16, 16), torch.tensor([0, 1, 2, 3]))
    objective = ClassificationObjective(tiny(), "cross_entropy")
    objective.train()
    loss, scores = objective(batch)
    expected = torch.nn.functional.cross_entropy(scores, batch.labels) + objective.added["balance"]
    torch.testing.assert_close(loss, expected)
    objective.eval()
    loss, scores = objective(batch)
    torch.testing.assert_close(loss, torch.nn.functional.cross_entropy(scores, batch.labels))
