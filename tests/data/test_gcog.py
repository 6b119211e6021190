"""gCOG: numbers of the page, answers against a slow reader of the arrays, splits, rates of answers, refused input."""

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mereo.data import Augmentation, load_splits
from mereo.data.questions.files import read_questions
from mereo.data.questions.programs import DRAWN, LEAVES, ONE, OTHER, ROOTS, Split
from mereo.data.questions.scenes import Questions, generate, scene_for
from mereo.data.questions.words import draw_scenes, in_words, read_question
from mereo.data.questions.world import (
    ANSWERS,
    COLOURS,
    GET_COLOUR,
    GET_SHAPE,
    OPERATORS,
    PRODUCT_EVEN,
    SHAPES,
    SWITCH,
    decode_rules,
    decode_scenes,
    encode_rules,
    encode_scenes,
    evaluate,
    join_rows,
    one_hot,
    split_rows,
)
from mereo.data.registry import find_dataset
from mereo.errors import UsageError

FORMS: list[tuple[str, dict[str, Any]]] = [
    ("distractor", {}),
    ("systematic", {"strict": True}),
    ("systematic_trees", {}),
    ("productive", {}),
    ("productive", {"depth": 7, "well_posed": True}),
]


def rule_of(question: str) -> Tensor:
    return encode_rules(read_question(question))


def stim_of(*objects: tuple[int, int, str, str]) -> Tensor:
    """A scene from rows, columns, colours and shapes."""
    codes = torch.zeros(1, 100, dtype=torch.int64)
    for row, column, colour, shape in objects:
        codes[0, 10 * row + column] = 1 + 26 * COLOURS.index(colour) + SHAPES.index(shape)
    return encode_scenes(codes)


def slow_answer(rule: list[list[float]], stim: list[list[float]]) -> int:
    """The answer, from the numbers of one question alone."""
    rows = rule[: next(i for i, row in enumerate(rule) if row[7] == 1)]
    levels, size, at = [], 1, 0
    while at < len(rows):
        levels.append(rows[at : at + size])
        at += size
        if at < len(rows):
            assert all(row[0] == SWITCH for row in rows[at : at + size])
            at, size = at + size, 2 * size

    def matches(shape: float, colour: float) -> list[int]:
        cells = enumerate(stim[:100])
        return [i for i, (c, s, _) in cells if c and shape in (0, s) and colour in (0, c)]

    def value(row: list[float]) -> int:
        name = OPERATORS[int(row[0]) - 1]
        objects = [(row[k], row[k + 1]) for k in (1, 4) if row[k + 2]]
        (shape, colour), *_ = objects
        if name == "exist":
            return 0 if matches(shape, colour) else 1
        if name == "getcolor":
            return 127 + int(stim[matches(shape, 0)[0]][0])
        if name == "getshape":
            return 101 + int(stim[matches(0, colour)[0]][1])
        places = [divmod(matches(s, c)[0], 10) for s, c in objects]
        if name == "go":
            return 2 + places[0][0] + 10 * places[0][1]
        total = math.prod(map(math.prod, places)) if name.startswith("product") else sum(map(sum, places))
        return 0 if (total % 2 == 1) == name.endswith("odd") else 1

    place = 0
    for level in levels[:-1]:
        place = 2 * place + value(level[place])
    return value(levels[-1][place])


# --- the numbers of the page ----------------------------------------------------------------------------------------


def test_sizes() -> None:
    assert len(ANSWERS) == 138 and ANSWERS[0] == "true" and ANSWERS[102] == "a" and ANSWERS[128] == "red"
    for (split, options), rows in zip(FORMS, (2, 2, 5, 11, 23), strict=True):
        made = generate(split, 8, 0, part="test", **options)
        assert made["rule"].shape == (8, rows, 8) and made["stim"].shape == (8, 101, 3)
        assert (made["rule"][:, -1] == torch.tensor([0, 0, 0, 0, 0, 0, 0, 1])).all()
        assert (made["stim"][:, 100] == torch.tensor([0, 0, 1])).all() and (made["stim"][:, :100, 2] == 0).all()


