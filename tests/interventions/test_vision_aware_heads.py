"""Vision-aware heads: the worked example, the proposition, batches, caches, folding, permutations, refusals."""

from typing import Any

import pytest
import torch
from torch import nn

import mereo
from mereo.errors import UsageError
from mereo.interventions import folded, token_divergence, vision_aware_divergence, vision_aware_heads
from mereo.interventions.vision_aware_heads import divergence, outlying, reinforced
from tiny_decoders import cached, prompts, recomputed, tiny_vl


def test_the_worked_example() -> None:
    seen = torch.tensor([[1.0, 0], [0, 2], [0.5, 0.5], [3, 4]], dtype=torch.float64)
    unseen = torch.tensor([[0.0, 0], [0, 2], [0.5, -0.5], [0, 0]], dtype=torch.float64)
    vhd, text = divergence(seen, unseen), unseen.square().sum(-1)
    assert vhd.tolist() == [1, 0, 1, 5] and text.tolist() == [0, 4, 0.5, 0]
    limits = [float(each.mean() + each.std(correction=0)) for each in (vhd, text)]
    assert limits == pytest.approx([3.670286, 2.797386], abs=1e-6)
    assert not outlying(vhd, text).any() and outlying(vhd, text.flip(0) + 9 * (vhd == 5)).tolist()[3]
    assert reinforced(vhd).tolist() == [False, False, False, True] and float(token_divergence(vhd[None, None], 2)) == 6
    assert not reinforced(torch.zeros(4)).any() and int(reinforced(torch.rand(9, 8)).sum(1).max()) <= 4


def test_the_residual_stream_turns_towards_what_is_reinforced() -> None:
    def cosine(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cosine_similarity(x, y, dim=-1)

    y = torch.tensor([0.0, 1.0], dtype=torch.float64)
    x = torch.tensor([1.0, 1.0], dtype=torch.float64)
    assert float(cosine(x, y)) == pytest.approx(0.7071, abs=1e-4)
    assert float(cosine(x + y, y)) == pytest.approx(0.8944, abs=1e-4)
    x, y = (torch.randn(200, 7, dtype=torch.float64) for _ in range(2))
    alphas = [1.0, 1.5, 2.0, 3.0, 4.0]
    turned = torch.stack([cosine(x + (alpha - 1) * y, y) for alpha in alphas])
    assert (turned.diff(dim=0) > 0).all()


def test_batches_caches_and_what_is_left_behind() -> None:
    model, rows, tokens = tiny_vl(), prompts(), torch.tensor([[3, 9], [5, 1]])
    plain = cached(model, rows, tokens)
    with vision_aware_heads(model) as heads:
        changed = cached(model, rows, tokens)
        gates = {layer: gate.clone() for layer, gate in heads.gates.items()}
        torch.testing.assert_close(changed, recomputed(model, rows, tokens), rtol=0, atol=1e-5)
    assert sorted(gates) == [1, 2, 3] and (changed - plain).abs().max() > 1e-3
    assert all((gate > 1).sum(1).max() <= 2 for gate in gates.values())
    for place in range(2):
        one = slice(place, place + 1)
        with vision_aware_heads(model) as heads:
            torch.testing.assert_close(cached(model, rows[one], tokens[one]), changed[one], rtol=0, atol=1e-5)
            assert all(torch.equal(heads.gates[layer], gate[one]) for layer, gate in gates.items())
    for same in ({"alpha": 1.0}, {"layers": []}):
        with vision_aware_heads(model, **same):
            assert torch.equal(cached(model, rows, tokens), plain)
    with pytest.raises(InterruptedError), vision_aware_heads(model):
        raise InterruptedError
    assert torch.equal(cached(model, rows, tokens), plain)


def test_layers_are_chosen_from_with_the_gates_of_earlier_ones() -> None:
    """By hand: one layer after the other, each from passes with the weights of earlier layers scaled."""
    model, rows = tiny_vl(), prompts(1)
    with vision_aware_heads(model, drop_outliers=False) as heads:
        model(rows)
    again = tiny_vl()
    for layer in range(1, 4):
        vhd = vision_aware_divergence(again, rows)[:, layer]
        torch.testing.assert_close(vhd, heads.divergences[layer], rtol=1e-4, atol=1e-6)
        gate = torch.where(reinforced(vhd), 2.0, 1.0)
        assert torch.equal(gate, heads.gates[layer])
        with torch.no_grad():
            again.blocks[layer].proj.weight.mul_(gate[0].repeat_interleave(4))


def test_folding_is_the_same_and_is_undone() -> None:
    model, rows = tiny_vl(), prompts(1)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    with vision_aware_heads(model) as heads, torch.no_grad():
        expected = model(rows)
        with folded(heads):
            torch.testing.assert_close(model(rows), expected, rtol=0, atol=1e-6 * float(expected.abs().max()))
            assert not torch.equal(model.blocks[1].proj.weight, weights["blocks.1.proj.weight"])
        assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
        with pytest.raises(InterruptedError), folded(heads):
            raise InterruptedError
        model(prompts(2))
        with pytest.raises(UsageError) as error, folded(heads):
            pass
        assert "heads" in str(error.value)
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


def test_a_vision_transformer_of_timm_as_an_oracle_for_folding() -> None:
    timm = pytest.importorskip("timm")
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2).double().eval()
    images = torch.randn(1, 3, 32, 32, dtype=torch.float64)
    with vision_aware_heads(model, without=lambda x: ((0 * x,), {})) as heads, torch.no_grad():
        expected = model(images)
    with torch.no_grad():
        model.blocks[1].attn.proj.weight.mul_(heads.gates[1][0].double().repeat_interleave(64))
        torch.testing.assert_close(model(images), expected, rtol=0, atol=1e-5)


