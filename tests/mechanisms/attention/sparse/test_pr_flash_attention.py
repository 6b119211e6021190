"""Attention to blocks at random distances: loops, its limits, and what its draws are on average."""

import itertools
import math

import pytest
import torch
from torch import Tensor

import mereo
from mereo.core import Causal, Coupling
from mereo.core.kernels.attention import attend
from mereo.errors import UsageError
from mereo.mechanisms.attention.sparse import PrFlashAttention, distance_law, pr_flash_attention


def drawn(tokens: int, batch: int = 2, heads: int = 2, dim: int = 3) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(tokens)
    return tuple(torch.randn(3, batch, heads, tokens, dim, dtype=torch.float64, generator=generator))


def causal() -> Coupling:
    return Coupling("senders", topology=Causal())


def weights_by_loops(q: Tensor, k: Tensor, kept: Tensor, block: int, law: list[float]) -> Tensor:
    """w_ij of one head."""
    weights = torch.zeros(len(q), len(k), dtype=q.dtype)
    for i in range(len(q)):
        for j in range(i + 1):
            distance = i // block - j // block
            if kept[distance]:
                weights[i, j] = math.exp(torch.dot(q[i], k[j]) / math.sqrt(q.shape[1])) / law[distance]
    return weights


@pytest.mark.parametrize("tokens", [1, 6, 11])
@pytest.mark.parametrize("rescale", [False, True])
def test_loops_give_the_same(tokens: int, rescale: bool) -> None:
    q, k, v = drawn(tokens)
    law = distance_law(-(-tokens // 3), "power", 0.7)
    kept = torch.arange(len(law)) % 2 == 0
    probabilities = law if rescale else None
    found = pr_flash_attention(q, k, v, kept, 3, probabilities=probabilities)
    for b, h in itertools.product(range(2), range(2)):
        weights = weights_by_loops(q[b, h], k[b, h], kept, 3, law.tolist() if rescale else [1.0] * len(law))
        torch.testing.assert_close(found[b, h], weights @ v[b, h] / weights.sum(1, keepdim=True))
    # The couplings of all pairs, which recording sees.
    coupling = causal()
    with mereo.record(coupling) as trace:
        watched = pr_flash_attention(q, k, v, kept, 3, probabilities=probabilities, coupling=coupling)
    torch.testing.assert_close(watched, found)
    assert [trace[name].shape for name in trace] == [(2, 2, tokens, tokens)]


def test_all_distances_are_causal_attention_and_none_is_the_blocks_alone() -> None:
    q, k, v = drawn(10)
    whole = attend(q, k, v, causal())
    torch.testing.assert_close(pr_flash_attention(q, k, v, torch.ones(4, dtype=torch.bool), 3), whole)
    alone = pr_flash_attention(q, k, v, torch.arange(4) == 0, 3)
    for start in range(0, 10, 3):
        here = [x[:, :, start : start + 3] for x in (q, k, v)]
        torch.testing.assert_close(alone[:, :, start : start + 3], attend(here[0], here[1], here[2], causal()))
    # The first row of blocks has no earlier block.
    torch.testing.assert_close(alone[:, :, :3], whole[:, :, :3])


def test_laws() -> None:
    torch.testing.assert_close(distance_law(4), torch.tensor([1, 1 / 2, 1 / 3, 1 / 4], dtype=torch.float64))
    assert distance_law(3, "exponential", 2.0).tolist() == pytest.approx([1, math.exp(-2), math.exp(-4)])
    assert distance_law(4, "window", 1).tolist() == [1, 1, 0, 0]
    for blocks, share in ((8, 0.457), (32, 0.193), (128, 0.069)):
        pairs = blocks - torch.arange(blocks, dtype=torch.float64)
        assert ((pairs * distance_law(blocks)).sum() / pairs.sum()).item() == pytest.approx(share, abs=5e-4)


def test_rescaled_numerators_and_denominators_are_right_on_average() -> None:
    q, k, v = (x[0, 0] for x in drawn(8))
    law, one = distance_law(4), [1.0] * 4
    numerator, denominator, plain, total = torch.zeros(8, 3).double(), torch.zeros(8, 1).double(), 0.0, 0.0
    for others in itertools.product([False, True], repeat=3):
        kept = torch.tensor([True, *others])
        chance = math.prod(p if there else 1 - p for p, there in zip(law.tolist(), kept.tolist(), strict=True))
        out = pr_flash_attention(q[None, None], k[None, None], v[None, None], kept, 2, probabilities=law)[0, 0]
        weights = weights_by_loops(q, k, kept, 2, law.tolist()).sum(1, keepdim=True)
        numerator, denominator = numerator + chance * out * weights, denominator + chance * weights
        plain = plain + chance * weights_by_loops(q, k, kept, 2, one).sum(1, keepdim=True)
        total += chance
    full = weights_by_loops(q, k, torch.ones(4, dtype=torch.bool), 2, one)
    assert total == pytest.approx(1)
    torch.testing.assert_close(denominator, full.sum(1, keepdim=True))
    torch.testing.assert_close(numerator, full @ v)
    # Without the rescaling far tokens count too little.
    assert (plain < 0.99 * full.sum(1, keepdim=True))[2:].all()


def copy_of(layer: PrFlashAttention, **options: object) -> PrFlashAttention:
    other = PrFlashAttention(12, 3, block=2, **options).double().eval()  # type: ignore[arg-type]
    other.load_state_dict(layer.state_dict())
    return other


def test_training_draws_distances_and_evaluation_sees_all() -> None:
    torch.manual_seed(0)
    layer, tokens = PrFlashAttention(12, 3, block=2).double(), torch.randn(2, 16, 12, dtype=torch.float64)
    outputs = [layer(tokens) for _ in range(6)]
    assert any((outputs[0] - other).abs().max() > 1e-6 for other in outputs[1:])
    torch.testing.assert_close(outputs[0][:, :2], outputs[1][:, :2])
    kept = torch.stack([layer.draw(16)[0] for _ in range(4000)]).double().mean(0)
    assert kept[0] == 1 and (kept - distance_law(8)).abs().max() < 0.03
    whole = layer.eval()(tokens)
    torch.testing.assert_close(copy_of(layer, distances=range(8))(tokens), whole)
    near = copy_of(layer, distances=(0,))
    torch.testing.assert_close(near(tokens), near(tokens.view(16, 2, 12)).view(2, 16, 12))
    # With strength 0 every distance is kept.
    torch.testing.assert_close(copy_of(layer, strength=0.0, rescale=True).train()(tokens), whole)


@pytest.mark.parametrize("training", [True, False])
def test_masks_and_gradients(training: bool) -> None:
    torch.manual_seed(0)
    layer = PrFlashAttention(6, 2, block=2, law="window", strength=1, distances=(0, 1), rescale=True).double()
    layer.train(training)
    tokens = torch.randn(2, 7, 6, dtype=torch.float64, requires_grad=True)
    mask = torch.ones(2, 7, dtype=torch.bool)
    mask[0, 2] = mask[1] = False
    found = layer(tokens, mask)
    found.square().sum().backward()
    assert tokens.grad is not None and tokens.grad.isfinite().all() and not found[1].any()
    changed = tokens.detach().clone()
    changed[0, 2] += 1
    others = torch.arange(7) != 2
    torch.testing.assert_close(layer(changed, mask)[0, others], found[0, others])


def test_wrong_arguments() -> None:
    q, k, v = drawn(6)
    for kept in (torch.tensor([True]), torch.tensor([False, True])):
        with pytest.raises(UsageError, match="kept"):
            pr_flash_attention(q, k, v, kept, 3)
    both, window = torch.tensor([True, True]), distance_law(2, "window", 0)
    with pytest.raises(UsageError, match="probabilities"):
        pr_flash_attention(q, k, v, both, 3, probabilities=window)
    with pytest.raises(UsageError, match="law"):
        PrFlashAttention(12, 3, law="linear")
    with pytest.raises(UsageError, match="strength"):
        PrFlashAttention(12, 3, strength=-1)
    with pytest.raises(UsageError, match="distances"):
        PrFlashAttention(12, 3, distances=(1, 2))
