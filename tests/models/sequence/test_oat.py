"""OAT: counts, tokens by hand, masks, order, causality, and cached paths beside those that are scored at once."""

from typing import Any

import pytest
import torch
from torch import Tensor

import mereo
from mereo.errors import UsageError
from mereo.models.registry import get_model_entry, outline
from mereo.models.sequence.oat import CropEncoder


def small(**changes: Any) -> Any:
    """A tiny network for shelves of up to 3 x 3, in float64."""
    torch.manual_seed(0)
    arguments = {**(get_model_entry("oat").tiny or {}), "shelf": (2, 3), "max_len": 6, "depth": 2, **changes}
    return mereo.create_model("oat", **arguments).double().eval()


PATH = torch.tensor([[4, 4, 0, 2], [1, 3, 5, 5]])


def test_parameters_of_the_published_parts() -> None:
    model = outline("oat")
    counts = {name: sum(p.numel() for p in module.parameters()) for name, module in model.named_children()}
    assert (counts["encoder"], counts["decoder"], counts["appearance"]) == (6_311_936, 10_518_528, 374_752)
    assert counts["head"] == 1_050_624 + 3
    features = [CropEncoder((150, 93), 4, levels=levels).fc.in_features for levels in (0, 2, 3, 4)]
    assert features == [1440, 160, 672, 2720]


def test_a_pyramid_has_the_maxima_of_its_cells() -> None:
    encoder, maps = CropEncoder((12, 10), 4, pool=2, levels=2), torch.rand(2, 3, 5, 4)
    cells = encoder._cells(maps, 2)  # five rows in cells of three, one row of zeros behind them
    expected = [maps[:, :, r, c].amax((2, 3)) for r in (slice(3), slice(3, 5)) for c in (slice(2), slice(2, 4))]
    torch.testing.assert_close(cells, torch.stack(expected, -1).flatten(1))