@pytest.mark.parametrize(
    ("question", "row"),
    [
        ("color of h", [3, 8, 1, 1, 0, 0, 0, 0]),
        ("shape of white object", [4, 1, 7, 1, 0, 0, 0, 0]),
        ("orange g exist", [1, 7, 6, 1, 0, 0, 0, 0]),
        ("current yellow j + current purple i sum is odd ?", [8, 10, 4, 1, 9, 5, 1, 0]),
    ],
)
def test_rows_of_the_page(question: str, row: list[int]) -> None:
    rule = rule_of(question)
    assert rule[0].tolist() == [row, [0, 0, 0, 0, 0, 0, 0, 1]]


def test_a_place_is_an_answer_column_by_column() -> None:
    stim = stim_of((3, 4, "red", "b"))
    assert stim[0, 34].tolist() == [1, 2, 0] and stim.count_nonzero() == 3
    assert evaluate(rule_of("loc of red b"), stim).target.tolist() == [45] and ANSWERS[45] == "row 3 column 4"


def test_the_first_match_row_by_row_counts() -> None:
    stim = stim_of((5, 0, "cyan", "h"), (2, 9, "pink", "h"))
    answered = evaluate(rule_of("color of h"), stim)
    assert ANSWERS[int(answered.target)] == "pink" and answered.matches.tolist() == [2]


def test_zero_is_even_and_the_true_branch_comes_first() -> None:
    stim = stim_of((0, 7, "red", "a"), (3, 5, "blue", "b"))
    for question, answer in {
        "red a product is even": "true",
        "red a * blue b product is odd": "false",
        "blue b product is odd": "true",
        "red a + blue b sum is odd": "true",
        "[ if red a sum is odd , then shape of blue object , else color of a ]": "b",
        "[ if red a sum is even , then shape of blue object , else color of a ]": "red",
    }.items():
        assert ANSWERS[int(evaluate(rule_of(question), stim).target)] == answer


# --- answers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("split", "options"), FORMS)
def test_the_arrays_alone_reproduce_every_answer(split: str, options: dict[str, Any]) -> None:
    for part in ("train", "test"):
        made = generate(split, 200, 3, part=part, **options)
        found = [slow_answer(r, s) for r, s in zip(made["rule"].tolist(), made["stim"].tolist(), strict=True)]
        assert found == made["target"].tolist() == evaluate(made["rule"], made["stim"]).target.tolist()


def test_rates_of_true_answers() -> None:
    for location, expected in (
        (True, {"exist": 0.5, "sumeven": 0.5, "sumodd": 0.5, "producteven": 0.75, "productodd": 0.25}),
        (False, dict.fromkeys(("exist", "sumeven", "sumodd", "producteven", "productodd"), 0.5)),
    ):
        made = generate("distractor", 8 * 600, 1, location=location)
        roots = made["meta"]["root"]
        assert set(Counter(roots).values()) == {600}
        for name, rate in expected.items():
            true = sum(target == 0 for target, root in zip(made["target"].tolist(), roots, strict=True) if root == name)
            assert true / 600 == pytest.approx(rate, abs=0.06), (location, name)


def test_two_objects_make_products_even_more_often_and_many_distractors_make_letters_exist() -> None:
    made = generate("systematic_trees", 8000, 1)
    asked = decode_rules(made["rule"])
    assert evaluate(made["rule"], made["stim"]).target.tolist() == made["target"].tolist()
    leaf = asked.ops[:, 1] == 6  # products that are even, of two objects
    two = leaf & (asked.shapes[:, 1, 1] > 0)
    alone = made["rule"].new_zeros(int(two.sum()), 2, 8)
    alone[:, 0] = made["rule"][two, 2]
    alone[:, 1, 7] = 1
    true = (evaluate(alone, made["stim"][two]).target == 0).double().mean()
    assert float(true) == pytest.approx(15 / 16, abs=0.03)
    many = generate("distractor", 8000, 2, part="test", distractors=40)
    hits = [t == 0 for t, root in zip(many["target"].tolist(), many["meta"]["root"], strict=True) if root == "exist"]
    # 1 - (1 - 1 / 260)^40 / 2
    assert sum(hits) / len(hits) == pytest.approx(0.571, abs=0.05)
    assert float((many["stim"][:, :100, 0] > 0).sum(1).double().mean()) == pytest.approx(37.7, abs=0.2)


def test_permuted_cells_change_places_only() -> None:
    made = generate("distractor", 800, 5)
    order = torch.randperm(100, generator=torch.Generator().manual_seed(0))
    moved = evaluate(made["rule"], torch.cat((made["stim"][:, :100][:, order], made["stim"][:, 100:]), 1))
    kinds = decode_rules(made["rule"]).ops[:, 0]
    same = moved.target == made["target"]
    for kind, name in enumerate(OPERATORS[:-1], 1):
        assert bool(same[kinds == kind].all()) == (name in ("exist", "getcolor", "getshape")), name


