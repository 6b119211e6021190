"""EViT: worked numbers, a reference with loops, counts, timm's and our transformers, bad input."""

import copy
import inspect
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mereo
from mereo.errors import UsageError
from mereo.inference.flops import count_flops
from mereo.mechanisms.attention import MultiHeadAttention
from mereo.mechanisms.select import ReducingBlock, kept_patches
from mereo.mechanisms.select.evit import _Block, keep, order_of
from mereo.models.registry import families
from mereo.surgery import evit, scheduled_keep_rate, set_keep_rate


class _Transformer(nn.Sequential):
    """Blocks whose first token is the class token."""

    num_prefix_tokens = 1


def host(seed: int = 0) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(seed)
    model = _Transformer(*(_Block(8, 2) for _ in range(4)))
    return model.double().eval(), torch.randn(2, 13, 8, dtype=torch.float64)


def vit(name: str = "deit_tiny_patch16_224", **options: object) -> nn.Module:
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    small = {"img_size": 32, "patch_size": 4, "embed_dim": 24, "depth": 4, "num_heads": 3, "num_classes": 5}
    return timm.create_model(name, **{**small, **options}).eval()


def test_worked_numbers() -> None:
    attention, tokens = torch.tensor([[0.1, 0.4, 0.05, 0.25]]), torch.tensor([[[1.0], [2.0], [3.0], [4.0]]])
    kept = order_of(attention)[:, :2]
    assert kept.tolist() == [[1, 3]]
    torch.testing.assert_close(keep(tokens, kept, attention).flatten(), torch.tensor([2, 4, 0.1 * 1 + 0.05 * 3]))
    torch.testing.assert_close(keep(tokens, kept, attention, normalize=True)[0, 2, 0], torch.tensor(0.25 / 0.15))
    assert keep(tokens, kept, attention, fuse=False).flatten().tolist() == [2, 4]
    uniform = torch.full((1, 4), 1 / 5)
    assert order_of(uniform).tolist() == [[0, 1, 2, 3]], "equal tokens are kept by their number"
    torch.testing.assert_close(keep(tokens, kept, uniform)[0, 2, 0], torch.tensor((1 + 3) / 5))


def test_a_reducing_block_equals_its_equations() -> None:
    model, x = host()
    block = model[1]
    changed = ReducingBlock(copy.deepcopy(block), 1, 0.5)
    out = changed(x)
    heads = block.attn.num_heads
    normed = block.norm1(x)
    q, k, _ = block.attn.qkv(normed).chunk(3, -1)
    y = x + block.attn(normed)
    for b in range(len(x)):
        attention = torch.zeros(12, dtype=torch.float64)
        for h in range(heads):
            d = slice(4 * h, 4 * h + 4)
            attention += (k[b, :, d] @ q[b, 0, d] / 2).softmax(0)[1:] / heads
        order = sorted(range(12), key=lambda i: -attention[i].item())
        rows = [y[b, 0], *(y[b, 1 + i] for i in order[:6]), sum(attention[i] * y[b, 1 + i] for i in order[6:])]
        z = torch.stack(rows)
        torch.testing.assert_close(out[b], z + block.mlp(block.norm2(z)))


@pytest.mark.parametrize(
    ("rate", "fuse", "expected"),
    [(0.7, True, [139, 99, 71]), (0.7, False, [138, 97, 68]), (0.5, True, [99, 51, 27]), (0.9, True, [178, 162, 147])],
)
def test_numbers_of_tokens(rate: float, fuse: bool, expected: list[int]) -> None:
    block, patches, found = ReducingBlock(host()[0][0], 1, rate), 196, []
    for _ in range(3):
        patches = block.count(patches) + fuse
        found.append(patches)
    assert found == expected
    assert ReducingBlock(host()[0][0], 1, 0.1).count(30) == 3


@pytest.mark.long
@pytest.mark.parametrize(
    ("rate", "fuse", "expected"),
    [(0.9, True, 4.022), (0.8, True, 3.477), (0.7, True, 3.029), (0.6, True, 2.635), (0.5, True, 2.309),
     (0.7, False, 2.997), (0.5, False, 2.282)],
)  # fmt: skip
def test_multiplications(rate: float, fuse: bool, expected: float) -> None:
    timm = pytest.importorskip("timm")
    with torch.device("meta"):
        model = evit(timm.create_model("deit_small_patch16_224"), rate, fuse=fuse)
        multiplications = count_flops(model, torch.zeros(1, 3, 224, 224)) / 2e9
    assert sum(p.numel() for p in model.parameters()) == 22_050_664
    assert multiplications == pytest.approx(expected, abs=0.002)


