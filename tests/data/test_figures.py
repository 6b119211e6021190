"""Figures and sprites: identities are apart, images follow from their numbers, attributes are drawn evenly."""

import numpy as np

from mereo.data.sets.figures import SIZE, draw_figure
from mereo.data.sets.sprites import make_sprite


def test_figures_differ_in_what_their_numbers_say() -> None:
    def draw(*identity: int) -> "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]":
        return draw_figure(np.array(identity), np.random.default_rng(3))

    plain = draw(0, 1, 2, 0, 6, 0, 0)
    assert plain.shape == (3, *SIZE) and np.array_equal(plain, draw(0, 1, 2, 0, 6, 0, 0))
    differ = {}
    others = {"shirt": (4, 1, 2, 0, 6, 0, 0), "trousers": (0, 3, 2, 0, 6, 0, 0), "hair": (0, 1, 4, 0, 6, 0, 0)}
    for part, identity in others.items():
        rows = np.abs(plain.astype(int) - draw(*identity)).max(0).max(1).nonzero()[0]
        differ[part] = rows.mean()
    assert differ["hair"] < differ["shirt"] < differ["trousers"]
    assert np.array_equal(plain, draw(0, 1, 2, 0, 6, 1, 0)), "without a bag its side says nothing"
    assert not np.array_equal(draw(0, 1, 2, 0, 3, 0, 0), draw(0, 1, 2, 0, 3, 1, 0))


def test_a_larger_sprite_covers_more_and_a_colour_changes_the_sprite_alone() -> None:
    def covered(*attributes: int) -> int:
        image = make_sprite(np.array(attributes), np.random.default_rng(1))
        return int((image.max(0) > 200).sum())

    assert all(1.5 * covered(shape, 3, 0) < covered(shape, 3, 1) for shape in range(4))
    red, blue = (make_sprite(np.array([0, colour, 1]), np.random.default_rng(1)) for colour in (0, 2))
    changed = (red != blue).any(0)
    assert 0.2 < changed.mean() < 0.5 and np.array_equal(red[:, ~changed], blue[:, ~changed])