def test_a_model_that_ignores_the_image_has_no_divergence() -> None:
    model, rows = tiny_vl(), prompts()
    with torch.no_grad():
        for block in model.blocks:
            block.qkv.weight[-16:] = 0  # values of every token, so no image reaches the text
    assert float(vision_aware_divergence(model, rows).abs().max()) == 0
    with vision_aware_heads(model) as heads:
        model(rows)
    assert all((gate == 1).all() for gate in heads.gates.values())


def test_permuted_heads_have_permuted_divergences() -> None:
    model, rows, order = tiny_vl(), prompts(), torch.tensor([2, 0, 3, 1])
    before = vision_aware_divergence(model, rows)
    columns = (4 * order[:, None] + torch.arange(4)).flatten()
    with torch.no_grad():
        block = model.blocks[1]
        parts = block.qkv.weight.unflatten(0, (3, 16))
        block.qkv.weight.copy_(parts[:, columns].flatten(0, 1))
        block.proj.weight.copy_(block.proj.weight[:, columns])
    after = vision_aware_divergence(model, rows)
    torch.testing.assert_close(after[:, 1], before[:, 1, order], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(after[:, 2:], before[:, 2:], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "argument", "value"),
    [({"layers": [4]}, "layers", "4"), ({"alpha": float("nan")}, "alpha", "nan"), ({"without": 3}, "without", "3")],
)
def test_refusals(changes: dict[str, Any], argument: str, value: str) -> None:
    model = tiny_vl()
    with pytest.raises(UsageError) as error, vision_aware_heads(model, **changes):
        pass
    assert argument in str(error.value) and value in str(error.value)
    with pytest.raises(UsageError) as error, vision_aware_heads(nn.Linear(3, 3)):
        pass
    assert "model is Linear" in str(error.value)
    with pytest.raises(UsageError) as error:
        token_divergence(torch.rand(1, 2, 4), 5)
    assert "k is 5" in str(error.value)
    plain = model(prompts())
    with vision_aware_heads(model) as heads:
        model(prompts())
        with pytest.raises(UsageError) as error:
            model(prompts()[:1].repeat(3, 1, 1), cache=_read(model))
        assert "3" in str(error.value)
    assert len(heads.gates) == 3 and torch.equal(model(prompts()), plain)


def _read(model: Any) -> Any:
    """A cache that has read something, so that no prompt begins."""

    class Cache(type(model.new_cache())):  # type: ignore[misc]
        def get_seq_length(self) -> int:
            return 1

    return Cache()


def test_half_precision() -> None:
    model = tiny_vl().bfloat16()
    with vision_aware_heads(model), mereo.interventions.paint(model), torch.no_grad():
        scores = model(prompts().bfloat16())
    assert scores.dtype == torch.bfloat16 and scores.isfinite().all()