# --- programs and scenes --------------------------------------------------------------------------------------------


def test_well_posed_programs_select_one_object_each() -> None:
    loose = generate("productive", 600, 7, part="test")
    assert 0.05 < sum(count > 1 for count in loose["meta"]["matches"]) / 600 < 0.2
    made = generate("productive", 600, 7, part="test", well_posed=True)
    asked, codes = decode_rules(made["rule"]), decode_scenes(made["stim"])
    for node in range(asked.ops.shape[1]):
        for slot in range(2):
            shape, colour = asked.shapes[:, node, slot : slot + 1], asked.colours[:, node, slot : slot + 1]
            fits = (codes > 0) & ((shape == 0) | (shape == (codes - 1) % 26 + 1))
            fits &= (colour == 0) | (colour == (codes - 1) // 26 + 1)
            number, used = fits.sum(1), (shape + colour > 0).squeeze(1)
            assert int(number[used].max()) <= 1 if used.any() else True
            assert (number[used & (asked.ops[:, node] != 1)] == 1).all()
    for kind, field in ((GET_COLOUR, asked.shapes), (GET_SHAPE, asked.colours)):
        for ops, keys in zip(asked.ops.tolist(), field[..., 0].tolist(), strict=True):
            used_keys = [key for op, key in zip(ops, keys, strict=True) if op == kind]
            assert len(set(used_keys)) == len(used_keys)


def test_distractors_are_as_many_as_asked_and_avoid_what_is_asked_for() -> None:
    split = Split("distractor", distractors=10)
    assert split.range("train") == (0, 5) and split.range("test") == (10, 10)
    made = generate("distractor", 2000, 0)
    assert set(made["meta"]["distractors"]) == set(range(6))
    many = generate("distractor", 2000, 0, part="test", distractors=90)
    assert max(many["meta"]["matches"]) == 1 and set(many["meta"]["distractors"]) == {90}
    asked = decode_rules(many["rule"])
    assert int(asked.shapes.max()) <= 10 and int(decode_scenes(many["stim"]).sub(1).remainder(26).max()) == 25


def test_systematic_splits_share_half_of_the_kinds_of_questions_unless_they_are_strict() -> None:
    for strict, size, shared in ((False, 400, 200), (True, 200, 0)):
        split = Split("systematic", strict=strict)
        kinds = {}
        for part in ("train", "test"):
            programs = split.draw(part, 100 * size, torch.Generator().manual_seed(0))
            rows = torch.stack((programs.ops, programs.colours[..., 0], programs.shapes[..., 0]), -1).squeeze(1)
            kinds[part] = set(map(tuple, rows.tolist()))
            cells = torch.cat((rows, programs.cells[:, :, 0]), 1)
            assert len(kinds[part]) == size and len(cells.unique(dim=0)) == 100 * size
        assert len(kinds["train"] & kinds["test"]) == shared
        with pytest.raises(UsageError, match=f"count is {100 * size + 1}"):
            split.draw("train", 100 * size + 1, torch.Generator())
    assert {*ONE} | {*OTHER} == set(range(1, 9))


def test_pairs_of_roots_and_leaves_are_disjoint() -> None:
    pairs, single = {}, {}
    for part in ("train", "test"):
        ops = Split("systematic_trees").draw(part, 3000, torch.Generator().manual_seed(1)).ops
        pairs[part] = {(a, leaf) for a, b, c in ops.tolist() for leaf in (b, c)}
        single[part] = set(ops.flatten().tolist())
        assert len(pairs[part]) == 20 == len(ROOTS[0]) * len(LEAVES[0]) + len(ROOTS[1]) * len(LEAVES[1])
    assert not pairs["train"] & pairs["test"] and single["train"] == single["test"] == set(range(1, 9))


def test_words_name_every_program() -> None:
    for split, options in FORMS:
        made = generate(split, 60, 2, part="test", **options)
        again = torch.cat([encode_rules(read_question(text)) for text in made["meta"]["words"]])
        assert torch.equal(again, made["rule"])
    shallow = generate("productive", 40, 2)
    assert set(shallow["meta"]["depth"]) == {1, 3} and in_words(shallow["rule"]) == shallow["meta"]["words"]
    nested = "[ if current red a exist , then loc of current blue b , else shape of current white object ]"
    assert in_words(rule_of(nested)) == [nested] and in_words(rule_of("colour of h")) == ["color of current h ?"]


def test_other_encodings() -> None:
    made = generate("distractor", 5, 4, encoding="one_hot")
    plain = generate("distractor", 5, 4)
    assert made["rule"].shape == (5, 2, 84) and made["stim"].shape == (5, 101, 37)
    assert torch.equal(made["rule"][:, 0, :9].argmax(1) + 1, plain["rule"][:, 0, 0].long())
    assert made["stim"][:, :100].sum() == 2 * (plain["stim"][:, :100, 0] > 0).sum()
    hot = one_hot(rule_of("color of h"), plain["stim"][:1])[0][0, 0]
    assert hot.nonzero().flatten().tolist() == [2, 9 + 7, 9 + 36]
    pictures = generate("distractor", 5, 4, encoding="image", cell=8)
    assert pictures["stim"].shape == (5, 3, 80, 80) and pictures["rule"] == plain["meta"]["words"]
    image = draw_scenes(decode_scenes(stim_of((3, 4, "red", "b"))), 8)[0].unflatten(1, (10, 8)).unflatten(3, (10, 8))
    lit = image.amax((0, 2, 4)).nonzero().tolist()
    assert lit == [[3, 4]] and image[0].max() > image[1].max() > 0


# --- the data set ---------------------------------------------------------------------------------------------------


def test_training_scenes_are_drawn_anew_and_held_out_scenes_stay() -> None:
    one, other = (load_splits("gcog:programs=20", length=1, limit=100) for _ in range(2))
    assert one.train.describe() == other.train.describe() != one.test.describe()
    assert (len(one.train), len(one.test), len(one.class_names)) == (100, 1000, 138)
    indices = torch.arange(20)
    fixed = [one.train.batch(indices).rows for _ in range(2)]
    fresh = [one.train.batch(indices, generator=torch.Generator().manual_seed(seed)).rows for seed in (0, 0, 1)]
    assert torch.equal(*fixed) and torch.equal(fresh[0], fresh[1]) and not torch.equal(fresh[1], fresh[2])
    for rows in fresh:
        assert torch.equal(rows[:, :2], fixed[0][:, :2])
    batch = one.train.batch(indices, generator=torch.Generator().manual_seed(0))
    assert torch.equal(evaluate(*split_rows(batch.rows)).target, batch.labels)
    half = one.train.batch(indices, generator=torch.Generator().manual_seed(0), share=slice(10, 20))
    assert torch.equal(half.rows, batch.rows[10:])
    part = one.test.subset(torch.tensor([3, 1])).batch(torch.arange(2))
    assert torch.equal(part.rows, one.test.batch(torch.tensor([3, 1])).rows)
    with pytest.raises(UsageError, match=r"augment has flip"):
        one.test.batch(indices, augmentation=Augmentation.parse(["flip"]), generator=torch.Generator())


def test_places_are_drawn_with_the_scene_without_location() -> None:
    fixed, drawn = (load_splits(f"gcog:programs=500,location={each}", length=1).train for each in ("true", "false"))
    assert fixed.describe() != drawn.describe() and bool((drawn.programs.cells == DRAWN).all())
    assert bool((fixed.programs.cells[:, 0, 0] >= 0).all())
    batch = drawn.batch(torch.arange(4000))
    products = split_rows(batch.rows)[0][:, 0, 0] == PRODUCT_EVEN
    assert (batch.labels[products] == 0).double().mean().item() == pytest.approx(0.5, abs=0.08)


def test_options_change_the_splits() -> None:
    info = find_dataset("gcog:split=systematic,programs=9000,strict=true")
    assert info is not None and info.splits == {"train": 20000, "validation": 1000, "test": 1000}
    deep = load_splits("gcog:split=productive,programs=1,depth=7", length=1)
    assert deep.train.image_shape == (1, 5 + 101, 11) and deep.test.image_shape == (1, 23 + 101, 11)


# --- refused --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ("split=hard", "'hard'"), ("features=11", "features is 11"), ("features=1", "features is 1"),
        ("depth=3", "depth is 3"), ("distractors=95", "distractors is 95"), ("distractors=-1", "distractors"),
        ("strict=true", "strict is True"), ("programs=0", "programs is 0"),
    ],
)  # fmt: skip
def test_impossible_options_are_refused(options: str, error: str) -> None:
    with pytest.raises(UsageError, match=error):
        find_dataset(f"gcog:{options}")


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"n": 0}, "n is 0"), ({"seed": -1}, "seed"), ({"part": "both"}, "'both'"), ({"encoding": "text"}, "'text'"),
        ({"encoding": "image", "cell": 3}, "cell is 3"),
    ],
)  # fmt: skip
def test_impossible_sets_are_refused(given: dict[str, Any], error: str) -> None:
    with pytest.raises(UsageError, match=error):
        generate(**{"split": "distractor", "n": 4, "seed": 0, **given})