def test_tokens_are_appearances_and_the_codes_of_row_column_and_flag() -> None:
    model = small()
    scene = model.example_inputs(2)
    looks = model.appearance(scene[:, :, :-2].unflatten(-1, (3, 12, 10)).flatten(0, 1)).unflatten(0, (2, 7))
    shelf = model.forward_features(scene)
    for n in range(2):
        for i in range(6):
            code = torch.cat((model.table[i // 3], model.table[i % 3], model.table[int(i == n)]))
            torch.testing.assert_close(shelf.tokens[n, i], torch.cat((looks[n, i], code[:9])))
    blank = model.appearance(torch.ones(1, 3, 12, 10).double())[0]
    start = torch.cat((blank, torch.cat((model.table[1], model.table[1], model.table[0]))[:9]))
    torch.testing.assert_close(shelf.tokens[:, 6], start.expand(2, -1))


def test_the_order_of_objects_and_the_fixations_to_come_change_nothing() -> None:
    model = small()
    scene, order = model.example_inputs(2), torch.tensor([3, 0, 5, 1, 4, 2])
    shares = model(scene, PATH)
    moved = model(scene[:, [*order.tolist(), 6]], order.argsort()[PATH])
    torch.testing.assert_close(moved, shares[..., [*order.tolist(), 6]])
    changed = PATH.clone()
    changed[:, 2] = 1
    torch.testing.assert_close(model(scene, changed)[:, :3], shares[:, :3])
    assert (model(scene, changed)[:, 3] - shares[:, 3]).abs().max() > 1e-3


def test_objects_that_are_not_there_change_nothing_and_are_never_fixated() -> None:
    model = small()
    scene = model.example_inputs(2)
    none = torch.rand(2, 3, scene.shape[2]).double()
    none[..., -2:] = -1
    wider = torch.cat((scene[:, :6], none, scene[:, 6:]), 1)
    shares, more = model(scene, PATH), model(wider, PATH)
    torch.testing.assert_close(more[..., [*range(6), 9]], shares)
    assert (more[..., 6:9].exp() < 1e-300).all()


@pytest.mark.parametrize("locate", [True, False])
def test_cached_paths_have_the_shares_of_the_same_path_at_once(locate: bool) -> None:
    model = small(locate=locate)
    scene, draws = model.example_inputs(2), torch.rand(2, 5, 6).double()
    shelf = model.forward_features(scene)
    found = model.search(shelf, 5, sample=True, draws=draws)
    assert (found.fixations[..., 0] >= 0).all() and {-1} < set(found.fixations.flatten().tolist())
    steps = found.log_shares.shape[1]
    at_once = model.score(shelf, found.fixations[:, 0])[:, :steps]
    for n in range(2):
        read = int((found.fixations[n, 0] >= 0).sum()) + 1
        torch.testing.assert_close(found.log_shares[n, :read], at_once[n, :read])
        alone = model.search(model.forward_features(scene[n : n + 1]), 5, sample=True, draws=draws[n : n + 1])
        assert torch.equal(alone.fixations, found.fixations[n : n + 1])
    assert all(len(paths) == 2 and paths[0] for paths in model.generate(scene, 4, sample=True, n=2))


def test_without_the_place_of_the_target_its_row_and_column_are_not_read() -> None:
    model, told = small(locate=False), small()
    first: Any = model.encoder[0]
    assert torch.equal(first.attention.key.weight, first.attention.query.weight)
    with torch.no_grad():
        looks, common = (
            each.appearance(torch.rand(64, 3, 1, 1, dtype=torch.float64).expand(-1, -1, *each.crop))
            for each in (model, told)
        )
    assert looks.std(0).mean() > 2 * looks.mean(0).abs().mean() and common.std(0).mean() < common.mean(0).abs().mean()
    model.load_state_dict(told.state_dict())
    scene = told.example_inputs(2)
    elsewhere = scene.clone()
    elsewhere[:, -1, -2:] = torch.tensor([1.0, 2.0])
    torch.testing.assert_close(model(scene, PATH), model(elsewhere, PATH))
    assert (told(scene, PATH) - told(elsewhere, PATH)).abs().max() > 1e-3
    elsewhere[:, -1, -2:] = -1
    torch.testing.assert_close(told(elsewhere, PATH), model(scene, PATH))


def _scene(change: Any) -> Tensor:
    scene: Tensor = small().example_inputs(2)
    change(scene)
    return scene


def test_invalid_arguments_are_named() -> None:
    model = small()
    scene = model.example_inputs(2)
    shelf = model.forward_features(scene)
    state = model.step(shelf, model.begin(shelf))[2]
    other = small(dim=24)
    wrong: list[tuple[Any, tuple[str, ...]]] = [
        (lambda: model(scene[:, :1]), ("regions", "(2, 1, 362)")),
        (lambda: model(scene[..., :-3]), ("regions", "(2, 7, 359)", "362")),
        (lambda: model(_scene(lambda s: s[1, :6, -2].fill_(-1))), ("regions", "scene 1", "no object")),
        (lambda: model(_scene(lambda s: s[0, 0, -1].fill_(3))), ("regions", "column 3", "shelf")),
        (lambda: model(scene, torch.full((2, 3), 6)), ("fixations", "hold 6", "0 to 5")),
        (lambda: model(scene, PATH[:1]), ("fixations", "(1, 4)", "(2, steps)")),
        (lambda: other.step(other.forward_features(scene), state, PATH[:, :1]), ("state", "18 numbers", "24")),
        (lambda: model.step(shelf, state, PATH[:, :2]), ("state", "2 paths", "4")),
        (lambda: model.search(shelf, 2, sample=True, draws=torch.rand(2, 1, 6)), ("draws", "(2, 1, 6)", "(2, 2, 6)")),
        (lambda: small(dim=18, shelf=(4, 2)), ("shelf", "(4, 2)", "above 18")),
        (lambda: small(crop=(8, 8)), ("crop", "(8, 8)")),
        (lambda: small(dim=9, num_heads=3), ("dim", "9", "even")),
    ]
    for call, words in wrong:
        with pytest.raises(UsageError) as error:
            call()
        assert all(word in str(error.value) for word in words) and "\n" not in str(error.value), error.value
