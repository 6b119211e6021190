"""PAINT: worked scores and outliers, the public selection by loops, rows that stay, head gains, contrast, refusals."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import mereo
from mereo.errors import UsageError
from mereo.interventions import contrast, head_sensitivity, paint, select_tokens
from mereo.interventions.paint import boost, outliers
from mereo.tasks.captions import generate
from tiny_decoders import cached, prompts, recomputed, tiny_vl


@pytest.mark.parametrize(("factor", "expected"), [(0.7, [1.7, -0.3, 0.85, 3.4]), (0.3, [1.3, -0.7, 0.65, 2.6])])
def test_worked_scores(factor: float, expected: list[float]) -> None:
    scores = torch.tensor([1.0, -1.0, 0.5, 2.0], dtype=torch.float64)
    torch.testing.assert_close(boost(scores, torch.tensor(factor)), torch.tensor(expected, dtype=torch.float64))
    masked = torch.tensor([1.0, -torch.inf])
    assert boost(masked, torch.tensor(factor)).tolist()[1] == -torch.inf
    share = boost(scores.abs(), torch.tensor([factor, factor, 0, 0])).softmax(-1)[:2].sum()
    assert share > scores.abs().softmax(-1)[:2].sum()


def test_worked_outliers() -> None:
    found = outliers(torch.tensor([[1.0] * 7 + [10], [1, 2, 3, 4, 5, 6, 7, 20]]))
    assert found.float().mean(1).tolist() == [0.125, 0.125] and found[:, 7].all()


def test_selection_by_loops() -> None:
    generator = torch.Generator().manual_seed(0)
    maps = [(3 * torch.randn(3, 2, 17, 17, generator=generator)).softmax(-1) for _ in range(3)]
    local, summary = select_tokens(maps, 16, 0.25, 0.2)
    for sample in range(3):
        first = [sum(maps[0][sample, head, 0, 1 + j].item() for head in range(2)) for j in range(16)]
        received = [
            sum(maps[0][sample, head, i, 1 + j].item() for head in range(2) for i in range(17)) for j in range(16)
        ]
        late = np.array([sum(maps[1][sample, head, 0, 1 + j].item() for head in range(2)) for j in range(16)])
        low, high = np.percentile(late, [25, 75])
        whole = {j for j in range(16) if late[j] > high + 1.5 * (high - low)}
        near = {*sorted(range(16), key=lambda j: -first[j])[:4], *sorted(range(16), key=lambda j: -received[j])[:3]}
        assert set(summary[sample].nonzero().flatten().tolist()) == whole
        assert set(local[sample].nonzero().flatten().tolist()) == near - whole
    assert not (local & summary).any() and summary.any()
    assert int(select_tokens(maps, 16)[0].sum(1).max()) <= 4


def test_only_rows_that_predict_change_with_a_cache_and_without() -> None:
    model, rows, tokens = tiny_vl(encoder_depth=3), prompts(), torch.tensor([[3, 9], [5, 1]])
    plain = cached(model, rows, tokens)
    with paint(model, alpha=0.9, beta=0.5, local_ratio=0.5):
        changed = cached(model, rows, tokens)
        torch.testing.assert_close(changed, recomputed(model, rows, tokens), rtol=0, atol=1e-5)
        with mereo.record(model) as trace, torch.no_grad():
            model(rows)
    assert (changed - plain).abs().max() > 1e-3
    with mereo.record(model) as before, torch.no_grad():
        model(rows)
    late = "blocks.2.coupling"
    assert torch.equal(trace[late][:, :, :-1], before[late][:, :, :-1])
    assert not torch.equal(trace[late][:, :, -1], before[late][:, :, -1])
    for place in range(2):
        one = slice(place, place + 1)
        with paint(model, alpha=0.9, beta=0.5, local_ratio=0.5):
            torch.testing.assert_close(cached(model, rows[one], tokens[one]), changed[one], rtol=0, atol=1e-5)
    nobody = torch.zeros(16, dtype=torch.bool)
    with mereo.record(model), torch.no_grad():
        watched = model(rows)
    for same in ({"alpha": 0.0, "beta": 0.0}, {"head_gain": torch.zeros(4, 4)}):
        with paint(model, **same):
            assert torch.equal(cached(model, rows, tokens), plain)
    with paint(model, local=nobody, summary=nobody), mereo.record(model), torch.no_grad():
        assert torch.equal(model(rows), watched)


def test_all_local_tokens_and_gains_of_one_are_the_parent_method() -> None:
    model, rows = tiny_vl(), prompts()
    everyone = torch.ones(16, dtype=torch.bool)

    def by_hand(scores: Tensor) -> Tensor:
        raised = scores.clone()
        raised[:, :, -1, 1:17] += 0.7 * raised[:, :, -1, 1:17].abs()
        return raised

    names = ("blocks.2.coupling", "blocks.3.coupling")
    with mereo.intervene(model, scores=dict.fromkeys(names, by_hand)), torch.no_grad():
        expected = model(rows)
    for given in ({}, {"local": everyone}, {"local": everyone, "head_gain": torch.ones(4, 4)}):
        with paint(model, **given), torch.no_grad():
            torch.testing.assert_close(model(rows), expected, rtol=0, atol=1e-5)
    gains = head_sensitivity(model, rows)
    assert gains.shape == (4, 4) and gains.amax(1).tolist() == [1] * 4 and (gains >= 0).all()


def test_contrastive_scores() -> None:
    seen, unseen = torch.randn(4, 6), torch.randn(4, 6)
    p, q = seen.log_softmax(-1), unseen.log_softmax(-1)
    found = contrast(seen, unseen, 2.0)
    kept = found.isfinite()
    torch.testing.assert_close(found[kept], (2 * p - q)[kept])
    assert torch.equal(kept, p >= p.amax(1, keepdim=True) - np.log(10))
    torch.testing.assert_close(contrast(seen, unseen, 1.0)[kept], p[kept])
    model, rows = tiny_vl(), prompts()
    with torch.no_grad():
        tokens, _ = generate(model, rows, 1, gamma=2.0)
        alone = model(rows, image=False)[:, -1]
        assert torch.equal(tokens[:, 0], contrast(model(rows)[:, -1], alone, 2.0).argmax(-1))


@pytest.mark.parametrize(
    ("changes", "argument", "value"),
    [
        ({"local": torch.ones(9, dtype=torch.bool)}, "local", "9"),
        ({"summary": torch.ones(16)}, "summary", "float32"),
        ({"local_ratio": 2.0, "local": None}, "local_ratio", "2.0"),
        ({"head_gain": torch.ones(4, 3)}, "head_gain", "4 heads"),
        ({"head_gain": torch.ones(2, 4)}, "head_gain", "4 layers"),
        ({"layers": [-9]}, "layers", "-9"),
        ({"local": torch.ones(3, 16, dtype=torch.bool)}, "local", "3"),
    ],
)
def test_refusals(changes: dict[str, Any], argument: str, value: str) -> None:
    model, rows = tiny_vl(encoder_depth=2 if "local_ratio" in changes else 0), prompts()
    plain = model(rows)
    with pytest.raises(UsageError) as error, paint(model, **changes):
        model(rows)
    assert argument in str(error.value) and value in str(error.value)
    assert torch.equal(model(rows), plain)