def test_trees_that_few_attributes_cannot_make_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mereo.data.questions.programs._TRIES", 1)
    with pytest.raises(UsageError, match="features is 2, too few for well-posed trees"):
        generate("productive", 500, 0, part="test", depth=7, features=2, well_posed=True)


@pytest.mark.parametrize(
    ("question", "why"),
    [
        ("color of red h", "a letter alone"), ("what is h", "asks for nothing"), ("red exist", "a colour and a letter"),
        ("red a + blue b exist", "no colour and no letter"), ("[ if color of h , then a , else b ]", "true or false"),
        ("[ if red a exist , then color of h", "',' is missing"), ("color of h ]", "stands behind its end"),
        ("", "asks for nothing"),
        ("[ if red a exist , then color of h , else [ if red b exist , then color of c , else color of d ] ]", "depth"),
    ],
)  # fmt: skip
def test_other_sentences_are_refused(question: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        read_question(question)


def test_arrays_that_are_no_questions_are_refused() -> None:
    rule, stim = rule_of("color of h"), stim_of((3, 4, "red", "h"))
    tree = rule_of("[ if red a exist , then loc of red a , else color of h ]")
    for changed, error in (
        (rule + 0.5, "not whole"), (rule[..., :7], r"rule is \(1, 2, 7\)"), (rule.roll(1, 1), "does not end"),
        (rule * torch.tensor([1, 9, 1, 1, 1, 1, 1, 1]), "at most"), (tree[:, [0, 2, 1, 3, 4]], "tree level by level"),
        (tree * torch.tensor([3, 1, 1, 1, 1, 1, 1, 1]).clamp(max=3), "tree level by level|at most"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=error):
            evaluate(changed, stim)
    for place, number, error in ((0, 11, "cell 34"), (1, 0, "cell 34"), (2, 1, "cell 34")):
        wrong = stim.clone()
        wrong[0, 34, place] = number
        with pytest.raises(UsageError, match=error):
            evaluate(rule, wrong)
    assert evaluate(rule, stim_of((0, 0, "red", "a"))).target.tolist() == [-1]
    assert evaluate(rule[:0], stim[:0]).target.shape == (0,)
    with pytest.raises(UsageError, match="least is 3 and most is 2"):
        Questions(Split().draw("train", 4, torch.Generator()), 3, 2)


def test_files_hold_one_question_or_several(tmp_path: Path) -> None:
    made, path = generate("systematic_trees", 3, 1), tmp_path / "questions.json"
    path.write_text(json.dumps({name: made[name].tolist() for name in ("rule", "stim")}))
    assert torch.equal(read_questions(path), join_rows(made["rule"], made["stim"]))
    path.write_text(json.dumps({name: made[name][1].tolist() for name in ("rule", "stim")}))
    assert torch.equal(read_questions(path), join_rows(made["rule"], made["stim"])[1:2])
    empty = {"rule": rule_of("color of h")[0].tolist(), "stim": stim_of((0, 0, "red", "a"))[0].tolist()}
    for content, error in (({"rule": []}, "no questions"), ("[", "no questions"), (empty, "no answer")):
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        with pytest.raises(UsageError, match=error):
            read_questions(path)


def test_a_sentence_gets_a_scene_with_its_objects() -> None:
    question = "[ if red a exist , then loc of blue b , else shape of white object ]"
    rows = scene_for(question, 3)
    assert rows.shape == (1, 106, 11) and torch.equal(rows, scene_for(question, 3))
    assert not torch.equal(rows, scene_for(question, 4))
    assert all(int(evaluate(*split_rows(scene_for(question, seed))).target) >= 2 for seed in range(5))