def test_all_kept_is_the_host_bit_for_bit() -> None:
    model, images = vit(drop_path_rate=0.1), torch.randn(2, 3, 32, 32)
    changed = evit(model, 1.0)
    assert torch.equal(changed(images), model(images))
    assert changed.state_dict().keys() == model.state_dict().keys()
    for number in (1.0, 0.5):
        changed = evit(model, number)
        changed.load_state_dict(model.state_dict())
    for seed in (1, 2):
        outputs = []
        for each in (evit(model, 1.0), model):
            torch.manual_seed(seed)
            outputs.append(each.train()(images))
        assert torch.equal(*outputs), "in training as well"


def test_the_host_is_not_changed() -> None:
    model, images = vit(), torch.randn(2, 3, 32, 32)
    plain = model(images)
    changed = evit(model, 0.5)
    assert not torch.equal(changed(images), plain) and torch.equal(model(images), plain)
    for x, y in zip(model.parameters(), changed.parameters(), strict=True):
        assert torch.equal(x, y) and x is not y


@pytest.mark.parametrize(
    ("name", "options", "prefix"),
    [
        ("deit_tiny_patch16_224", {}, 1),
        ("deit_tiny_distilled_patch16_224", {}, 2),
        ("vit_tiny_patch16_224", {"reg_tokens": 3, "qk_norm": True, "init_values": 0.5, "scale_attn_norm": True}, 4),
        ("deit3_small_patch16_224", {"no_embed_class": True}, 1),
    ],
)
def test_transformers_of_timm(name: str, options: dict[str, object], prefix: int) -> None:
    model, images = vit(name, **options), torch.randn(2, 3, 32, 32)
    changed = evit(model, 0.5, layers=(1, 2))
    with mereo.record(changed) as trace:
        out = changed(images)
    assert out.shape == (2, 5) and out.isfinite().all()
    kept = {name: tuple(trace[name].shape) for name in trace if trace.kinds[name] == "kept tokens"}
    assert kept == {"blocks.1.kept": (2, 32), "blocks.2.kept": (2, 17)}
    assert changed.forward_features(images).shape[1] == prefix + 17 + 1
    out.sum().backward()
    assert all(p.grad is not None for p in changed.blocks.parameters())


