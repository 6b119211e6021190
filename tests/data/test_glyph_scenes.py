"""Glyph scenes: prompts are true of their pictures, a scene is a function of its number, sentences are understood."""

import pytest
import torch

from mereo.data.glyph_scenes.prompts import KINDS, VOCABULARY, Named, decode, encode, placements, understand
from mereo.data.glyph_scenes.scenes import SIDE, make_scenes, noise_for, uniform
from mereo.data.glyph_scenes.served import NAMES
from mereo.data.load import load_splits
from mereo.errors import UsageError
from mereo.tasks.drawing import shown


def test_prompts_are_true_of_their_scenes_and_survive_a_round() -> None:
    scenes = make_scenes(torch.arange(300), seed=3)
    prompts = decode(scenes.tokens)
    assert torch.equal(encode(prompts), scenes.tokens)
    for prompt, kinds in zip(prompts, scenes.kinds.tolist(), strict=True):
        named, there, placed = shown(prompt, kinds)
        assert named == there and placed and named == sum(kind >= 0 for kind in kinds)
    assert {len(understand(prompt)) for prompt in prompts} == {1, 2, 3}
    quarters = scenes.images.unflatten(3, (2, -1)).unflatten(2, (2, -1)).permute(0, 2, 4, 1, 3, 5).flatten(1, 2)
    painted = (quarters.flatten(2) < 0.8).any(2)
    assert torch.equal(painted, scenes.kinds >= 0) and scenes.images.min() >= 0 and scenes.images.max() <= 1


def test_a_scene_is_a_function_of_its_number_and_seed() -> None:
    some, all_of_them = make_scenes(torch.tensor([7, 2**40, 3])), make_scenes(torch.arange(8))
    assert torch.equal(some.images[[0, 2]], all_of_them.images[[7, 3]])
    assert not torch.equal(make_scenes(torch.arange(8), seed=1).tokens, all_of_them.tokens)
    numbers = uniform(torch.arange(20_000), 8, seed=0)
    assert (numbers.mean(0) - 0.5).abs().max() < 0.01 and (numbers.var(0) - 1 / 12).abs().max() < 0.002
    assert (torch.corrcoef(numbers.T) - torch.eye(8)).abs().max() < 0.03
    noise = noise_for(encode(["a red square", "a ring"]), (3, SIDE, SIDE))
    assert abs(noise.mean()) < 0.05 and abs(noise.std() - 1) < 0.05 and not torch.equal(noise[0], noise[1])
    train = load_splits("glyph_scenes:train=9", length=1).train
    assert len(train) == 9 and torch.equal(train.batch(torch.tensor([4])).images, train.subset(torch.tensor([4])).batch(
        torch.tensor([0])).images)  # fmt: skip


def test_sentences_are_understood() -> None:
    assert understand("A red square to the left of a blue star") == [
        Named("red", "square", relation="left-of"), Named("blue", "star")
    ]  # fmt: skip
    assert placements(understand("a red square left of a blue star")) == [(0, 1), (2, 3)]
    assert placements(understand("a ring in the top-right corner and a black cross below a star")) == [(1, 2, 0)]
    assert understand("a ring left and a star")[0] == Named(None, "ring", column=0)
    assert len(NAMES) == KINDS == 36 and len({*VOCABULARY}) == len(VOCABULARY)
    for prompt, word in (
        ("", "prompt is ''"), ("red blue", "'blue'"), ("a ring above", "'above'"), ("a ring ring", "'ring'"),
        ("a pink ring", "'pink'"), ("a ring and a ring and a ring and a ring", "'a ring and"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=word):
            understand(prompt)


def test_what_is_shown_is_counted() -> None:
    red_square, blue_star = NAMES.index("red square"), NAMES.index("blue star")
    prompt = "a red square left of a blue star"
    assert shown(prompt, [red_square, blue_star, -1, -1]) == (2, 2, True)
    assert shown(prompt, [blue_star, red_square, -1, -1]) == (2, 2, False)
    assert shown(prompt, [red_square, -1, blue_star, -1]) == (2, 2, False)
    assert shown(prompt, [-1, -1, red_square, red_square]) == (2, 1, False)
    assert shown("a square and a star top", [-1, blue_star, -1, red_square]) == (2, 2, True)
