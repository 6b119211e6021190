"""The rendered toys: each sample of a picture against one ray traced in float64, and the protocols of viewpoints."""

import numpy as np
import pytest
import torch

from mereo.data import dataset_info, load_splits
from mereo.data.sets import solids
from mereo.data.solids import CATEGORIES, make_instance, render
from mereo.data.solids.render import AMBIENT, DISTANCE, FILLED, HALF_ANGLE, LIGHTS, SAMPLES, SHADOW
from mereo.data.viewpoints import AZIMUTHS, ELEVATIONS, TEST_INSTANCES, TRAIN_INSTANCES
from mereo.errors import UsageError

SMALL = "solids:viewpoints=azimuth"


def towards(elevation: float, azimuth: float) -> np.ndarray:
    up, around = np.radians(elevation), np.radians(azimuth)
    return np.array([np.cos(up) * np.cos(around), np.cos(up) * np.sin(around), np.sin(up)])


def meet(part, start: np.ndarray, ray: np.ndarray):
    """Where a ray enters a part and the normal there, or None."""
    if not len(part.planes):
        inverse = np.linalg.inv(part.matrix)
        at, along = inverse @ (start - part.centre), inverse @ ray
        b, c = at @ along / (along @ along), (at @ at - 1) / (along @ along)
        if b * b < c:
            return None
        first, last = -b - np.sqrt(b * b - c), -b + np.sqrt(b * b - c)
        normal = inverse.T @ (at + first * along)
        return None if last < 0 else (first, normal / np.linalg.norm(normal))
    first, last, normal = -np.inf, np.inf, None
    for *face, offset in part.planes:
        slope, room = np.dot(face, ray), offset - np.dot(face, start)
        if slope < 0 and room / slope > first:
            first, normal = room / slope, np.array(face)
        elif slope > 0:
            last = min(last, room / slope)
        elif slope == 0 and room < 0:
            return None
    return None if first > last or last < 0 else (first, normal)