def test_our_own_attention_and_its_couplings() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2, self.mlp = nn.LayerNorm(8), nn.LayerNorm(8), nn.Linear(8, 8)
            self.attn = MultiHeadAttention(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.attn(self.norm1(x))
            return x + self.mlp(self.norm2(x))

    model = nn.Sequential(Block(), Block())
    model.num_prefix_tokens = 1
    changed, tokens = evit(model, 0.5, layers=(0,)), torch.randn(2, 9, 8)
    with mereo.record(changed) as trace:
        changed(tokens)
    attention = trace["0.attn.coupling"].mean(1)[:, 0, 1:]
    assert torch.equal(trace["0.kept"], order_of(attention)[:, :4])
    assert trace["1.attn.coupling"].shape == (2, 2, 6, 6)


def test_class_logits_do_not_depend_on_the_order_of_patches() -> None:
    model, tokens = host()
    changed = evit(model, 0.6)
    order = torch.cat((torch.zeros(1, dtype=torch.long), 1 + torch.randperm(12)))
    torch.testing.assert_close(changed(tokens[:, order])[:, 0], changed(tokens)[:, 0])


def test_gradients_pass_through_kept_and_fused_tokens() -> None:
    model, tokens = host()
    changed = evit(model, 0.5, layers=(3,))
    tokens.requires_grad_()
    fused = changed(tokens)[:, -1].square().sum()
    (gradient,) = torch.autograd.grad(fused, tokens, retain_graph=True)
    assert (gradient.abs().sum(-1) > 0).all(), "also by the class attention"
    assert all(g is not None for g in torch.autograd.grad(fused, changed[3].attn.qkv.weight))


def test_kept_patches_on_the_image() -> None:
    first, second = torch.tensor([[5, 2, 7]]), torch.tensor([[3, 0]])
    assert [x.tolist() for x in kept_patches([first, second])] == [[[5, 2, 7]], [[-1, 5]]]
    assert [x.tolist() for x in kept_patches([first, torch.tensor([[2, 0]])], fused=False)] == [[[5, 2, 7]], [[7, 5]]]


def test_the_schedule_of_training() -> None:
    rates = [scheduled_keep_rate(epoch, 0.7, 10, 100) for epoch in (0, 10, 35, 60, 85, 110, 300)]
    assert rates == pytest.approx([1, 1, 0.9561, 0.85, 0.7439, 0.7, 0.7], abs=1e-4)
    model, tokens = host()
    changed = evit(model, 0.5)
    set_keep_rate(changed, 1.0)
    assert torch.equal(changed(tokens), model(tokens))
    set_keep_rate(changed, 0.5)
    assert torch.equal(changed(tokens), evit(model, 0.5)(tokens))


def test_rates_and_numbers_for_each_layer() -> None:
    model, tokens = host()
    assert evit(model, (0.5, 1.0), layers=(0, 2))(tokens).shape[1] == 1 + 6 + 1
    assert evit(model, tokens=(8, 3), layers=(1, 2))(tokens).shape[1] == 1 + 3 + 1
    assert evit(model, tokens=50, layers=(1,))(tokens).shape[1] == 13, "fewer patches than that: all stay"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep_rate": 0.0}, "above 0"), ({"keep_rate": 1.2}, "at most 1"), ({"keep_rate": (0.5, 0.5)}, "3 layers"),
        ({"layers": (4,)}, "from 0 to 3"), ({"layers": ()}, "from 0 to 3"), ({"tokens": 0}, "at least 1"),
    ],
)  # fmt: skip
def test_bad_input(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        evit(host()[0], **options)


def test_models_that_cannot_be_reduced() -> None:
    with pytest.raises(UsageError, match="without blocks"):
        model = nn.Sequential(nn.Linear(3, 3))
        model.num_prefix_tokens = 1
        evit(model)
    with pytest.raises(UsageError, match="without a class token"):
        evit(vit("vit_tiny_patch16_224", class_token=False, global_pool="avg"))
    with pytest.raises(UsageError, match="without a class token"):
        evit(nn.Sequential(*host()[0]))

    model, _ = host()
    model[1].forward = lambda x: x
    with pytest.raises(UsageError, match=r"block 1 .* computes something else"):
        evit(model)
    with pytest.raises(UsageError, match="at most 1"):
        set_keep_rate(model, 2)


def test_names() -> None:
    assert inspect.unwrap(mereo.evit) is inspect.unwrap(evit)


@pytest.mark.parametrize(
    "operate", [lambda m: mereo.moh(m, 0.5), lambda m: mereo.moh(m, 0.5, routing="tokens"),
                lambda m: mereo.sea(m, columns=4, top_k=2), lambda m: mereo.sparsifiner(m, 0.2, layers=[0])],
)  # fmt: skip
def test_attention_replaced_afterwards_is_used_in_reducing_blocks(operate) -> None:
    torch.manual_seed(0)
    model: Any = mereo.create_model("vit_tiny_patch16_224", **families()["vit"].tiny).eval()
    for parameter in model.parameters():
        parameter.data.add_(0.3 * torch.randn_like(parameter))
    reduced: Any = operate(mereo.evit(model, 0.5, layers=[0], fuse=False)).eval()
    block, alone = reduced.blocks[0], operate(model).eval().blocks[0]
    alone.attn.load_state_dict(block.attn.state_dict())  # a router starts at random
    x = torch.randn(2, 17, 12)
    y = x + alone.attn(alone.norm1(x))
    q, k, _ = model.blocks[0].attn.qkv(alone.norm1(x)).unflatten(-1, (3, 3, 4)).unbind(2)
    order = (q[:, :1] * k / 2).sum(-1).softmax(1).mean(-1)[:, 1:].sort(1, descending=True).indices[:, :8]
    kept = torch.stack([torch.cat((row[:1], row[1:][index])) for row, index in zip(y, order, strict=True)])
    torch.testing.assert_close(block(x), kept + alone.mlp(alone.norm2(kept)))
    assert not torch.allclose(block(x), mereo.evit(model, 0.5, layers=[0], fuse=False).eval().blocks[0](x))
