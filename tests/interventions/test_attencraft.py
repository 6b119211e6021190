"""Masks of concepts, the alignment loss, the sampler and the context against the equations and worked numbers."""

import math
from collections import Counter
from typing import Any

import pytest
import torch
from scipy.spatial.distance import jensenshannon
from torch import Tensor

import mereo
from mereo.data.glyph_scenes.prompts import encode
from mereo.errors import UsageError
from mereo.interventions import attencraft
from mereo.interventions.concept_masks import (
    ConceptSampler,
    accepted,
    attention_alignment_loss,
    concept_maps,
    concept_masks,
    label_maps,
    structural_similarity,
)
from mereo.interventions.subject_masks import min_max
from mereo.models.sequence.tinydiff import TinyDiff

S = torch.tensor([[0.7, 0.3, 0, 0], [0.3, 0.7, 0, 0], [0, 0, 0.6, 0.4], [0, 0, 0.4, 0.6]], dtype=torch.float64)
A = torch.tensor([[0.8, 0.5, 0.1, 0.1], [0.1, 0.2, 0.7, 0.3], [0.1, 0.3, 0.2, 0.6]], dtype=torch.float64).T


def test_worked_labels_and_maps() -> None:
    maps = torch.tensor([[[0.9, 0.2], [0.5, 0]], [[0.1, 0.8], [0.45, 0]], [[0, 0.1], [0.1, 1]]])
    assert label_maps(maps).tolist() == [[0, 1], [3, 2]]
    assert label_maps(maps[[1, 0, 2]]).tolist() == [[1, 0], [3, 2]]
    found = concept_maps(S, A, [0, 1], 2)
    expected = torch.tensor([[1, 0.9773, 0, 0], [0, 0.0029, 1, 0.9976], [0, 0.0135, 0.9966, 1]], dtype=torch.float64)
    torch.testing.assert_close(found.flatten(1), expected, rtol=0, atol=5e-5)
    assert label_maps(found).tolist() == [[0, 0], [3, 3]]
    identity = concept_maps(torch.eye(4, dtype=torch.float64), A, [0], 2)
    torch.testing.assert_close(identity, min_max(A.T[[0, 2]].view(2, 2, 2) ** 2))
    assert concept_maps(S, A, [[0, 1]], 2)[0].isfinite().all()


@pytest.mark.parametrize(("dtype", "most"), [(torch.float64, 1e-10), (torch.float32, 1e-3)])
def test_products_with_vectors_give_the_power_of_the_matrix(dtype: torch.dtype, most: float) -> None:
    draws = torch.Generator().manual_seed(0)
    own = torch.randn(64, 64, generator=draws, dtype=torch.float64).softmax(1).to(dtype)
    cross = torch.randn(16, 5, generator=draws, dtype=torch.float64).softmax(1).to(dtype)
    sharp = min_max(cross[:, [1, 3, 0]].T.reshape(3, 4, 4) ** 2)
    sharp = torch.nn.functional.interpolate(sharp[None], size=(8, 8), mode="bicubic", align_corners=False)[0]
    power = min_max(torch.linalg.matrix_power(min_max(own), 4))
    expected = min_max((power @ sharp.flatten(1).T).T.view(3, 8, 8))
    assert (concept_maps(own, cross, [1, 3]) - expected).abs().max() < most


def test_masks_are_disjoint_or_the_start_fails() -> None:
    own = torch.block_diag(*[torch.full((3, 3), 1 / 3, dtype=torch.float64)] * 3)
    cross = torch.eye(3, dtype=torch.float64).repeat_interleave(3, 0)
    labels, assignment = concept_masks(own, cross, [1, 2])
    assert labels.flatten().tolist() == [2] * 3 + [0] * 3 + [1] * 3 and assignment == (0, 1, 2)
    swapped, _ = concept_masks(own, cross, [2, 1])
    assert swapped.flatten().tolist() == [2] * 3 + [1] * 3 + [0] * 3
    with pytest.raises(UsageError, match=r"threshold is 1\.1"):
        concept_masks(own, cross, [1, 2], threshold=1.1)
    for wrong in ([], [[]], [5]):
        with pytest.raises(UsageError, match="concept_tokens"):
            concept_masks(own, cross, wrong)


