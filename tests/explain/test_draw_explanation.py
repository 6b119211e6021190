"""Explanations and their pictures, for every kind of model."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import mereo
from mereo.core import Grid
from mereo.errors import UsageError
from mereo.explain import draw_explanation, explain, observe, sender_places
from mereo.explain.captions import about_routings, caption_of
from mereo.explain.columns import SHARE, map_columns
from mereo.explain.explanation import Explanation
from mereo.explain.layout import make_sheet
from mereo.explain.panels import colour_scale, draw_map, draw_scores, shown_classes
from mereo.explain.uniform_test import UniformTest
from mereo.models import CapsuleClassifier
from mereo.pictures import new_figure

Make = Callable[..., CapsuleClassifier]
MakeImages = Callable[..., Tensor]


def read(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"), dtype=float)


def test_explanation(model: CapsuleClassifier, some_images: MakeImages) -> None:
    images = some_images(model)
    cfg = model.pretrained_cfg
    model.train()
    found = explain(model, images)
    assert model.training
    mean, std = (torch.tensor(cfg[k]).view(1, -1, 1, 1) for k in ("mean", "std"))
    torch.testing.assert_close(found.lengths, model.eval()((images - mean) / std).detach())
    assert found.predicted.equal(found.lengths.argmax(1)) and found.explained.equal(found.predicted)
    assert found.occlusion_map.heat.shape == (2, *model.image_shape[1:])
    assert found.uniform.keys() == found.maps.keys() | found.attention.keys()
    assert all(len(shape) == 4 for shape in found.trace_shapes.values())
    assert (found.rebuilt is None) == (model.decoder is None)
    if found.rebuilt is not None:
        assert found.rebuilt.shape == images.shape
    placed = any(grid is not None for grid in sender_places(model).values())
    assert (found.contribution_map is not None) == placed
    if found.contribution_map is not None:
        cells = torch.cat([each.cells.flatten(1) for each in found.contribution_maps], 1)
        torch.testing.assert_close(cells.sum(1), found.contributions.sum(1))
        assert found.contribution_map.heat.shape == (2, *model.image_shape[1:])
    tensors = [found.lengths, found.contributions, *[m.heat for m in found.maps.values()]]
    assert not any(t.requires_grad for t in tensors)


def test_watching_leaves_nothing_behind(model: CapsuleClassifier, some_images: MakeImages) -> None:
    explain(model, some_images(model))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


@pytest.mark.long
def test_picture(drawn_model: CapsuleClassifier, tmp_path: Path, some_images: MakeImages) -> None:
    images = some_images(drawn_model)
    path = draw_explanation(
        drawn_model, images, tmp_path / "new" / "seen.png", true_labels=[0, 1], titles=["one", "two"]
    )
    pixels = read(path)
    assert 300 < pixels.shape[0] < 1200 and 500 < pixels.shape[1] < 2400
    assert pixels.std() > 20
    assert not list(path.parent.glob(".*"))


@pytest.mark.long
def test_blank_images(drawn_model: CapsuleClassifier, tmp_path: Path) -> None:
    images = torch.zeros(1, *drawn_model.image_shape)
    found = explain(drawn_model, images)
    assert found.contributions is not None and found.contributions.isfinite().all()
    assert read(draw_explanation(drawn_model, images, tmp_path / "blank.png")).std() > 0


def test_zero_capsules_contribute_nothing(make: Make, some_images: MakeImages) -> None:
    model = make("capsnet", init="default")
    torch.nn.init.zeros_(model.primary.conv.weight)
    torch.nn.init.zeros_(model.primary.conv.bias)
    found = explain(model, some_images(model))
    assert found.contributions.eq(0).all() and found.maps["head.coupling"].heat.isfinite().all()


@pytest.mark.long
def test_rows_are_capped(tmp_path: Path, make: Make, some_images: MakeImages, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mereo.explain.pictures.MOST_ROWS", 3)
    model = make("two scales")
    heights = [
        read(draw_explanation(model, some_images(model, n), tmp_path / f"{n}.png", true_labels=[0] * n)).shape[0]
        for n in (1, 3, 4)
    ]
    assert heights[1] > 1.5 * heights[0]
    # A line of the caption more, and no further row.
    assert 0 < heights[2] - heights[1] < 60


@pytest.mark.parametrize("shape", [(16, 48), (48, 16)])
def test_many_classes_and_odd_shapes(
    shape: tuple[int, int], tmp_path: Path, make: Make, some_images: MakeImages
) -> None:
    model = make("two scales", num_classes=200, img_size=shape)
    model.class_names = tuple(f"a long name {n}" for n in range(200))
    path = draw_explanation(
        model, some_images(model), tmp_path / "many.png", true_labels=torch.tensor([[5, 6], [7, 8]])
    )
    assert read(path).std() > 20


def test_which_bars() -> None:
    assert shown_classes(torch.rand(10), {3}) == list(range(10))
    lengths = torch.arange(50.0)
    assert shown_classes(lengths, set()) == list(range(49, 39, -1))
    assert shown_classes(lengths, {2, 49}) == [*range(49, 40, -1), 2]


def test_the_scale_of_shares_starts_where_they_are_uniform() -> None:
    near, far = torch.tensor([0.245, 0.262]), torch.tensor([0.1, 0.9])
    assert colour_scale(near, signed=False, start=0.25).get_clim() == pytest.approx((0.25, 0.5))
    assert colour_scale(far, signed=False, start=0.25).get_clim() == pytest.approx((0.25, 0.9))
    assert colour_scale(far, signed=False).get_clim() == pytest.approx((0, 0.9))
    assert colour_scale(near, signed=True).get_clim() == pytest.approx((-0.262, 0.262))
    shown = colour_scale(near, signed=False, start=0.25).to_rgba(near.numpy())[:, :3]
    assert shown[0].min() == 1 and shown[1].min() > 0.9, "what is nearly uniform is nearly white"


def test_couplings_are_drawn_only_where_uniform_ones_change_the_answer(make: Make, some_images: MakeImages) -> None:
    model = make("capsnet")
    images = some_images(model)
    found = explain(model, images)
    name = "head.coupling"
    with torch.no_grad(), mereo.intervene(model, {name: "uniform"}):
        uniform = model(images)
    torch.testing.assert_close(
        found.uniform[name].change, (uniform - found.scores).gather(1, found.explained[:, None])[:, 0]
    )
    assert found.uniform[name].answers.equal(uniform.argmax(1) != found.predicted)
    for answers, change, drawn in ((False, 0.01, False), (True, 0.01, True), (False, -0.2, True)):
        test = UniformTest(torch.tensor([answers, False]), torch.tensor([change, 0.0]))
        changed = replace(found, uniform={name: test})
        columns = map_columns(changed)
        titles = [column.title for column in columns]
        assert titles[0] == "part hidden" and ("routing" in titles) == drawn
        text = " ".join(caption_of(changed, columns, true_known=False, asked=False, total=2))
        assert ("Not drawn" in text and "0.01" in text) != drawn


@pytest.mark.parametrize(("lengths", "numbers"), [([0.2, 0.8, 0.5], ["0.80", "0.50"]), ([0.4], ["0.40"])])
def test_the_two_longest_bars_have_numbers(lengths: list[float], numbers: list[str]) -> None:
    axes = new_figure(2, 2).subplots()
    values = torch.tensor(lengths)
    draw_scores(axes, values, int(values.argmax()), set(), ["a", "b", "c"])
    assert sorted(text.get_text() for text in axes.texts) == sorted(numbers)


@pytest.mark.parametrize(("step", "numbers"), [(8.0, ["0.25"] * 4), (2.0, [])])
def test_cells_that_can_hold_a_number_have_one(step: float, numbers: list[str]) -> None:
    axes, cells = new_figure(2, 2).subplots(), torch.full((2, 2), 0.25)
    scale, grid = colour_scale(cells, signed=False), Grid(2, 2, 1, step, step)
    draw_map(axes, torch.rand(1, 28, 28), torch.rand(28, 28), cells, grid, scale, ".2f")
    assert [text.get_text() for text in axes.texts] == numbers


def test_another_class_is_another_picture(tmp_path: Path, make: Make, some_images: MakeImages) -> None:
    model, images = make("three scales"), some_images(make("three scales"))
    first, second = (
        read(draw_explanation(model, images, tmp_path / f"{c}.png", classes=torch.tensor([c, c]))) for c in (0, 1)
    )
    assert first.shape == second.shape and not np.array_equal(first, second)


def test_refusals(tmp_path: Path, make: Make, some_images: MakeImages) -> None:
    model = make("three scales")
    images, path = some_images(model), tmp_path / "x.png"
    for wrong in ({"titles": ["one"]}, {"true_labels": [0]}, {"true_labels": [0, 10]}, {"true_labels": [0.5, 1.0]}):
        with pytest.raises(UsageError, match=next(iter(wrong))):
            draw_explanation(model, images, path, **wrong)
    with pytest.raises(UsageError, match="images"):
        explain(model, torch.rand(2, 3, 32, 32))
    with pytest.raises(UsageError, match="empty"):
        explain(model, images[:0])
    with pytest.raises(UsageError, match="model is Linear"):
        observe(torch.nn.Linear(2, 2), images)
    with pytest.raises(UsageError, match="num_classes"):
        explain(make("three scales", num_classes=0), images)
    assert not path.exists()


def test_a_model_made_directly_is_not_normalised() -> None:
    model = mereo.models.MSPCaps(in_chans=1, channels=(4, 8, 8)).eval()
    images = torch.rand(1, 1, 32, 32)
    torch.testing.assert_close(explain(model, images).lengths, model(images).detach())


@pytest.mark.long
def test_importing_draws_nothing() -> None:
    code = "import sys, mereo.explain; sys.exit(any(m.startswith('matplotlib') for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_scale_of_tiny_numbers_has_no_power_of_ten_on_its_label() -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    sheet = make_sheet(1, (8, 8), 2, 3, [])
    sheet.scale_bar(1, ScalarMappable(Normalize(-1e-6, 1e-6)), "fall of the score")
    sheet.figure.canvas.draw()
    axis = sheet.figure.axes[-1].xaxis
    assert axis.get_offset_text().get_text() == ""
    labels = [label.get_text() for label in axis.get_ticklabels()]
    assert labels[1] == "0" and all(label.startswith(start) for label, start in zip(labels[2:], "1", strict=True))
    assert all(label.endswith("06") for label in labels[::2])


def test_factors_of_any_sign_are_not_drawn_as_shares() -> None:
    torch.manual_seed(0)
    model = mereo.create_model(
        "parsecaps_small", img_size=40, stem=(4, 4, 6), dims=(4, 4, 6, 8), depths=(1, 1, 1), num_heads=(1, 2, 2)
    ).eval()
    images = torch.rand(2, *model.image_shape)
    explanation = explain(model, images)
    (factors,) = explanation.maps.values()
    assert factors.over == "none" and bool(factors.cells.min() < 0)
    explanation = replace(explanation, uniform={})
    columns = map_columns(explanation)
    labels = [column.label for column in columns]
    assert labels[:3] == ["fall of the score", "added to the pose", "factor of a part"] and columns[2].signed
    lines = " ".join(caption_of(explanation, columns, true_known=False, asked=False, total=2))
    assert "share" not in lines.split("Parts of the size")[0] and "length" not in lines
    assert map_columns(replace(explanation, maps={"x": replace(factors, over="receivers")}))[2].label == SHARE


def test_the_line_on_couplings_names_what_is_drawn() -> None:
    torch.manual_seed(0)
    model = mereo.create_model("matrix_capsnet_310k", img_size=17, channels=4, types=(2, 2, 2), pose=2, padding=2)
    explanation = replace(explain(model.eval(), torch.rand(1, *model.image_shape)), uniform={})
    assert len(explanation.maps) == 3
    assert explanation_line(explanation).startswith("Earlier routings")
    only = replace(explanation, maps=dict(list(explanation.maps.items())[-1:]))
    assert explanation_line(only) == "Routing: the share of a part's vote for it."
    first = replace(explanation, maps=dict(list(explanation.maps.items())[:1]))
    assert "capsules that voted for it" in explanation_line(first)


def explanation_line(explanation: Explanation) -> str:
    (line,) = about_routings(explanation, "it")
    return line


@pytest.mark.parametrize(("first", "step"), [(0.5, 16.0), (8.0, 16.0), (2.0, 4.0)])
def test_numbers_of_a_map_stay_inside_the_image(first: float, step: float) -> None:
    axes = new_figure(2, 2).add_subplot()
    cells = torch.tensor([[0.25, 0.5], [0.75, 1.0]])
    scale = colour_scale(cells, signed=False)
    draw_map(axes, torch.rand(1, 32, 32), torch.rand(32, 32), cells, Grid(2, 2, 1, first, step), scale, ".2f")
    places = [text.get_position() for text in axes.texts]
    assert len(places) == (4 if step > 4 else 0), "small cells have no room for numbers"
    assert all(2 < x < 30 and 2 < y < 30 for x, y in places)


def test_numbers_that_two_decimals_do_not_tell_apart_are_left_out() -> None:
    axes = new_figure(2, 2).add_subplot()
    cells = torch.tensor([[0.002, 0.003]])
    scale = colour_scale(cells, signed=False)
    draw_map(axes, torch.rand(1, 32, 32), torch.rand(32, 32), cells, Grid(1, 2, 1, 8, 16), scale, ".2f")
    assert not axes.texts
