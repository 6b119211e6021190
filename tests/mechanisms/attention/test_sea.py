"""SEA: worked numbers, a reference with loops, its three executions, hosts, distillation, bad input."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn

import mereo
from mereo.core.kernels import library
from mereo.errors import UsageError
from mereo.mechanisms.attention import MultiHeadAttention, SeaAttention
from mereo.mechanisms.attention.sparse import map_losses, sea_mask
from mereo.mechanisms.attention.sparse.sea_estimate import REDRAW, KernelAttention
from mereo.mechanisms.attention.sparse.sea_mask import choose, column_of, listed, stretch, visible
from mereo.surgery import set_top_k

WAYS = ("dense", "lists", *(() if library.missing else ("compiled",)))


def built(causal: bool = False, dtype: torch.dtype = torch.float64, **options: object) -> SeaAttention:
    torch.manual_seed(0)
    given = {"columns": 8, "top_k": 3, "max_len": 32, "causal": causal, **options}
    layer = SeaAttention(2, 4, **given).to(dtype).eval()  # type: ignore[arg-type]
    with torch.no_grad():  # columns that a fresh causal decoder draws in fours have equal scores
        for parameter in layer.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return layer


def qkv(tokens: int, dtype: torch.dtype = torch.float64, heads: int = 2, dim: int = 4, seed: int = 1) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(2, heads, tokens, dim, generator=generator, dtype=dtype) for _ in range(3)]


def test_columns_of_keys() -> None:
    assert column_of(torch.arange(8), 8, 4).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    rows = [[1], [0, 2], [0, 1, 3], [0, 1, 2, 3], [0, 1, 1, 2, 3], [0, 0, 1, 2, 2, 3]]
    for i, expected in enumerate(rows):
        assert column_of(torch.arange(i + 1), i + 1, 4).tolist() == expected


@pytest.mark.parametrize(("count", "columns"), [(1, 4), (5, 4), (8, 4), (13, 32), (64, 32), (100, 8), (1000, 12)])
def test_lists_hold_the_keys_of_the_kept_columns(count: int, columns: int) -> None:
    kept = torch.rand(1, 2, 3, columns, generator=torch.Generator().manual_seed(count)) < 0.4
    lists = listed(kept, torch.full((1, 3), count))
    for h in range(2):
        for i in range(3):
            expected = [j for j in range(count) if kept[0, h, i, math.floor((j + 0.5) / count * columns - 1e-4)]]
            assert [j for j in lists[0, h, i].tolist() if j >= 0] == expected


def test_how_many_keys_are_kept() -> None:
    probabilities = torch.rand(3, 4, 64, 32, generator=torch.Generator().manual_seed(0))
    for causal, mean, first in ((False, 7.0, 7.0), (True, 6.63, 1.0)):
        lengths, places = visible(64, causal, None, probabilities.device)
        kept = choose(probabilities, lengths, 7, "causal_batch", causal=causal)
        mask, seen = stretch(kept, lengths, places, causal, None)
        counts = (mask & seen).sum(-1).double().mean(1)
        assert counts.mean().item() == pytest.approx(mean, abs=0.05)
        assert (counts[:, 0] == first).all()
        assert causal or (counts == 7).all()


@pytest.mark.parametrize("group", sea_mask.GROUPS)
def test_groups_share_one_budget(group: str) -> None:
    batch, heads, tokens, columns, top_k = 2, 3, 8, 4, 3
    p = torch.rand(batch, heads, tokens, columns, generator=torch.Generator().manual_seed(0))
    kept = choose(p, torch.full((1, tokens), tokens), top_k, group)
    per_row = round(top_k * columns / tokens)
    expected = torch.zeros_like(kept)
    for b in range(batch):
        whole = {
            "query": [[(h, i)] for h in range(heads) for i in range(tokens)],
            "head": [[(h, i) for i in range(tokens)] for h in range(heads)],
            "batch": [[(h, i) for h in range(heads) for i in range(tokens)]],
            "causal_batch": [[(h, i) for h in range(heads)] for i in range(tokens)],
        }[group]
        for rows in whole:
            budget = round(len(rows) * top_k * columns / tokens)
            entries = sorted(((p[b, h, i, m].item(), h, i, m) for h, i in rows for m in range(columns)), reverse=True)
            for _, h, i, m in entries[:budget]:
                expected[b, h, i, m] = True
    assert torch.equal(kept, expected)
    assert group != "query" or (kept.sum(-1) == per_row).all()


def test_parameters() -> None:
    layer = SeaAttention(4, 16, columns=32, top_k=7)
    assert sum(p.numel() for p in layer.parameters()) == 1568 + 64 + 2112 + 2320 + 2320 + 580 + 66 == 9030
    assert layer.kernel.projection.shape == (44, 16)
    assert SeaAttention(4, 16, columns=32, causal=True, max_len=128).positions.shape == (128, 16)


def test_random_features_are_orthogonal_and_estimate_the_softmax() -> None:
    torch.manual_seed(0)
    kernel = KernelAttention(8, 4096).double().eval()
    block = kernel.projection[:8]
    torch.testing.assert_close(block @ block.T, (block @ block.T).diagonal().diag(), atol=1e-5, rtol=0)
    q, k, v = (0.5 * x for x in qkv(6, dim=8))
    exact = (q @ k.mT / 8**0.5).softmax(-1) @ v
    assert (kernel(q, k, v) - exact).abs().mean() < 0.1 * exact.abs().mean()


@pytest.mark.parametrize("causal", [False, True])
def test_kernel_attention_equals_its_loops(causal: bool) -> None:
    torch.manual_seed(0)
    kernel = KernelAttention(4, causal=causal).double().eval()
    assert kernel.projection.shape[0] == int(4 * math.log(4))
    q, k, v = qkv(7)
    out, w = kernel(q, k, v), kernel.projection
    for h in range(2):
        x, y = q[0, h] * 4**-0.25, k[0, h] * 4**-0.25
        if causal:
            phi_q, phi_k = (x @ w.T).clamp(min=0) + 1e-3, (y @ w.T).clamp(min=0) + 1e-3
        else:
            most = max((w @ row).max().item() for row in y)
            phi_q = torch.stack([(w @ r - r @ r / 2 - (w @ r).max()).exp() + 1e-4 for r in x])
            phi_k = torch.stack([(w @ r - r @ r / 2 - most).exp() + 1e-4 for r in y])
        for i in range(7):
            keys = range(i + 1 if causal else 7)
            shares = [phi_q[i] @ phi_k[j] for j in keys]
            expected = sum(share * v[0, h, j] for share, j in zip(shares, keys, strict=True)) / sum(shares)
            torch.testing.assert_close(out[0, h, i], expected)


def reference(layer: SeaAttention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Steps 1 to 10 of the paper for one sample, with loops over heads, queries and keys."""
    heads, tokens, dim = q.shape
    columns = layer.columns
    if layer.causal:
        ramp = layer.positions[:tokens]
    else:
        ramp = torch.zeros(tokens, dim, dtype=q.dtype)
        for t in range(tokens):
            at = t / max(tokens - 1, 1) * (dim - 1)
            low = min(int(at), dim - 2)
            ramp[t, low], ramp[t, low + 1] = 1 - (at - low), at - low
    context = layer.kernel(q[None], k[None], torch.cat((ramp.expand(heads, -1, -1), v), -1)[None])[0]
    z = layer.encoder(torch.cat((context, v), -1))
    scores = layer.decoder(z[None])[0]
    estimated = scores.softmax(-1)
    out = torch.zeros(tokens, heads, dim, dtype=q.dtype)

    def column(j: int, n: int) -> int:
        return max(math.floor((j + 0.5) / n * columns - 1e-4), 0)

    def seen(i: int) -> int:
        return i + 1 if layer.causal else tokens

    for i in range(tokens):
        n = seen(i)
        budget = min(max(round(heads * layer.top_k * columns / n), 1), heads * columns)
        order = sorted(((estimated[h, i, m].item(), h, m) for h in range(heads) for m in range(columns)), reverse=True)
        kept = {(h, m) for _, h, m in order[:budget]}
        for h in range(heads):
            gates = layer.gates(z[h, i]).sigmoid()
            keys = [j for j in range(n) if (h, column(j, n)) in kept]
            attended = torch.zeros(dim, dtype=q.dtype)
            if keys:
                shares = torch.stack([q[h, i] @ k[h, j] / dim**0.5 for j in keys]).softmax(0)
                attended = gates[0] * sum(share * v[h, j] for share, j in zip(shares, keys, strict=True))
            if layer.causal:
                mean = sum(v[h, j] for j in range(n)) / n
            else:
                weights = torch.zeros(tokens, dtype=q.dtype)
                for row in range(tokens):
                    line = torch.stack([scores[h, row, column(j, tokens)] for j in range(tokens)]).softmax(0)
                    weights += line / tokens
                mean = weights @ v[h]
            out[i, h] = gates[1] * attended + (1 - gates[1]) * mean
    return out.flatten(1)


