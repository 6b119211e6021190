"""Constellations: what is drawn, by hand from the same numbers, and the linear maps of poses."""

from typing import Any

import pytest
import torch

from mereo.errors import UsageError
from papers.common.constellations import (
    Constellations,
    make_constellations,
    make_templates,
    similarity_basis,
)

D = torch.float64


def draw(images: int = 200, seed: int = 0, **options: Any) -> Constellations:
    return make_constellations(images, torch.Generator().manual_seed(seed), **options)


def test_templates_are_centred_and_scaled() -> None:
    points, owner = make_templates()
    assert owner.tolist() == [0] * 4 + [1] * 3 + [2] * 4
    triangle = torch.tensor([[-4 / 3, 0], [2 / 3, -1], [2 / 3, 1]], dtype=D)  # (1, 2), (3, 1), (3, 3), centred
    torch.testing.assert_close(points[4:7], triangle * (9 / 14) ** 0.5)
    torch.testing.assert_close(points[:4].abs(), torch.full((4, 2), 0.7071067811865476, dtype=D))
    for number, parts in enumerate((4, 3, 4)):
        own = points[owner == number]
        torch.testing.assert_close(own.mean(0), torch.zeros(2, dtype=D))
        assert own.square().sum().item() == pytest.approx(parts)
        basis = similarity_basis(own)
        torch.testing.assert_close(torch.einsum("nde,ndf->ef", basis, basis), parts * torch.eye(4, dtype=D))


def test_the_basis_moves_turns_and_scales() -> None:
    points, _ = make_templates(("triangle",))
    t, s, a = torch.tensor([0.3, -2], dtype=D), 1.7, torch.tensor(0.4, dtype=D)
    pose = torch.cat((t, torch.stack((s * a.cos(), s * a.sin()))))
    turn = torch.stack((torch.stack((a.cos(), a.sin())), torch.stack((-a.sin(), a.cos()))))
    torch.testing.assert_close(similarity_basis(points) @ pose, t + s * points @ turn.T)


def test_without_noise_each_object_is_its_template_under_a_pose() -> None:
    data, templates = draw(), make_templates()
    for number in range(3):
        own = templates.owner == number
        shown = data.mask[:, :11][:, own].all(1)
        assert (data.mask[:, :11][:, own].any(1) == shown).all(), "an object is there or not, with all of its parts"
        system = similarity_basis(templates.points[own]).flatten(0, 1)
        places = data.points[shown][:, :11][:, own].flatten(1).T
        fitted = torch.linalg.lstsq(system, places).solution
        torch.testing.assert_close(system @ fitted, places)


def test_every_set_of_objects_but_the_empty_one_is_equally_likely() -> None:
    data = draw(7000)
    sets = data.mask[:, [0, 4, 7]].long() @ torch.tensor([1, 2, 4])
    counts = sets.bincount(minlength=8)
    assert counts[0] == 0 and (counts[1:] - 1000).abs().max() < 5 * (7000 * (1 / 7) * (6 / 7)) ** 0.5


def test_each_image_fills_the_square_and_its_labels_name_the_objects() -> None:
    data = draw(noise=0.25, clutter=3)
    present = data.mask[:, :11].unsqueeze(-1)
    assert (data.points[:, :11].masked_fill(~present, 9).amin((1, 2)) == -1).all()
    assert (data.points[:, :11].masked_fill(~present, -9).amax((1, 2)) == 1).all()
    assert (data.points[~data.mask] == 0).all()
    assert data.labels[0].tolist() == [0] * 4 + [1] * 3 + [2] * 4 + [3] * 3
    stray = data.points[:, 11:]
    assert data.mask[:, 11:].all() and stray.abs().max() <= 1
    assert abs(stray.mean().item()) < 0.1 and stray.var().item() == pytest.approx(1 / 3, abs=0.05)


def test_noise_moves_the_template() -> None:
    templates, spread = make_templates(("square",)), []
    for noise in (0.0, 0.1, 0.25):
        data = draw(2000, shapes=("square",), noise=noise)
        system = similarity_basis(templates.points).flatten(0, 1)
        fitted = torch.linalg.lstsq(system, data.points.flatten(1).T).solution
        size = fitted[2:].norm(dim=0)
        spread.append((((system @ fitted - data.points.flatten(1).T) / size).square().sum(0) / 4).mean().sqrt().item())
    # Eight coordinates less four that the pose takes up; the fitted size holds a little of the noise too.
    assert spread[0] < 1e-9 and spread[1:] == pytest.approx([0.1, 0.25], rel=0.05)


def test_seeds() -> None:
    first, again, other = draw(5), draw(5), draw(5, seed=1)
    assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))
    assert not torch.equal(first.points, other.points)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shapes": ("sqare",)}, "did you mean 'square'"),
        ({"shapes": ()}, "shapes is empty"),
        ({"images": 0}, "images is 0"),
        ({"noise": -0.1}, "noise is -0.1"),
        ({"clutter": -1}, "clutter -1"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        draw(**options)
