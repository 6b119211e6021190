"""Places: which couplings have senders on the image, and where."""

from collections.abc import Callable

import pytest
import torch

from mereo.core import Grid, record
from mereo.errors import UsageError
from mereo.explain import sender_places, spread
from mereo.explain.places import on_grid
from mereo.models import CapsuleClassifier

Make = Callable[..., CapsuleClassifier]


def test_grids_count_the_senders(model: CapsuleClassifier) -> None:
    with record(model) as trace:
        model(torch.rand(1, *model.image_shape))
    places = sender_places(model)
    assert set(places) == set(trace)
    for name, grid in places.items():
        if grid is not None:
            assert grid.types * grid.rows * grid.columns == trace[name].shape[-1]
            _, height, width = model.image_shape
            assert grid.first + (grid.rows - 1) * grid.step <= height
            assert grid.first + (grid.columns - 1) * grid.step <= width


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (
            "three scales",
            {"middle.coupling": Grid(4, 4, 1, 4, 8, 0), "head.coupling": Grid(2, 2, 1, 8, 16)},
        ),
        ("two scales", {"head.coupling": Grid(2, 2, 1, 8, 16)}),
        ("one scale", {"head.coupling": Grid(3, 5, 1, 4, 8)}),
        (
            "dynamic",
            {
                "scale_routings.0.coupling": Grid(8, 8, 1, 2, 4, 0),
                "scale_routings.1.coupling": Grid(4, 4, 1, 4, 8, 4),
                "scale_routings.2.coupling": Grid(2, 2, 1, 8, 16, 20),
                "head.coupling": None,
            },
        ),
        ("capsnet", {"head.coupling": Grid(3, 6, 2, 8.5, 2)}),
        ("efficient", {"head.coupling": None}),
    ],
)
def test_grids_of_the_library(kind: str, expected: dict[str, Grid | None], make: Make) -> None:
    assert sender_places(make(kind)) == expected


def test_a_new_classifier_has_its_places(make: Make) -> None:
    for kind in ("three scales", "two scales", "dynamic", "capsnet", "capsnet, middle", "efficient"):
        model = make(kind)
        before = sender_places(model)
        model.reset_classifier(7)
        assert sender_places(model) == before


def test_first_primary_capsule_sees_the_top_left_window(make: Make) -> None:
    model = make("capsnet", img_size=21)
    image = torch.rand(1, *model.image_shape, requires_grad=True)
    (gradient,) = torch.autograd.grad(model.forward_features(image)[0, 0].sum(), image)
    seen = gradient[0, 0].abs().sum(1).nonzero().flatten()
    assert seen[0] >= 0 and seen[-1] == 16 and (seen[0] + seen[-1] + 1) / 2 == model.head.coupling.senders.first


def test_spread_gives_each_pixel_the_nearest_value() -> None:
    cells = torch.arange(1.0, 5.0).view(1, 2, 2)
    heat = spread(cells, Grid(2, 2, 1, 2, 4), 8, 9)[0]
    assert heat.shape == (8, 9)
    torch.testing.assert_close(heat[:, :8], cells[0].repeat_interleave(4, 0).repeat_interleave(4, 1))
    assert heat[:, 8].eq(0).all()  # nobody sits on the border


def test_types_are_averaged_or_summed() -> None:
    values, grid = torch.arange(12.0).view(1, 12), Grid(2, 3, 2, 1, 1)
    torch.testing.assert_close(on_grid(values, grid, average=True)[0, 1, 2], torch.tensor(8.0))
    torch.testing.assert_close(on_grid(values, grid, average=False)[0, 0, 1], torch.tensor(8.0))
    with_token = torch.cat((torch.full((1, 1), 99.0), values), 1)
    placed = on_grid(with_token, grid._replace(prefix=1), average=True)
    assert torch.equal(placed, on_grid(values, grid, average=True)), "a class token has no place"
    with pytest.raises(UsageError, match="11 senders"):
        on_grid(values[:, :11], grid, average=True)