def trace(parts, elevation: float, azimuth: float, eye: int, lighting: int, side: int) -> np.ndarray:
    """The picture of one eye, one ray a sample."""
    out = towards(elevation, azimuth + HALF_ANGLE * (2 * eye - 1))
    right = np.cross([0, 0, 1], out)
    right /= np.linalg.norm(right)
    up = np.cross(out, right)
    tangent = 1 / (2 * FILLED * np.sqrt(DISTANCE**2 - 1))
    high, around, brightness = LIGHTS[lighting]
    light = towards(high, azimuth + around)
    reach = [np.linalg.norm(p.matrix, axis=1)[2] / (np.sqrt(3) if len(p.planes) else 1) for p in parts]
    floor = min(p.centre[2] - r for p, r in zip(parts, reach, strict=True))
    fine = side * SAMPLES
    picture = np.zeros((fine, fine))
    for row in range(fine):
        for column in range(fine):
            x, y = (column + 0.5) * 2 / fine - 1, 1 - (row + 0.5) * 2 / fine
            start, ray = out * DISTANCE, -out + tangent * (x * right + y * up)
            middle = [((at // SAMPLES + 0.5) * 2 / side - 1) for at in (column, row)]
            ground = -out + tangent * (middle[0] * right - middle[1] * up)
            hits = [(hit, p) for p in parts if (hit := meet(p, start, ray)) is not None]
            if hits:
                (_, normal), part = min(hits, key=lambda each: each[0][0])
                value = part.albedo * (AMBIENT + (1 - AMBIENT) * brightness * max(normal @ light, 0))
            else:
                value = 0.6 + 0.16 * brightness * light[2] + 0.06 * np.sin(np.radians(around)) * x + 0.05 * y
                spot = start + ground * (floor - start[2]) / ground[2]
                value *= SHADOW if any(meet(part, spot, light) is not None for part in parts) else 1
            picture[row, column] = value
    return picture.reshape(side, SAMPLES, side, SAMPLES).mean(axis=(1, 3)).clip(0, 1) * 255


@pytest.mark.parametrize("category", CATEGORIES)
def test_pictures_are_those_of_traced_rays(category: str) -> None:
    parts, side = make_instance(category, 3), 10
    views = (np.array([30.0, 70.0]), np.array([20.0, 200.0]), np.array([0, 4]))
    pairs = render(parts, *views, side)
    assert pairs.shape == (2, 2, side, side) and pairs.dtype == np.uint8
    for view, (elevation, azimuth, lighting) in enumerate(zip(*views, strict=True)):
        for eye in (0, 1):
            exact = trace(parts, elevation, azimuth, eye, lighting, side)
            # A sample on an edge may fall on either side of it.
            assert (np.abs(pairs[view, eye] - exact) > 0.51).sum() <= 2
            assert exact.max() - exact.min() > 60


def test_views_drawn_together_are_those_drawn_one_by_one() -> None:
    parts = make_instance("truck", 1)
    elevations, azimuths, lights = np.array([30.0, 50.0, 70.0]), np.array([0.0, 140.0, 260.0]), np.array([1, 3, 5])
    together = render(parts, elevations, azimuths, lights, 12)
    for view in range(3):
        some = slice(view, view + 1)
        assert np.array_equal(together[some], render(parts, elevations[some], azimuths[some], lights[some], 12))


def test_instances_differ_and_fit_the_picture() -> None:
    for category in CATEGORIES:
        toys = [make_instance(category, number) for number in range(10)]
        again = make_instance(category, 3)
        assert all(np.array_equal(a.matrix, b.matrix) for a, b in zip(toys[3], again, strict=True))
        sizes = {tuple(part.matrix.ravel().round(9)) for toy in toys for part in toy[:1]}
        assert len(sizes) == 10
        for toy in toys:
            corners = [
                np.abs(p.centre) + np.linalg.norm(p.matrix, axis=1) / (3**0.5 if len(p.planes) else 1) for p in toy
            ]
            assert np.max(corners) <= 1 + 1e-9


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blank pictures whose first pixels name the view: instance, elevation, azimuth, lighting."""

    def blank(instance: int, lightings: int) -> np.ndarray:
        shape = (5, len(ELEVATIONS), len(AZIMUTHS), lightings)
        pictures = np.zeros((*shape, 2, 32, 32), np.uint8)
        numbers = np.indices(shape)
        pictures[..., 0, 0, 0] = instance
        for place, axis in enumerate((0, 1, 2, 3), start=1):
            pictures[..., 0, 0, place] = numbers[axis]
        return pictures

    monkeypatch.setattr(solids, "_pictures", blank)


@pytest.mark.parametrize(
    ("options", "train", "test"),
    [
        ("", 4050, 4050), (":viewpoints=azimuth", 1350, 2700), (":viewpoints=elevation,familiar=true", 1350, 1350),
        (":viewpoints=elevation,lightings=2", 2700, 5400), (":lightings=6", 24300, 24300),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("few")
def test_the_protocols_choose_toys_and_viewpoints(options: str, train: int, test: int) -> None:
    data = f"solids{options}"
    assert dataset_info(data).splits == {"train": train, "test": test}
    splits = load_splits(data, img_size=32, validation_fraction=0)
    for name, count, instances in (("train", train, TRAIN_INSTANCES), ("test", test, TEST_INSTANCES)):
        part = getattr(splits, name)
        assert len(part) == count and part.image_shape == (2, 32, 32)
        marks = part.images[:, 0, 0, :4].long()
        assert torch.equal(marks[:, 1], part.labels) and set(marks[:, 0].tolist()) == set(instances)
        novel = name == "test" and "familiar" not in options
        azimuths, elevations = (
            {AZIMUTHS[i] for i in marks[:, 3].tolist()},
            {ELEVATIONS[i] for i in marks[:, 2].tolist()},
        )
        if "azimuth" in options:
            assert azimuths == set(range(60, 300, 20)) if novel else azimuths == {300, 320, 340, 0, 20, 40}
        else:
            assert len(azimuths) == 18
        if "elevation" in options:
            assert elevations == set(range(45, 75, 5)) if novel else elevations == {30, 35, 40}


@pytest.mark.parametrize(
    "options", ["lightings=0", "lightings=7", "lightings=x", "familiar=1", "viewpoints=up", "no=1", ""]
)
def test_wrong_options_are_refused(options: str) -> None:
    with pytest.raises(UsageError):
        dataset_info(f"solids:{options}")


def test_lights_of_a_view_are_drawn_once_without_repetition(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def note(parts, elevations, azimuths, lightings, side):
        seen.append((len(elevations), tuple(lightings)))
        return np.zeros((len(elevations), 2, side, side), np.uint8)

    monkeypatch.setattr("mereo.data.solids.render", note)
    solids._pictures.__wrapped__(7, 3)
    lights = np.concatenate([np.array(each) for _, each in seen]).reshape(-1, 3)
    assert all(len(set(row)) == 3 for row in lights.tolist()) and set(lights.ravel()) == set(range(6))
    seen.clear()
    solids._pictures.__wrapped__(7, 1)
    assert [row[0] for row in lights.tolist()] == [light for _, each in seen for light in each]