def test_the_loss_is_a_mean_of_divergences() -> None:
    first, second = torch.zeros(2, 1, 4, 4)
    first[0, 0, 0] = second[0, 3, 3] = 1
    assert abs(attention_alignment_loss(first, second).item() - 0.0232823) < 1e-7
    assert attention_alignment_loss(second, second) == 0
    maps, masks = torch.rand(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    expected = sum(
        jensenshannon(p.flatten().softmax(0), q.flatten().softmax(0)) ** 2 for p, q in zip(maps, masks, strict=True)
    )
    found = attention_alignment_loss(maps, masks).item()
    assert abs(found - expected / 3) < 1e-7 and abs(attention_alignment_loss(masks, maps).item() - found) < 1e-7
    assert attention_alignment_loss(1e4 * first, 1e4 * second).item() == pytest.approx(math.log(2))
    maps, masks = maps.requires_grad_(), masks.requires_grad_()
    attention_alignment_loss(maps, masks, temperature=0.1, weight=3.0).backward()
    assert maps.grad is not None and maps.grad.any() and masks.grad is None


def test_samplers() -> None:
    counts = Counter(each() for each in [ConceptSampler(2)] for _ in range(3000))
    assert {*counts} == {(0,), (1,), (0, 1)}
    assert all(abs(count - 1000) < 3 * (3000 * 2 / 9) ** 0.5 for count in counts.values())
    assert ConceptSampler(3).subsets == [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2)]
    assert ConceptSampler(2, "joint")() == (0, 1)
    weighted = ConceptSampler(2, "reweighted", scores=[0.3, 0.1])
    torch.testing.assert_close(weighted.probabilities, torch.tensor([1 / 6, 1 / 2, 1 / 3]))
    with pytest.raises(UsageError, match="scores is None"):
        ConceptSampler(2, "reweighted")
    with pytest.raises(UsageError, match="mode is 'often'"):
        ConceptSampler(2, "often")


def test_masks_may_be_replaced_by_similar_ones() -> None:
    labels = torch.zeros(9, 9, dtype=torch.int64)
    labels[:, 5:] = 1
    assert structural_similarity(labels, labels) == pytest.approx(1) and accepted(labels, labels, 2)
    assert not accepted(labels, 1 - labels, 2)
    with pytest.raises(UsageError, match=r"\(6, 9\)"):
        structural_similarity(labels[:6], labels[:6])


def test_maps_are_means_of_recorded_couplings_and_gradients_reach_keys_and_words(drawer: TinyDiff) -> None:
    prompts, noisy, time = encode(["a red square and a blue star"] * 2), torch.randn(2, 3, 32, 32), torch.rand(2)
    plain = drawer(prompts, noisy, time)
    with mereo.record(drawer) as trace:
        drawer(prompts, noisy, time)
    with attencraft(drawer, [[1, 2], [4, 5]]) as maps:
        drawer(prompts, noisy, time)
        watched = drawer(prompts, noisy, time)
    torch.testing.assert_close(watched, plain)
    for kind, found in (("self", maps.self_attention()), ("cross", maps.cross_attention())):
        each: list[Tensor] = [trace[f"blocks.{block}.{kind}_attention.coupling"].mean(1) for block in range(2)]
        torch.testing.assert_close(found, torch.stack(each).mean(0))
    masks = (torch.rand(3, 8, 8) > 0.5).float().requires_grad_()
    drawer.zero_grad()
    maps.loss(masks).backward()
    assert masks.grad is None and drawer.words.weight.grad is not None and drawer.words.weight.grad.any()
    cross: Any = drawer.blocks[0].cross_attention
    assert cross.key.weight.grad.any() and not any("forward" in vars(module) for module in drawer.modules())
    drawer.zero_grad()


def test_the_first_word_gets_no_gradient_if_it_is_detached(drawer: TinyDiff) -> None:
    words, mask = torch.randn(1, 16, 16, requires_grad=True), torch.ones(1, 16, dtype=torch.bool)
    with attencraft(drawer, [1], detach_first=True):
        drawer.velocity(torch.randn(1, 3, 32, 32), torch.rand(1), words, mask).square().sum().backward()
    assert words.grad is not None and not words.grad[:, 0].any() and words.grad[:, 1:].any()
    drawer.zero_grad()


def test_what_cannot_be_watched(drawer: TinyDiff) -> None:
    for given, name in (
        ({"concept_tokens": []}, "concept_tokens"),
        ({"concept_tokens": [1], "layers": ["blocks.7.cross_attention"]}, "blocks.7.cross_attention"),
        ({"concept_tokens": [1], "layers": ["blocks.0.self_attention"]}, "without cross-attention"),
    ):
        with pytest.raises(UsageError, match=name), attencraft(drawer, **given):
            pass
    with attencraft(drawer, [1]) as maps, pytest.raises(UsageError, match="run the model"):
        maps.masks()
