"""Networks whose attention becomes CLEAR: weights, equality with a large radius, distillation, bad input."""

import copy

import pytest
import torch
from torch import Tensor, nn

import mereo
from mereo import Match, distil
from mereo.errors import UsageError
from mereo.mechanisms.attention import ClearAttention, MultiHeadAttention, clear_attention
from mereo.mechanisms.attention.local.clear import length_scale
from mereo.surgery import linearise
from mereo.surgery.linearise import CircleHost, _Blocks


def blocks(dtype: torch.dtype = torch.float64) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    model = _Blocks(*(MultiHeadAttention(8, 2) for _ in range(2)))
    return model.to(dtype).eval(), torch.randn(2, 49, 8, dtype=dtype)


def vit(**options: object) -> nn.Module:
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    small = {"img_size": 32, "patch_size": 4, "embed_dim": 24, "depth": 3, "num_heads": 3, "num_classes": 5}
    return timm.create_model("deit_tiny_patch16_224", **{**small, **options}).eval()


def test_a_layer_equals_attention_to_circles_with_its_projections() -> None:
    model, tokens = blocks()
    changed = linearise(model, 2.5, layers=("1",))
    assert isinstance(changed[0], MultiHeadAttention) and isinstance(changed[1], CircleHost)
    x = model[0](tokens)
    attn = model[1]
    q, k, v = (f(x).unflatten(-1, (2, 4)).transpose(1, 2) for f in (attn.query, attn.key, attn.value))
    out = clear_attention(q, k, v, (24, 2), 2.5, text_tokens=1, method="dense")
    torch.testing.assert_close(changed(tokens), attn.proj(out.transpose(1, 2).flatten(2)))
    assert torch.equal(linearise(model, 2.5, layers=(1,))(tokens), changed(tokens))


def test_a_radius_beyond_the_image_changes_nothing_and_the_model_stays() -> None:
    model, tokens = blocks()
    plain, state = model(tokens), copy.deepcopy(model.state_dict())
    changed = linearise(model, 24.1)
    torch.testing.assert_close(changed(tokens), plain)
    assert changed.state_dict().keys() == state.keys()
    assert all(torch.equal(x, state[name]) for name, x in changed.state_dict().items())
    assert not torch.allclose(linearise(model, 3)(tokens), plain)
    assert torch.equal(model(tokens), plain) and isinstance(model[0], MultiHeadAttention)


@pytest.mark.parametrize(
    "options", [{}, {"reg_tokens": 2, "qk_norm": True, "scale_attn_norm": True, "init_values": 0.5, "qkv_bias": True}]
)
def test_transformers_of_timm(options: dict[str, object]) -> None:
    model, images = vit(**options), torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(linearise(model, 12)(images), model(images), rtol=1e-4, atol=1e-5)
    changed = linearise(model, 2, down_factor=4)
    with mereo.record(changed) as trace:
        changed(images)
    prefix = model.num_prefix_tokens
    assert trace["blocks.2.attn.coupling"].shape == (2, 3, 64, prefix + 64 + 4)
    assert trace["blocks.0.attn.text_coupling"].shape == (2, 3, prefix, prefix + 64)
    changed.load_state_dict(model.state_dict(), strict=False)
    changed(images).sum().backward()
    assert all(p.grad is not None for p in changed.blocks.parameters())


def test_blocks_and_scale() -> None:
    model, tokens = blocks(torch.float32)
    changed = linearise(model, 2, down_factor=2, trained_tokens=7)
    assert changed[0].down_weight.tolist() == [[0.25, 0.25]] * 2
    assert changed[0].scale == length_scale(49, 7, 4) == pytest.approx(2**0.5 / 2)
    added = sum(p.numel() for p in changed.parameters()) - sum(p.numel() for p in model.parameters())
    assert added == 2 * 4 and changed(tokens).isfinite().all()


def test_a_student_that_sees_everything_has_no_loss() -> None:
    model, tokens = blocks(torch.float32)
    matches = [Match(weight=0.5), Match("layer", "0", weight=0.25), Match("layer", "1", weight=0.25)]
    result = distil(model, linearise(model, 30), tokens, matches, epochs=1, lr=1e-12, progress=False)
    assert all(value < 1e-10 for value in result.history[0].values())


def test_a_student_learns_from_its_teacher_by_its_projections() -> None:
    model, _ = blocks(torch.float32)
    model.append(nn.Linear(8, 8))
    tokens = torch.randn(64, 49, 8)
    student = linearise(model, 3)
    before = copy.deepcopy(student.state_dict())
    trained = [f"*.{name}.*" for name in ("query", "key", "value", "proj")]
    result = distil(model, student, tokens, trained=trained, epochs=12, lr=3e-3, batch_size=16, progress=False)
    assert result.loss < 0.8 * result.history[0]["loss"]
    changed = {name for name, value in student.state_dict().items() if not torch.equal(value, before[name])}
    assert changed and not any(name.startswith("2.") for name in changed)


class _Scaled(MultiHeadAttention):
    def forward(self, tokens: Tensor, context: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        return 2 * super().forward(tokens, context, mask)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: linearise(nn.Sequential(nn.Linear(3, 3)), grid=(2, 2)), "with layers of self-attention"),
        (lambda m: linearise(m, layers=("blocks.*",)), "it has 0, 1"),
        (lambda m: linearise(m, layers=("0", 7)), "it has 0, 1"),
        (lambda m: linearise(nn.Sequential(*m)), "grid is None"),
        (lambda m: linearise(m, 0), "radius is 0"),
        (lambda m: linearise(m, down_factor=5), "down_factor is 5"),
        (lambda m: linearise(nn.Sequential(_Scaled(8, 2)), grid=(2, 3)), "'0' is a _Scaled that computes something"),
        (lambda m: linearise(nn.Sequential(MultiHeadAttention(8, 2, causal=True)), grid=(2, 3)), "something else"),
        (lambda m: linearise(m)(torch.randn(2, 48, 8, dtype=torch.float64)), "48 tokens"),
        (lambda m: linearise(m)[0](torch.randn(2, 49, 8).double(), is_causal=True), "takes neither"),
    ],
)
def test_bad_input(call, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        call(blocks()[0])


def test_its_layers_are_those_of_the_module() -> None:
    model, tokens = blocks()
    module = ClearAttention(8, 2, grid=(24, 2), radius=3, text_tokens=1).double()
    with torch.no_grad():
        module.qkv.weight.copy_(torch.cat([getattr(model[0], n).weight for n in ("query", "key", "value")]))
        module.proj.weight.copy_(model[0].proj.weight)
    torch.testing.assert_close(module(tokens), linearise(model, 3)[0](tokens))
