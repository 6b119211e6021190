"""Mixture of heads for existing models: ours and timm's, weights unchanged, training, what cannot be converted."""

import copy
import inspect

import pytest
import torch
from torch import Tensor, nn

import mereo
from mereo.core import added_losses
from mereo.errors import UsageError
from mereo.mechanisms.attention import (
    BlockAttention,
    HeadRouter,
    MultiHeadAttention,
    NeighborhoodAttention,
)
from mereo.surgery import moh
from mereo.surgery.moh import MixtureOfHeads


def transformer(**options: object) -> nn.Module:
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    small = {"img_size": 32, "patch_size": 4, "embed_dim": 24, "depth": 2, "num_heads": 6, "num_classes": 5}
    return timm.create_model("deit_tiny_patch16_224", **{**small, **options}).eval()


def routers(model: nn.Module) -> list[HeadRouter]:
    return [m for m in model.modules() if isinstance(m, HeadRouter)]


def test_all_heads_are_the_host() -> None:
    model, images = transformer(), torch.randn(2, 3, 32, 32)
    changed = moh(model, 1.0)
    torch.testing.assert_close(changed(images), model(images))
    assert changed.state_dict().keys() == model.state_dict().keys(), "routing by queries adds no weights"
    for name, value in model.state_dict().items():
        assert torch.equal(changed.state_dict()[name], value)
    by_tokens = moh(model, 1.0, shared=2, routing="tokens")
    for router in routers(by_tokens):
        for parameter in router.parameters():
            nn.init.zeros_(parameter)
    torch.testing.assert_close(by_tokens(images), model(images))


def test_the_host_is_not_changed() -> None:
    model, images = transformer(), torch.randn(2, 3, 32, 32)
    before, names = model(images), [type(m).__name__ for m in model.modules()]
    changed = moh(model, 0.5)
    assert not torch.allclose(changed(images), before) and torch.equal(model(images), before)
    assert [type(m).__name__ for m in model.modules()] == names


def test_couplings_and_gates_are_recorded() -> None:
    changed, images = moh(transformer(), 0.5, shared=1), torch.randn(2, 3, 32, 32)
    with mereo.record(changed) as trace:
        out = changed(images)
    assert trace["blocks.0.attn.coupling"].shape == (2, 6, 65, 65)
    gates = trace["blocks.1.attn.router.gates"]
    assert gates.shape == (2, 65, 6) and (gates.sum(-1) == 3).all() and (gates[..., 0] == 1).all()
    torch.testing.assert_close(out, changed(images))
    with mereo.intervene(changed, {"blocks.1.attn.router.gates": torch.ones_like}):
        first_only = changed(images)
    torch.testing.assert_close(first_only, moh(transformer(), 0.5, shared=1, layers=(0,))(images))


@pytest.mark.parametrize("options", [{"qk_norm": True}, {"scale_attn_norm": True}, {"attn_drop_rate": 0.1}])
def test_forms_of_timm(options: dict[str, object]) -> None:
    model, images = transformer(**options), torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(moh(model, 1.0)(images), model(images))
    changed = moh(model, 0.5, routing="tokens").train()
    changed(images).sum().backward()
    assert all(p.grad is not None for p in changed.blocks.parameters())


def test_default_numbers_of_heads() -> None:
    counts = {
        active: [(r.shared, r.active) for r in routers(moh(MultiHeadAttention(32, 8), active))]
        for active in (1.0, 0.75, 0.5, 0.25, 0.01)
    }
    assert counts == {1.0: [(4, 4)], 0.75: [(3, 3)], 0.5: [(2, 2)], 0.25: [(1, 1)], 0.01: [(0, 1)]}


def test_a_model_that_is_one_attention() -> None:
    attn, x = MultiHeadAttention(12, 4), torch.randn(2, 5, 12)
    torch.testing.assert_close(moh(attn, 1.0)(x), attn(x))
    assert isinstance(moh(attn), MixtureOfHeads)


def test_attention_in_neighbourhoods_is_gated_too() -> None:
    attn, x = NeighborhoodAttention(12, 4, window=3, axes=1).double(), torch.randn(2, 9, 12, dtype=torch.float64)
    model = nn.Sequential(attn)
    changed = moh(model, 0.5, routing="tokens")
    assert set(model.state_dict()) < set(changed.state_dict())
    (router,) = routers(changed)
    gates = router(x)
    with mereo.intervene(changed, {"0.proj.router.gates": torch.ones_like}):
        torch.testing.assert_close(changed(x), model(x))
    # One head after the other, by the host itself.
    expected = attn.proj.bias.expand_as(x).clone()
    for head in range(4):
        only = copy.deepcopy(attn)
        with torch.no_grad():
            only.proj.weight[:, [c for c in range(12) if c // 3 != head]] = 0
            only.proj.bias.zero_()
        expected += gates[..., head : head + 1] * only(x)
    torch.testing.assert_close(changed(x), expected)
    torch.testing.assert_close(copy.deepcopy(changed)(x), expected)


def test_training_a_converted_model_balances_its_heads() -> None:
    model = moh(nn.Sequential(MultiHeadAttention(16, 8), MultiHeadAttention(16, 8)), 0.5, routing="tokens").train()
    x = torch.randn(4, 6, 16)
    loss = model(x).square().mean()
    balances = [router.balance.recorded for router in routers(model)]
    added = added_losses(model)["balance"]
    torch.testing.assert_close(added, 0.01 * torch.stack(balances).mean())
    (loss + added).backward()
    for router in routers(model):
        assert router.routed_heads.grad.abs().sum() > 0


def test_gradients_of_heads_that_do_not_act() -> None:
    # With routing by queries the gradient goes straight through gates of 0, whose heads must then be computed.
    model, x = moh(MultiHeadAttention(16, 8).double(), 0.25), torch.randn(1, 400, 16, dtype=torch.float64)
    results = []
    for method in ("auto", "dense"):
        model.method = method
        results.append(torch.autograd.grad(model(x).square().sum(), model.query.weight)[0])
    torch.testing.assert_close(*results)
    assert results[0].abs().min() > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"active": 0}, "above 0"), ({"active": 1.5}, "at most 1"), ({"layers": (2,)}, "from 0 to 1"),
        ({"shared": 7}, "shared is 7"), ({"routing": "magic"}, "routing is"),
    ],
)  # fmt: skip
def test_bad_input(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        moh(nn.Sequential(MultiHeadAttention(12, 6), MultiHeadAttention(12, 6)), **options)


def test_models_that_cannot_be_converted() -> None:
    with pytest.raises(UsageError, match="without multi-head"):
        moh(nn.Linear(3, 3))
    near = NeighborhoodAttention(12, 4, window=3, axes=1)
    with pytest.raises(UsageError, match="routing='tokens'"):
        moh(near)
    windows = moh(BlockAttention(12, (2, 2), head_dim=3), 0.5, routing="tokens")
    with pytest.raises(UsageError, match="same order of tokens"):
        windows(torch.randn(1, 4, 4, 12))

    class Other(MultiHeadAttention):
        def forward(self, tokens: Tensor) -> Tensor:
            return super().forward(tokens) + 1

    with pytest.raises(UsageError, match="computes something else"):
        moh(Other(12, 4))
    with pytest.raises(UsageError, match="attn_mask"):
        moh(MultiHeadAttention(12, 4))(torch.zeros(1, 2, 12), torch.ones(2, 2))


def test_names() -> None:
    assert inspect.unwrap(mereo.moh) is inspect.unwrap(moh)
