"""Isolation and reposition against dense loops; masks from attention; the context manager on a small TinyDiff."""

from typing import Any

import pytest
import torch
from torch import Tensor

import mereo
from mereo.errors import UsageError
from mereo.interventions import isolate_and_reposition
from mereo.interventions.reference_attention import (
    box_of,
    drop_elements,
    isolation_bias,
    make_plan,
    multi_reference_attention,
    reposition,
)
from mereo.interventions.subject_masks import masks_from_attention, on_grid, otsu_threshold, without_overlap
from mereo.models.sequence.tinydiff import TinyDiff, axial_rotary

SIDE, CHANNELS = 8, 8


def box(top: int, left: int, rows: int, columns: int) -> Tensor:
    mask = torch.zeros(SIDE, SIDE, dtype=torch.bool)
    mask[top : top + rows, left : left + columns] = True
    return mask


TARGETS = torch.stack((box(0, 1, 4, 3), box(5, 4, 2, 4)))
REFERENCES = torch.stack((box(3, 3, 3, 4), box(1, 2, 5, 1)))  # one of a single column
REFERENCES[0, 3, 3] = False  # no whole box


def turn(x: Tensor, places: Tensor) -> Tensor:
    grid = torch.stack((places // SIDE, places % SIDE), -1)
    return axial_rotary(x, grid if places.dim() == 1 else grid.unsqueeze(1))


def tensors(seed: int = 0) -> dict[str, Tensor]:
    draws = torch.Generator().manual_seed(seed)
    shapes = {"q_t": (64, CHANNELS), "h_ref": (2, 64, CHANNELS), "h_t": (64, CHANNELS), "w_k": (8, 8), "w_v": (8, 8)}
    return {name: torch.randn(*shape, generator=draws, dtype=torch.float64) for name, shape in shapes.items()}


def by_loops(x: dict[str, Tensor], isolate: bool, moved: bool, ref_bias: float, rotary: bool) -> Tensor:
    """The equations with whole grids: references are moved as maps, and every pair is masked by itself."""
    keys, values, allowed = [x["h_t"] @ x["w_k"].T], [x["h_t"] @ x["w_v"].T], [torch.ones(64, 64, dtype=torch.bool)]
    flat = TARGETS.flatten(1)
    for u in range(64):
        for v in range(64):
            if isolate and (flat[0, u] & flat[1, v] | flat[1, u] & flat[0, v]):
                allowed[0][u, v] = False
    for m in range(2):
        where = REFERENCES[m][None].double()
        tokens = x["h_ref"][m].T.view(CHANNELS, SIDE, SIDE) * where
        if moved:
            boxes = box_of(REFERENCES[m]), box_of(TARGETS[m])
            tokens, where = reposition(tokens, *boxes), reposition(where, *boxes)
        tokens = tokens.flatten(1).T
        keys.append(tokens @ x["w_k"].T)
        values.append(tokens @ x["w_v"].T)
        allowed.append(flat[m][:, None] & (where.flatten() > 0)[None])
    places, q = torch.arange(64), x["q_t"]
    if rotary:
        q, *keys = (turn(each[None, None], places)[0, 0] for each in (q, *keys))
    scores = [(q @ key.T) / CHANNELS**0.5 for key in keys]
    scores = [scores[0], *(each + ref_bias for each in scores[1:])]
    masked = torch.cat(scores, 1).masked_fill(~torch.cat(allowed, 1), -torch.inf)
    return masked.softmax(1) @ torch.cat(values)


@pytest.mark.parametrize(
    ("isolate", "moved", "bias", "rotary"),
    [(True, True, 0.0, True), (False, True, -0.7, True), (True, False, 0.3, False)],
)
def test_gathered_references_give_what_whole_grids_give(isolate: bool, moved: bool, bias: float, rotary: bool) -> None:
    x = tensors()
    found = multi_reference_attention(
        **x, target_masks=TARGETS, ref_masks=REFERENCES, isolate=isolate, reposition=moved, ref_bias=bias,
        rel_pos=turn if rotary else None,
    )  # fmt: skip
    torch.testing.assert_close(found, by_loops(x, isolate, moved, bias, rotary))


def test_worked_boxes() -> None:
    moved = reposition(torch.arange(64.0).view(1, 8, 8), (0, 0, 2, 3), (1, 1, 4, 3))[0]
    rows = [[0.0, 1, 2], [0, 1, 2], [8, 9, 10], [8, 9, 10]]
    assert moved[1:5, 1:4].tolist() == rows and moved.sum() == sum(map(sum, rows))
    assert reposition(box(0, 0, 4, 3)[None].float(), (0, 0, 4, 3), (2, 2, 5, 3)).sum() == 15
    with pytest.raises(UsageError, match="dst_box is"):
        reposition(torch.zeros(1, 8, 8), (0, 0, 2, 2), (7, 7, 2, 2))


def test_what_cannot_matter_does_not() -> None:
    x = tensors()
    masks: dict[str, Any] = {"target_masks": TARGETS, "ref_masks": REFERENCES, "rel_pos": turn}
    found = multi_reference_attention(**x, **masks)
    outside = torch.where(REFERENCES.flatten(1).unsqueeze(-1), x["h_ref"], 1e3)
    assert torch.equal(multi_reference_attention(**{**x, "h_ref": outside}, **masks), found)
    order = {"target_masks": TARGETS.flip(0), "ref_masks": REFERENCES.flip(0), "rel_pos": turn}
    torch.testing.assert_close(multi_reference_attention(**{**x, "h_ref": x["h_ref"].flip(0)}, **order), found)
    # Without positions only resampling acts: a move to a box of the same size is nothing.
    same = {"target_masks": TARGETS, "ref_masks": torch.stack((box(4, 0, 4, 3), box(0, 0, 2, 4)))}
    moved, unmoved = (multi_reference_attention(**x, **same, reposition=each) for each in (True, False))
    torch.testing.assert_close(moved, unmoved)
    # Without references that count, isolation alone; without subjects, plain attention.
    alone = multi_reference_attention(**x, **masks, ref_bias=-torch.inf)
    k, v = (turn((x["h_t"] @ x[name].T)[None, None], torch.arange(64))[0, 0] if name == "w_k" else x["h_t"] @ x[name].T
            for name in ("w_k", "w_v"))  # fmt: skip
    scores = turn(x["q_t"][None, None], torch.arange(64))[0, 0] @ k.T / CHANNELS**0.5
    torch.testing.assert_close(alone, (scores + isolation_bias(TARGETS)).softmax(1) @ v)
    none = torch.zeros(0, 8, 8, dtype=torch.bool)
    empty = multi_reference_attention(**{**x, "h_ref": x["h_ref"][:0]}, target_masks=none, ref_masks=none, rel_pos=turn)
    torch.testing.assert_close(empty, scores.softmax(1) @ v)
    assert not isolation_bias(TARGETS[:1]).any(), "one subject is isolated from nobody"


def test_a_subject_without_cells_reads_no_reference_and_dropped_masks_are_never_empty() -> None:
    plan = make_plan(torch.stack((TARGETS, TARGETS & False)), torch.stack((REFERENCES, REFERENCES)))
    assert plan.there.sum(1).tolist() == [4 * 3 - 2 + 2 * 4, 0]
    dropped = drop_elements(plan, 0.999, torch.Generator().manual_seed(0))
    assert [(dropped.labels[0] == m + 1).sum() for m in range(2)] == [1, 1] and dropped.there.sum() == 2


def test_masks_from_attention() -> None:
    own = torch.tensor([[0.6, 0.4, 0, 0], [0.4, 0.6, 0, 0], [0, 0, 0.5, 0.5], [0, 0, 0.5, 0.5]], dtype=torch.float64)
    cross = torch.tensor([[0.1, 0.9, 0], [0.3, 0.5, 0.2], [0.8, 0.1, 0.1], [0.8, 0.0, 0.2]], dtype=torch.float64)
    total = sum(torch.linalg.matrix_power(own, n) @ cross for n in range(1, 5)) / 4
    column = total[:, 1:].amax(1)  # type: ignore[index]
    expected = ((column - column.min()) / (column.max() - column.min())).view(2, 2)
    found = masks_from_attention(own, cross, [0, [1, 2]])
    torch.testing.assert_close(found[1], expected)
    assert on_grid(found, (2, 2)).flatten(1).tolist() == [[False, False, True, True], [True, True, False, False]]
    values = torch.tensor([0.0, 0.1, 0.05, 0.9, 1.0])
    assert 0.1 < otsu_threshold(values) < 0.9 and not on_grid(torch.ones(1, 4, 4), (2, 2)).any()
    whole = torch.ones(2, 2, 2, dtype=torch.bool)
    assert without_overlap(whole, found.float()).sum(0).eq(1).all()
    for wrong in ([], [[]], [7]):
        with pytest.raises(UsageError, match="token_ids"):
            masks_from_attention(own, cross, wrong)


PROMPTS = ("a red square", "a blue star", "a red square and a blue star")


def test_targets_change_references_do_not_and_everything_is_undone(drawer: TinyDiff) -> None:
    plain = drawer.draw(PROMPTS)
    noise = torch.randn(6, 3, 32, 32)
    both = torch.stack((TARGETS, TARGETS.flip(-1))), torch.stack((REFERENCES, REFERENCES.flip(-2)))
    with isolate_and_reposition(drawer, *both, mutual_text=0.9):
        pictures = drawer.draw(PROMPTS * 2, noise=noise)
    assert torch.equal(pictures[[0, 1, 3, 4]], drawer.draw(PROMPTS * 2, noise=noise)[[0, 1, 3, 4]])
    for number in range(2):
        part = slice(3 * number, 3 * number + 3)
        with isolate_and_reposition(drawer, both[0][number], both[1][number], mutual_text=0.9):
            torch.testing.assert_close(drawer.draw(PROMPTS, noise=noise[part]), pictures[part], rtol=0, atol=1e-5)
    with pytest.raises(InterruptedError), isolate_and_reposition(drawer, TARGETS, REFERENCES):
        raise InterruptedError
    assert torch.equal(drawer.draw(PROMPTS), plain)
    assert not any("forward" in vars(module) for module in drawer.modules())


def test_no_coupling_joins_two_subjects_and_rows_sum_to_one(drawer: TinyDiff) -> None:
    features = drawer.forward_features(drawer.example_inputs(1))
    noisy, time = torch.randn(1, 3, 32, 32), torch.full((1,), 0.5)
    name = "blocks.0.self_attention.coupling"
    with mereo.record(drawer) as before:
        drawer.velocity(noisy, time, *features)
    with isolate_and_reposition(drawer, TARGETS), mereo.record(drawer) as trace:
        drawer.velocity(noisy, time, *features)
    couplings, (first, second) = trace[name][0], TARGETS.flatten(1)
    assert not couplings[:, first][:, :, second].any() and not couplings[:, second][:, :, first].any()
    torch.testing.assert_close(couplings.sum(-1), torch.ones(2, 64))
    background = ~(first | second)
    torch.testing.assert_close(couplings[:, background], before[name][0][:, background])


def test_half_precision_and_dropped_elements(drawer: TinyDiff) -> None:
    half: Any = mereo.create_model("tinydiff", **drawer.config["args"]).eval()
    half.load_state_dict(drawer.state_dict())
    half.to(torch.bfloat16)
    with isolate_and_reposition(half, TARGETS, REFERENCES, mask_dropout=0.5):
        drawn = half.draw(PROMPTS)
    assert drawn.dtype == torch.bfloat16 and drawn.isfinite().all()
    assert (drawn[:2].float() - drawer.draw(PROMPTS)[:2]).abs().max() < 0.2


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"layers": ["blocks.9.self_attention"]}, "blocks.9.self_attention"),
        ({"reference_layers": []}, "reference_layers"),
        ({"ref_masks": REFERENCES[:1]}, "ref_masks are"),
        ({"target_masks": torch.zeros(8, 8)}, "target_masks are"),
        ({"mask_dropout": 1.0}, "mask_dropout is 1.0"),
        ({"mutual_text": -1}, "mutual_text is -1"),
    ],
)
def test_wrong_arguments(drawer: TinyDiff, changes: dict[str, Any], name: str) -> None:
    given = {"target_masks": TARGETS, "ref_masks": REFERENCES, **changes}
    with pytest.raises(UsageError, match=name), isolate_and_reposition(drawer, **given):
        pass


def test_batches_and_grids_that_do_not_fit_the_masks(drawer: TinyDiff) -> None:
    with isolate_and_reposition(drawer, TARGETS, REFERENCES), pytest.raises(UsageError, match="2 samples"):
        drawer.draw(PROMPTS[:1])
    with isolate_and_reposition(drawer, TARGETS[:, :6]), pytest.raises(UsageError, match="6 x 8"):
        drawer.draw(PROMPTS[:1])
    with pytest.raises(UsageError, match="overlap"):
        isolation_bias(torch.ones(2, 2, 2, dtype=torch.bool))
    with pytest.raises(UsageError, match="Linear"), isolate_and_reposition(torch.nn.Linear(2, 2), TARGETS):
        pass
