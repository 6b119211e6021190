"""Sigma-reparametrisation: worked numbers, norms and gradients, conversion, folding, saving, entropy and its bound."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mereo
from mereo.errors import UsageError
from mereo.measure.attention_entropy import attention_entropy, entropy_lower_bound, layer_entropies
from mereo.surgery import fold, remove_norms, sigma_reparam
from mereo.surgery.sigma_reparam import SpectralScale


def tiny() -> nn.Module:
    sizes = {"embed_dim": 16, "depth": 2, "num_heads": 2, "img_size": 16, "patch_size": 4, "num_classes": 5}
    return mereo.create_model("vit_tiny", **sizes)


def norm_of(weight: Tensor) -> float:
    return torch.linalg.matrix_norm(weight.flatten(1), 2).item()


def test_worked_numbers() -> None:
    weight = torch.tensor([[3.0, 0.0], [4.0, 5.0]])
    scale = SpectralScale(weight, "one").eval()
    expected = torch.tensor([[0.4472, 0.0], [0.5963, 0.7454]])
    torch.testing.assert_close(scale(weight), expected, rtol=0, atol=5e-5)
    scale.u.copy_(torch.tensor([1.0, 0.0]))
    for sigma in (6.403124, 6.704119, 6.708153):
        scale.train()
        changed = scale(weight)
        assert (weight[0, 0] / changed[0, 0]).item() == pytest.approx(sigma, abs=2e-6)


@pytest.mark.parametrize("shape", [(6, 8), (8, 6), (5, 3, 3, 3)])
def test_the_norm_is_gamma_and_the_own_scale_does_not_matter(shape: tuple[int, ...]) -> None:
    weight = torch.randn(shape)
    for gamma, expected in (("one", 1.0), ("sigma", norm_of(weight))):
        scale = SpectralScale(weight, gamma).eval()
        assert norm_of(scale(weight)) == pytest.approx(expected, rel=1e-5)
        torch.testing.assert_close(scale(5 * weight), scale(weight))
        with torch.no_grad():
            scale.gamma.mul_(3)
        assert norm_of(scale(weight)) == pytest.approx(3 * expected, rel=1e-5)
    scale.u.normal_()
    scale.train()
    for _ in range(300):
        changed = scale(weight)
    assert norm_of(changed) == pytest.approx(3 * norm_of(weight), rel=1e-4)


def test_gradients_are_those_of_the_formula() -> None:
    weight = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    scale = SpectralScale(weight, "one").double().eval()
    given = torch.randn(4, 6, dtype=torch.float64)
    u, gamma = scale.u[0], 1.7
    with torch.no_grad():
        scale.gamma.fill_(gamma)
        v = F.normalize(weight @ u, dim=0)
        u = F.normalize(v @ weight, dim=0)
        sigma = v @ weight @ u
        changed = gamma / sigma * weight
    expected = gamma / sigma * (given - (given * changed).sum() / gamma * torch.outer(v, u))
    (scale(weight) * given).sum().backward()
    assert weight.grad is not None and scale.gamma.grad is not None
    torch.testing.assert_close(weight.grad, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(scale.gamma.grad.item(), ((given * weight).sum() / sigma).item(), rtol=1e-10, atol=1e-10)
    assert abs((weight.grad * weight).sum().item()) < 1e-12


def test_training_keeps_the_vector_and_evaluation_does_not() -> None:
    scale, weight = SpectralScale(torch.randn(4, 6)), torch.randn(4, 6)
    before = scale.u.clone()
    scale.eval()(weight)
    assert torch.equal(scale.u, before)
    scale.train()(weight)
    assert not torch.equal(scale.u, before)


def test_zeros_half_precision_and_autocast() -> None:
    for weight in (torch.zeros(3, 4), torch.randn(3, 4)):
        layer = nn.Linear(4, 3)
        with torch.no_grad():
            layer.weight.copy_(weight)
        changed = sigma_reparam(layer)
        for dtype in (torch.bfloat16, torch.float16):
            out = changed.to(dtype)(torch.randn(2, 4, dtype=dtype))
            assert out.dtype == dtype and out.isfinite().all()
        changed = sigma_reparam(layer)
        with torch.autocast("cpu", torch.bfloat16):
            out = changed(torch.randn(2, 4))
        out.float().sum().backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in changed.parameters())


def test_a_copy_computes_the_same_and_folds_back() -> None:
    model, images = tiny().eval(), torch.rand(2, 3, 16, 16)
    changed = sigma_reparam(model)
    torch.testing.assert_close(changed(images), model(images), rtol=1e-4, atol=1e-5)
    changed.train()
    optimiser = torch.optim.SGD(changed.parameters(), lr=0.1)
    for _ in range(3):
        optimiser.zero_grad()
        F.cross_entropy(changed(images), torch.tensor([0, 1])).backward()
        optimiser.step()
    changed.eval()
    plain = fold(changed, steps=200)
    assert plain.state_dict().keys() == model.state_dict().keys() and "surgery" not in plain.config
    torch.testing.assert_close(plain(images), fold(changed, steps=201)(images), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(plain(images), changed(images), rtol=0.02, atol=0.02)  # sigma is a step old there
    assert not torch.allclose(plain(images), model(images), atol=1e-3)
    assert "surgery" in changed.config


def test_queries_keys_and_values_may_have_a_norm_each(tmp_path) -> None:  # type: ignore[no-untyped-def]
    model = tiny().eval()
    changed, images = sigma_reparam(model, split_qkv=True, gamma="one").eval(), torch.rand(2, 3, 16, 16)
    weight = changed.blocks[0].attn.qkv.weight
    assert [norm_of(part) for part in weight.chunk(3)] == pytest.approx([1, 1, 1], rel=1e-5)
    assert changed.blocks[0].attn.qkv.parametrizations.weight[0].gamma.shape == (3,)
    assert norm_of(changed.blocks[0].attn.proj.weight) == pytest.approx(1, rel=1e-5)
    torch.testing.assert_close(sigma_reparam(model, split_qkv=True).eval()(images), model(images), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(fold(changed)(images), changed(images), rtol=1e-4, atol=1e-5)
    mereo.save_weights(tmp_path / "split.safetensors", changed)
    assert torch.equal(mereo.load(tmp_path / "split.safetensors")(images), changed(images))


def test_it_is_saved_and_loaded(tmp_path) -> None:  # type: ignore[no-untyped-def]
    changed, images = (
        sigma_reparam(tiny(), norms=False, keep_weights=False, gamma="one").eval(),
        torch.rand(2, 3, 16, 16),
    )
    mereo.save_weights(tmp_path / "changed.safetensors", changed)
    again = mereo.load(tmp_path / "changed.safetensors")
    assert torch.equal(again(images), changed(images))
    assert not any(isinstance(module, nn.LayerNorm) for module in again.modules())


def test_a_folded_network_without_norms_is_saved_and_loaded(tmp_path) -> None:  # type: ignore[no-untyped-def]
    images, plain = torch.rand(2, 3, 16, 16), fold(sigma_reparam(tiny(), norms=False)).eval()
    mereo.save_weights(tmp_path / "plain.safetensors", plain)
    assert torch.equal(mereo.load(tmp_path / "plain.safetensors")(images), plain(images))


def test_entropies_of_layers() -> None:
    model, images = tiny(), torch.rand(2, 3, 16, 16)
    found = layer_entropies(model, images)
    assert len(found) == 2 and model.training
    with mereo.record(model.eval()) as trace:
        model(images)
    for name, entropies in found.items():
        torch.testing.assert_close(entropies, attention_entropy(trace[name]).mean((0, 2)))
        assert entropies.shape == (2,) and (entropies < math.log(17) + 1e-5).all()
    with pytest.raises(UsageError, match="Linear has no couplings"):
        layer_entropies(nn.Linear(2, 3), torch.rand(1, 2))


def test_counts_of_the_page() -> None:
    timm = pytest.importorskip("timm")
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=4, num_classes=10)
    changed = remove_norms(sigma_reparam(model))
    assert [sum(p.numel() for p in m.parameters()) for m in (model, changed)] == [5_362_762, 5_353_212]
    assert sum(isinstance(module, SpectralScale) for module in changed.modules()) == 50
    with torch.device("meta"):
        base = timm.create_model("vit_base_patch16_224", num_classes=0)
        assert sum(p.numel() for p in base.parameters()) == 85_798_656
        assert sum(p.numel() for p in remove_norms(sigma_reparam(base)).parameters()) == 85_760_305


def test_new_weights_and_what_stays() -> None:
    model = nn.Sequential(nn.Conv2d(4, 64, 3), nn.Conv2d(64, 64, 3, groups=2), nn.BatchNorm2d(64), nn.Linear(6, 512))
    changed = sigma_reparam(model, keep_weights=False, conv_gain=0.125)
    original = changed[0].parametrizations.weight.original
    assert 0.002 < original.std() < 0.0026 and original.abs().max() <= 0.005 + 1e-6
    assert torch.equal(changed[1].weight, model[1].weight) and isinstance(changed[2], nn.BatchNorm2d)
    assert isinstance(remove_norms(changed)[2], nn.Identity) and isinstance(changed[2], nn.BatchNorm2d)


@pytest.mark.parametrize("sizes", [{}, {"kdim": 4, "vdim": 4}])
@pytest.mark.parametrize("split_qkv", [False, True])
def test_projections_inside_attention_of_pytorch(sizes: dict[str, int], split_qkv: bool) -> None:
    model = nn.MultiheadAttention(8, 2, batch_first=True, **sizes).eval()
    changed = sigma_reparam(model, split_qkv=split_qkv)
    tokens, senders = torch.randn(2, 3, 8), torch.randn(2, 5, sizes.get("kdim", 8))
    expected = model(tokens, senders, senders)[0]
    torch.testing.assert_close(changed(tokens, senders, senders)[0], expected, rtol=1e-4, atol=1e-5)
    shapes = [tuple(module.gamma.shape) for module in changed.modules() if isinstance(module, SpectralScale)]
    assert sorted(shapes) == ([(1,)] * 4 if sizes else [(1,), (3 if split_qkv else 1,)])
    plain = fold(changed)
    assert type(plain) is nn.MultiheadAttention and plain.state_dict().keys() == model.state_dict().keys()
    torch.testing.assert_close(plain(tokens, senders, senders)[0], expected, rtol=1e-4, atol=1e-5)


def test_a_language_model_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"n_layer": 1, "n_head": 2, "n_embd": 8, "vocab_size": 16, "n_positions": 8}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)).eval()
    changed, tokens = sigma_reparam(model), torch.arange(6).unsqueeze(0)
    assert sum(isinstance(module, SpectralScale) for module in changed.modules()) == 4
    assert changed.lm_head.weight is changed.transformer.wte.weight, "a tied read-out stays tied"
    torch.testing.assert_close(changed(tokens).logits, model(tokens).logits, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(fold(changed)(tokens).logits, model(tokens).logits, rtol=1e-4, atol=1e-5)


def test_the_least_entropy() -> None:
    for senders, sigma, expected in [
        (4, 0.0, math.log(4)), (4, 2.0, 0.790945), (4, 5.0, 0.062633), (64, 10.0, 0.029206), (197, 10.0, 0.094856),
    ]:  # fmt: skip
        assert entropy_lower_bound(sigma, senders) == pytest.approx(expected, abs=1e-6)
        row = torch.full((senders,), -sigma / math.sqrt(senders * (senders - 1)), dtype=torch.float64)
        row[0] = sigma * math.sqrt((senders - 1) / senders)
        assert attention_entropy(row.softmax(0)).item() == pytest.approx(expected, abs=1e-6)
    rows = 2 * F.normalize(torch.randn(20_000, 4, dtype=torch.float64), dim=1)
    entropies = attention_entropy(rows.softmax(1))
    assert 0.790945 <= entropies.min() + 1e-6 < 0.83


def test_entropy_of_couplings() -> None:
    couplings = torch.rand(2, 3, 5, 7).softmax(-1)
    loops = torch.zeros(2, 3, 5)
    for b, h, r, s in itertools.product(range(2), range(3), range(5), range(7)):
        loops[b, h, r] -= couplings[b, h, r, s] * couplings[b, h, r, s].log()
    torch.testing.assert_close(attention_entropy(couplings), loops)
    torch.testing.assert_close(attention_entropy(couplings[..., torch.randperm(7)]), loops)
    assert attention_entropy(torch.eye(4)).abs().max() == 0
    torch.testing.assert_close(attention_entropy(torch.full((1, 8), 1 / 8)), torch.tensor([math.log(8)]))
    mask = torch.tensor([True] * 4 + [False] * 3)
    torch.testing.assert_close(attention_entropy(couplings, mask), attention_entropy(couplings[..., :4]))


def test_bad_input() -> None:
    with pytest.raises(UsageError, match="gamma is 'two'"):
        sigma_reparam(nn.Linear(2, 3), gamma="two")
    with pytest.raises(UsageError, match="Identity has no linear layer"):
        sigma_reparam(nn.Identity())
    with pytest.raises(UsageError, match="Linear has no layer of sigma_reparam"):
        fold(nn.Linear(2, 3))
    with pytest.raises(UsageError, match="sigma is -1"):
        entropy_lower_bound(-1.0, 4)
    twice = sigma_reparam(sigma_reparam(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2)))[:1].append(nn.Linear(3, 2)))
    assert sum(isinstance(module, SpectralScale) for module in twice.modules()) == 2