@pytest.mark.parametrize("tokens", [1, 2, 9, 20])
@pytest.mark.parametrize("causal", [False, True])
def test_sea_equals_its_loops(causal: bool, tokens: int) -> None:
    layer, inputs = built(causal), qkv(tokens)
    out = layer(*inputs)
    for b in range(2):
        torch.testing.assert_close(out[b], reference(layer, *(x[b] for x in inputs)))


def test_convolutions_of_the_causal_decoder_do_not_see_later_queries_and_others_see_all() -> None:
    for causal in (False, True):
        layer, z = built(causal), torch.randn(1, 2, 6, 8, dtype=torch.float64)
        z.requires_grad_()
        layer.decoder(z)[0, :, 2].square().sum().backward()
        assert (z.grad[0, :, 3:] == 0).all() == causal and (z.grad[0, :, 2] != 0).any()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("tokens", [1, 7, 30])
def test_all_executions_agree(tokens: int, causal: bool) -> None:
    layer, inputs = built(causal, torch.float32), qkv(tokens, torch.float32)
    masks = [None] if causal else [None, torch.rand(2, tokens, generator=torch.Generator().manual_seed(0)) > 0.4]
    for mask in masks:
        outs = []
        for layer.method in WAYS:
            with torch.inference_mode(layer.method == "compiled"):
                outs.append(layer(*inputs, mask))
        for out in outs[1:]:
            torch.testing.assert_close(out, outs[0], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_lists_have_the_gradients_of_the_mask(causal: bool) -> None:
    gradients = []
    for method in ("dense", "lists"):
        layer, inputs = built(causal, method=method), [x.requires_grad_() for x in qkv(11)]
        weights = torch.randn(2, 11, 8, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        (layer(*inputs) * weights).sum().backward()
        gradients.append([x.grad for x in (*inputs, *layer.parameters()) if x.grad is not None])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


def test_with_enough_keys_and_open_gates_it_is_dense_attention() -> None:
    layer, (q, k, v) = built(top_k=12), qkv(12)
    with torch.no_grad():
        layer.gates.weight.zero_()
        layer.gates.bias.fill_(60.0)
    expected = ((q @ k.mT / 2).softmax(-1) @ v).transpose(1, 2).flatten(2)
    torch.testing.assert_close(layer(q, k, v), expected)
    _, loss, maps = layer.with_losses(q, k, v)
    assert maps.mask.all() and maps.kept.all() and loss is None
    torch.testing.assert_close(maps.couplings, (q @ k.mT / 2).softmax(-1))
    torch.testing.assert_close(maps.estimated.sum(-1), torch.ones(2, 2, 12, dtype=torch.float64))


def test_a_later_token_changes_nothing_before_it() -> None:
    layer, inputs = built(causal=True), qkv(20)
    plain = layer(*inputs)
    for place in (1, 7, 19):
        changed = [x.clone() for x in inputs]
        for x in changed:
            x[:, :, place:] += 1.0
        out = layer(*changed)
        torch.testing.assert_close(out[:, :place], plain[:, :place])
        assert (out[:, place:] != plain[:, place:]).any()


def test_padding_changes_nothing() -> None:
    layer, inputs = built(), qkv(9)
    mask = torch.arange(9) < 6
    before = None
    for junk in (0.0, 50.0):
        padded = [torch.where(mask[:, None], x, torch.full_like(x, junk)) for x in inputs]
        bool_mask = mask.expand(2, -1)
        added = torch.where(bool_mask, 0.0, -1e4)[:, None, None, :]
        outs = [layer(*padded, m) for m in (bool_mask, added)]
        assert torch.equal(*outs) and (outs[0][:, 6:] == 0).all()
        if before is not None:
            torch.testing.assert_close(outs[0], before)
        before = outs[0]
    assert layer(*inputs, torch.zeros(2, 9, dtype=torch.bool)).abs().max() == 0


def test_the_losses() -> None:
    layer, (q, k, v) = built(), qkv(10)
    scores = layer._estimated(q, k, v, None).scores
    stretched = stretch(scores, *visible(10, False, None, q.device), False, None)[0]
    out, loss, _ = layer.with_losses(q, k, v, teacher_scores=stretched, teacher_context=layer(q, k, v))
    torch.testing.assert_close(loss, map_losses((q @ k.mT / 2).softmax(-1), stretched.softmax(-1)))
    a, b = torch.tensor([[[[0.5, 0.5]]]]), torch.tensor([[[[0.25, 0.75]]]])
    kl = 0.5 * math.log(2) + 0.5 * math.log(2 / 3)
    torch.testing.assert_close(map_losses(b, a), torch.tensor(0.1 * kl + 0.0625))
    assert map_losses(a, a) == 0
    context = torch.randn_like(out)
    _, context_loss, _ = layer.with_losses(q, k, v, teacher_context=context)
    torch.testing.assert_close(context_loss, (out - context).square().mean())


def test_what_is_recorded() -> None:
    layer, inputs = built(), qkv(12)
    with mereo.record(layer) as trace:
        layer(*inputs)
    _, _, maps = layer.with_losses(*inputs)
    assert list(trace) == ["coupling"]
    torch.testing.assert_close(trace["coupling"], maps.couplings)
    layer.method = "lists"
    with mereo.record(layer) as by_lists:
        layer(*inputs)
    torch.testing.assert_close(by_lists["coupling"], trace["coupling"])
    call = by_lists.calls("coupling")[0]
    sparse = call.tiles.place(call.couplings, sparse=True)
    assert sparse.is_sparse
    torch.testing.assert_close(sparse.to_dense(), trace["coupling"])
    changes = {"coupling": lambda c: c * (torch.arange(12) == 0)}
    outs = []
    for layer.method in ("dense", "lists"):
        with mereo.intervene(layer, changes):
            outs.append(layer(*inputs))
    torch.testing.assert_close(*outs)
    with mereo.record(layer.train()) as trace:
        layer(*inputs)
    assert set(trace) == {"coupling", "estimate", "dense"}
    torch.testing.assert_close(trace["dense"], (inputs[0] @ inputs[1].mT / 2).softmax(-1))


def test_large_maps_are_recorded_as_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mereo.mechanisms.attention.sparse.sea.LARGEST_DENSE", 100)
    monkeypatch.setattr("mereo.core.topology.base.LARGEST_DENSE", 100)
    layer, inputs = built(), qkv(12)
    with mereo.record(layer) as trace:
        layer(*inputs)
    assert trace["coupling"].is_sparse
    torch.testing.assert_close(trace["coupling"].to_dense(), layer.with_losses(*inputs)[2].couplings)


def test_features_are_drawn_again_in_training() -> None:
    layer, inputs = built().train(), qkv(4)
    first = layer.kernel.projection.clone()
    layer.kernel.steps.fill_(REDRAW - 2)
    layer(*inputs)
    assert torch.equal(layer.kernel.projection, first)
    layer(*inputs)
    assert not torch.equal(layer.kernel.projection, first)
    again = layer.kernel.projection.clone()
    layer.eval()(*inputs)
    assert torch.equal(layer.kernel.projection, again)


class Block(nn.Module):
    def __init__(self, dim: int, causal: bool) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(dim), MultiHeadAttention(dim, 2, causal=causal)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.attention(self.norm(x))


@pytest.mark.parametrize("causal", [False, True])
def test_it_replaces_dense_attention(causal: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Block(8, causal), Block(8, causal)).eval()
    student = mereo.sea(model, columns=8, top_k=4, layers=[1], max_len=16)
    assert isinstance(student[0].attention, MultiHeadAttention) and isinstance(model[1].attention, MultiHeadAttention)
    assert student[1].attention.sea.causal == causal
    for name, value in student.state_dict().items():
        assert "sea" in name or torch.equal(value, model.state_dict()[name])
    same = mereo.sea(model, columns=8, top_k=4, layers=[1], max_len=16)
    assert all(torch.equal(a, b) for a, b in zip(same.parameters(), student.parameters(), strict=True))
    set_top_k(student, 16)
    sea = student[1].attention.sea
    with torch.no_grad():
        sea.gates.weight.zero_()
        sea.gates.bias.fill_(60.0)
    x = torch.randn(2, 7, 8)
    torch.testing.assert_close(student(x), model(x), atol=1e-5, rtol=1e-5)
    changed = x.clone()
    changed[:, 5] = torch.randn(8)
    assert torch.allclose(student(changed)[:, :5], student(x)[:, :5]) == causal


def test_it_replaces_timms_attention() -> None:
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    vit = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=3, num_classes=5
    ).eval()
    images = torch.randn(2, 3, 32, 32)
    watched = mereo.watchable(vit)
    torch.testing.assert_close(watched(images), vit(images), atol=1e-5, rtol=1e-5)
    with mereo.record(watched) as trace:
        watched(images)
    assert [value.shape for value in trace.values()] == [(2, 3, 17, 17)] * 2
    student = mereo.sea(vit, columns=8, top_k=4)
    assert student(images).shape == (2, 5)
    row = mereo.distil(
        watched, student, images, mereo.sea_matches(student, hidden=["blocks.1"], logits_weight=0.1), epochs=1,
        progress=False,
    ).history[0]  # fmt: skip
    assert set(row) == {
        "loss", "output kl", "blocks.1 mse",
        *(f"blocks.{i}.attn.sea.{part} map_losses" for i in range(2) for part in ("estimate", "dense")),
        *(f"blocks.{i}.attn.proj mse" for i in range(2)),
    }  # fmt: skip


@pytest.mark.parametrize("causal", [False, True])
def test_a_dense_layer_is_distilled(causal: bool) -> None:
    torch.manual_seed(0)
    teacher = MultiHeadAttention(16, 2, causal=causal)
    with torch.no_grad():
        for linear in (teacher.query, teacher.key):
            linear.weight.mul_(2.0)
    student = mereo.sea(teacher, columns=8, top_k=4, max_len=16)
    places = 2 * torch.randn(16, 16)
    data = places + 0.3 * torch.randn(64, 16, 16)
    before = copy.deepcopy(student)
    matches = mereo.sea_matches(student)
    result = mereo.distil(teacher, student, data, matches, trained=["sea"], epochs=25, lr=5e-3, progress=False)
    assert result.loss < 0.75 * result.history[0]["loss"]
    x = places + 0.3 * torch.randn(8, 16, 16)
    error = [(model.eval()(x) - teacher.eval()(x)).square().mean() for model in (student, before)]
    assert error[0] < 0.7 * error[1]


def test_wrong_arguments_are_refused() -> None:
    for wrong in (
        {"columns": 7}, {"columns": 6, "causal": True}, {"top_k": 0}, {"group": "rows"},
        {"group": "head", "causal": True}, {"method": "fast"}, {"head_dim": 0},
    ):  # fmt: skip
        with pytest.raises(UsageError):
            SeaAttention(**{"num_heads": 2, "head_dim": 4, "columns": 8, **wrong})
    q, k, v = qkv(5)
    with pytest.raises(UsageError, match="equally many"):
        built()(q, k[:, :, :4], v)
    with pytest.raises(UsageError, match="no tokens"):
        built()(*(x[:, :, :0] for x in (q, k, v)))
    with pytest.raises(UsageError, match="max_len"):
        built(causal=True)(*qkv(33))
    with pytest.raises(UsageError, match="causal=True"):
        built(causal=True)(q, k, v, torch.ones(2, 5, dtype=torch.bool))
    with pytest.raises(UsageError, match="key_mask"):
        built()(q, k, v, torch.ones(2, 4, dtype=torch.bool))
    with pytest.raises(UsageError, match="compiled"):
        built(method="compiled")(q, k, v)
    with pytest.raises(UsageError, match="group"):
        choose(torch.rand(1, 1, 2, 4), torch.ones(1, 2, dtype=torch.long), 1, "head", causal=True)
    with pytest.raises(UsageError, match="self-attention"):
        mereo.sea(nn.Linear(3, 3))
    with pytest.raises(UsageError, match="layers"):
        mereo.sea(MultiHeadAttention(8, 2), layers=[1])
    with pytest.raises(UsageError, match="SeaHosted"):
        mereo.sea_matches(nn.Linear(3, 3))
