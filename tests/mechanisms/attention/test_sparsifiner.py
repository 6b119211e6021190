"""Sparsifiner: worked numbers, counts, references with loops, timm's transformers, distillation."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mereo
from mereo.errors import UsageError
from mereo.mechanisms.attention import MultiHeadAttention, SparsifinerAttention
from mereo.mechanisms.attention.sparse import attention_cost, keep_tokens, set_phase
from mereo.mechanisms.attention.sparse.sparsifiner import ConnectivityPredictor, kept_keys


def built(dtype: torch.dtype = torch.float64, **options: object) -> SparsifinerAttention:
    torch.manual_seed(0)
    given = {"tokens": 13, "keep": 0.3, "rank": 5, "top_basis": 2, **options}
    layer = SparsifinerAttention(12, 3, **given).to(dtype).eval()  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return layer


def tokens(count: int = 13, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(2, count, 12, generator=torch.Generator().manual_seed(1), dtype=dtype)


def vit(**options: object) -> nn.Module:
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    small = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3, "num_classes": 5}
    return timm.create_model("deit_tiny_patch16_224", **{**small, **options}).eval()


def test_worked_numbers() -> None:
    predictor = ConnectivityPredictor(4, 2, 2, 1, top_basis=None)
    with torch.no_grad():
        predictor.up.copy_(torch.tensor([[0.5, 0.3, 0.1, 0.0], [0.0, 0.1, 0.4, 0.6]]))
    approx = torch.tensor([[0.75, 0.25]]) @ predictor.basis()
    torch.testing.assert_close(approx, torch.tensor([[0.375, 0.25, 0.175, 0.15]]))
    layer = SparsifinerAttention(4, 1, tokens=4, keep=0.5)
    mask = layer._kept(approx[None, None], None)
    assert mask[0, 0].tolist() == [[True] * 4, [True, True, False, False]]


def test_parameters_and_budgets_of_deit_small() -> None:
    layer = SparsifinerAttention(384, 6, tokens=197)
    sizes = {name: p.numel() for name, p in layer.predictor.named_parameters()}
    assert sizes.pop("down") == sizes.pop("up") == 6304
    assert sum(sizes.values()) == 2 * 2080
    assert sum(p.numel() for p in layer.predictor.parameters()) == 16768 and 12 * 16768 == 201216
    assert (layer.keep, layer.predictor.top_basis, layer.predictor.basis_threshold) == (0.25, 8, 0.02)
    mask = layer.maps(torch.randn(1, 197, 384)).mask
    assert set(mask.sum(-1).unique().tolist()) == {50, 197} and mask[:, :, 0].all()
    assert kept_keys(30, 0.1) == 3 and kept_keys(197, 0.25) == 50
    assert SparsifinerAttention(96, 3, tokens=65).predictor.up.shape == (10, 65)


def test_costs_of_deit_small() -> None:
    dense = 2 * 197**2 * 64 * 6 * 12
    assert dense / 1e6 == pytest.approx(357.66, abs=0.01)
    for keep, millions, saved in ((0.25, 186.2, 47.9), (0.05, 114.0, 68.1), (0.9, None, -16.7), (0.5, None, 23.2)):
        cost = 72 * attention_cost(197, 64, keep)
        assert 100 * (1 - cost / dense) == pytest.approx(saved, abs=0.06)
        assert millions is None or cost / 1e6 == pytest.approx(millions, abs=0.06)
    fresh = SparsifinerAttention(384, 6, tokens=197).predictor.basis()
    assert (fresh != 0).double().mean().item() == pytest.approx(0.3125, abs=0.02)


def reference(layer: SparsifinerAttention, x: Tensor) -> tuple[Tensor, Tensor]:
    """Output and mask for one sample, with loops over heads, queries and keys."""
    n, heads, d = x.shape[0], layer.num_heads, layer.head_dim
    p = layer.predictor
    q, k, v = layer.qkv(x).unflatten(-1, (3, heads, d)).unbind(1)
    out, mask = torch.zeros(n, heads, d, dtype=x.dtype), torch.zeros(heads, n, n, dtype=torch.bool)
    for h in range(heads):
        low = [p.key(k[j, h]) for j in range(n)]
        few = [sum(p.down[j, m] * low[j] for j in range(n)) for m in range(p.down.shape[1])]
        for i in range(n):
            kept = set(range(n))
            if i > 0:
                scores = torch.stack([p.query(q[i, h]) @ row for row in few]) / math.sqrt(len(low[0]))
                shares = scores.softmax(0).tolist()
                best = sorted(range(len(shares)), key=lambda m: -shares[m])[: p.top_basis]
                estimate = [
                    sum(shares[m] * p.up[m, j].item() for m in best if abs(p.up[m, j].item()) > p.basis_threshold)
                    for j in range(n)
                ]
                kept = set(sorted(range(n), key=lambda j: -estimate[j])[: math.ceil(layer.keep * n)])
            mask[h, i, list(kept)] = True
            couplings = torch.stack([q[i, h] @ k[j, h] / math.sqrt(d) for j in sorted(kept)]).softmax(0)
            out[i, h] = sum(share * v[j, h] for share, j in zip(couplings, sorted(kept), strict=True))
    return layer.proj(out.flatten(1)), mask


@pytest.mark.parametrize("keep", [0.1, 0.3, 0.8])
def test_it_equals_its_loops(keep: float) -> None:
    layer, x = built(keep=keep), tokens()
    for b in range(2):
        out, mask = reference(layer, x[b])
        assert torch.equal(layer.maps(x).mask[b], mask)
        torch.testing.assert_close(layer(x)[b], out)


def test_with_all_keys_it_is_dense_attention() -> None:
    layer, x = built(keep=1.0), tokens()
    q, k, v = layer.qkv(x).unflatten(-1, (3, 3, 4)).permute(2, 0, 3, 1, 4)
    expected = layer.proj(((q @ k.mT / 2).softmax(-1) @ v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(layer(x), expected)
    layer.keep = 0.3
    assert (layer(x) - expected).abs().max() > 1e-3
    layer.set_phase("reconstruction")
    torch.testing.assert_close(layer(x), expected)


def test_a_full_basis_gives_the_softmax_of_few_channels() -> None:
    predictor = ConnectivityPredictor(6, 4, 6, 2, top_basis=6).double()
    with torch.no_grad():
        predictor.down.copy_(torch.eye(6))
        predictor.up.copy_(torch.eye(6))
    q, k = torch.randn(2, 1, 3, 6, 4, dtype=torch.float64)
    low = predictor.query(q) @ predictor.key(k).mT / 2**0.5
    torch.testing.assert_close(predictor(q, k), low.softmax(-1)[:, :, 1:])


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("options", [{}, {"mask_threshold": 0.05}, {"prefix": 3}, {"prefix": 0}])
def test_it_attends_to_the_kept_keys_and_what_is_kept_has_no_gradient(options: dict[str, Any], masked: bool) -> None:
    layer, x = built(**options), tokens().requires_grad_()
    prefix = options.get("prefix", 1)
    seen = torch.ones(2, 13, dtype=torch.bool)
    if masked:
        seen[:, prefix + 2 : prefix + 7] = False
    token_mask = seen[:, prefix:] if masked else None
    approx, mask = layer.maps(x).approx, torch.zeros(2, 3, 13, 13, dtype=torch.bool)
    for b, h, i in itertools.product(range(2), range(3), range(13)):
        keys = [j for j in range(13) if seen[b, j]]
        if i >= prefix:
            estimate = {j: approx[b, h, i - prefix, j].item() for j in keys}
            if "mask_threshold" in options:
                keys = [j for j in keys if estimate[j] > options["mask_threshold"]]
            else:
                keys = sorted(keys, key=lambda j: -estimate[j])[: math.ceil(layer.keep * 13)]
        mask[b, h, i, keys] = True
    q, k, v = layer.qkv(x).unflatten(-1, (3, 3, 4)).permute(2, 0, 3, 1, 4)
    couplings = (q @ k.mT / 2).masked_fill(~mask, -torch.inf).softmax(-1).nan_to_num()
    expected = layer.proj((couplings @ v).transpose(1, 2).flatten(2))
    assert torch.equal(layer.maps(x, token_mask).mask, mask)
    out = layer(x, token_mask=token_mask)
    torch.testing.assert_close(out, expected)
    weights = torch.arange(12)
    gradients = [torch.autograd.grad((y * weights).sum(), x, retain_graph=True)[0] for y in (out, expected)]
    torch.testing.assert_close(*gradients)
    (out * weights).sum().backward()
    assert layer.predictor.up.grad is None, "what is kept has no gradient"


def test_pruned_tokens_are_kept_by_no_query() -> None:
    layer, x = built(), tokens()
    mask = torch.ones(2, 12, dtype=torch.bool)
    mask[0, :11] = False
    kept = layer.maps(x, mask).mask
    assert not kept[0, :, :, 1:12].any() and kept[1].sum(-1).min() == 4
    changed = x.clone()
    changed[0, 1:12] += torch.randn(11, 12)
    out = [layer(y, token_mask=mask)[0, [0, 12]] for y in (x, changed)]
    torch.testing.assert_close(*out)
    couplings = torch.tensor([[0.1, 0.4, 0.2, 0.3], [0.1, 0.2, 0.6, 0.1]]).view(1, 2, 1, 4).expand(1, 2, 4, 4)
    assert keep_tokens(couplings, 0.6).tolist() == [[True, True, False]]
    earlier = torch.tensor([[True, False, True]])
    assert keep_tokens(couplings, 0.6, earlier).tolist() == [[True, False, True]]
    assert keep_tokens(couplings, 1.0, earlier).tolist() == earlier.tolist()


def test_what_is_recorded_is_what_acts() -> None:
    layer, x = built(), tokens()
    with mereo.record(layer) as trace:
        out = layer(x)
    torch.testing.assert_close(out, layer(x))
    assert torch.equal(trace["coupling"] > 0, layer.maps(x).mask)
    torch.testing.assert_close(trace["coupling"].sum(-1), torch.ones(2, 3, 13, dtype=torch.float64))


def test_positions_matter() -> None:
    layer, x = built(), tokens()
    order = torch.cat((torch.zeros(1, dtype=torch.long), 1 + torch.randperm(12)))
    assert (layer(x[:, order]) - layer(x)[:, order]).abs().max() > 1e-3


def test_signs_of_the_basis() -> None:
    for absolute in (False, True):
        predictor = ConnectivityPredictor(3, 4, 1, 2, absolute_basis=absolute)
        with torch.no_grad():
            predictor.up.copy_(torch.tensor([[-0.5, 0.01, 0.3]]))
        assert predictor.basis().tolist() == [[pytest.approx(0.5 if absolute else -0.5), 0.0, pytest.approx(0.3)]]
        predictor.reduced = False
        assert torch.equal(predictor.basis(), predictor.up)


def test_it_replaces_timms_attention() -> None:
    model, images = vit(), torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(mereo.sparsifiner(model, keep=1.0)(images), model(images), atol=1e-5, rtol=1e-5)
    student = mereo.sparsifiner(model, keep=0.25, layers=[0])
    assert student.blocks[0].attn.tokens == 17 and student.blocks[0].attn.prefix == 1
    for name, value in student.state_dict().items():
        assert "predictor" in name or torch.equal(value, model.state_dict()[name])
    assert (student(images) - model(images)).abs().max() > 1e-7
    with mereo.record(student) as trace:
        student(images)
    assert set((trace["blocks.0.attn.coupling"] > 0).sum(-1).unique().tolist()) == {5, 17}


def test_it_replaces_one_layer_of_ours() -> None:
    torch.manual_seed(0)
    layer, x = MultiHeadAttention(12, 3).eval(), torch.randn(2, 13, 12)
    torch.testing.assert_close(mereo.sparsifiner(layer, 1.0, tokens=13)(x), layer(x), atol=1e-5, rtol=1e-5)
    with pytest.raises(UsageError, match="tokens"):
        mereo.sparsifiner(layer)


def test_it_is_distilled_in_two_phases() -> None:
    model, images = vit(), torch.randn(48, 3, 32, 32)
    with torch.no_grad():
        for block in model.blocks:
            block.attn.qkv.weight.mul_(20.0)
    teacher, student = mereo.watchable(model), mereo.sparsifiner(model, keep=0.25)
    set_phase(student, "reconstruction")
    before = {name: value.clone() for name, value in student.state_dict().items()}
    how = {"epochs": 12, "lr": 2e-2, "batch_size": 24, "progress": False}
    matches = mereo.sparsifiner_matches(student)
    assert [match.weight for match in matches] == [0.005, 0.005]
    first = mereo.distil(teacher, student, images, matches, trained=["*.predictor.*"], **how)
    assert first.loss < 0.95 * first.history[0]["loss"]
    changed = {name for name, value in student.state_dict().items() if not torch.equal(value, before[name])}
    assert changed and all("predictor" in name for name in changed)
    set_phase(student, "sparse")
    kept = {name: value.clone() for name, value in student.state_dict().items() if "predictor" in name}
    second = mereo.distil(teacher, student, images, mereo.sparsifiner_matches(student), **{**how, "lr": 1e-3})
    assert set(second.history[0]) == {"loss", "output kl", "norm mse"}
    assert second.loss < second.history[0]["loss"]
    assert all(torch.equal(student.state_dict()[name], value) for name, value in kept.items())


def test_wrong_arguments_are_refused() -> None:
    for wrong in (
        {"keep": 0.0}, {"keep": 1.5}, {"tokens": 0}, {"num_heads": 5}, {"rank": -1}, {"top_basis": 0},
        {"basis_threshold": -0.1}, {"prefix": 13},
    ):  # fmt: skip
        with pytest.raises(UsageError):
            SparsifinerAttention(**{"dim": 12, "num_heads": 3, "tokens": 13, **wrong})
    layer = built()
    with pytest.raises(UsageError, match="built for 13"):
        layer(tokens(12))
    with pytest.raises(UsageError, match="token_mask"):
        layer(tokens(), token_mask=torch.ones(2, 13, dtype=torch.bool))
    with pytest.raises(UsageError, match="phase"):
        layer.set_phase("both")
    with pytest.raises(UsageError, match="attn_mask"):
        layer(tokens(), torch.ones(13, 13))
    with pytest.raises(UsageError, match="phase"):
        set_phase(nn.Linear(2, 2), "sparse")
    with pytest.raises(UsageError, match="topology"):
        mereo.sparsifiner(MultiHeadAttention(12, 3, causal=True), tokens=13)
    with pytest.raises(UsageError, match="self-attention"):
        mereo.sparsifiner(nn.Linear(2, 2), tokens=4)
    with pytest.raises(UsageError, match="give `tokens`"):
        mereo.sparsifiner(nn.Sequential(MultiHeadAttention(12, 3)))
