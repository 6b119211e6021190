"""Scenes of captions: prototypes, noise, pairs, rows and targets by loops, questions, refused options."""

from pathlib import Path

import numpy as np
import pytest
import torch

from mereo.data import load_splits
from mereo.data.captions import (
    CLASSES,
    DESCRIBE,
    END,
    FIRST,
    NO,
    TOKENS,
    YES,
    Scenes,
    ask,
    captions_of,
    draw_scenes,
    named,
    prototypes,
    questions,
    read_scene,
    scene_of,
)
from mereo.data.captions import (
    test_set as held_out,
)
from mereo.errors import UsageError


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_scenes_are_prototypes_in_noise_and_classes_come_in_pairs() -> None:
    torch.testing.assert_close(prototypes().norm(dim=1), torch.full((8,), 2.5))
    for together in (0.9, 0.0):
        scenes = draw_scenes(4000, together, generator())
        pairs = scenes.present.unflatten(1, (4, 2))
        assert pairs.any(2).double().mean().item() == pytest.approx(0.4, abs=0.02)
        both = pairs.all(2).double().sum() / pairs.any(2).sum()
        assert both.item() == pytest.approx(together, abs=0.02)
        assert scenes.present.double().mean(0).std() < 0.02
    empty = scenes.features[~scenes.present.any(1)]
    assert len(empty) and empty.std().item() == pytest.approx(0.9, abs=0.01)
    shown = scenes.features.sum(1) - scenes.present.float() @ prototypes()
    assert shown.std().item() == pytest.approx(0.9 * 4, abs=0.05), "each class is in one cell"


def test_rows_and_targets_by_loops() -> None:
    scenes = draw_scenes(40, 0.5, generator())
    asked = torch.arange(40) % 9 - 1
    rows, targets = ask(scenes, asked, filler=2)
    assert rows.shape == (40, 16 + 2 + 9, 17)
    for row, target, features, present, kind in zip(rows, targets.tolist(), *scenes, asked.tolist(), strict=True):
        classes = [FIRST + c for c in range(8) if present[c]]
        text = classes if kind == -1 else [YES if present[kind] else NO]
        assert target == text + [END] * (9 - len(text))
        assert row[16:, 16].tolist() == [0, 0, DESCRIBE if kind == -1 else FIRST + kind, *target[:-1]]
        assert torch.equal(row[:16, :16], features) and not row[16:, :16].any() and not row[:16, 16].any()
    assert torch.equal(named(captions_of(scenes.present)), scenes.present)
    assert not named(torch.tensor([[END, FIRST, FIRST + 1]])).any()


def test_questions_are_balanced_and_adversarial_ones_ask_for_partners() -> None:
    present = draw_scenes(500, 0.0, generator()).present
    scene, kind = questions(present, "adversarial", generator())
    right = present[scene, kind]
    assert right.double().mean().item() == 0.5
    assert present[scene[~right], kind[~right] ^ 1].all(), "only partners of what is there"
    scene, kind = questions(present, "random", generator())
    assert not present[scene, kind].all() and len(set(zip(scene.tolist(), kind.tolist(), strict=True))) == len(scene)


def test_splits_and_options() -> None:
    one, other = (load_splits("captions:train=30", length=1) for _ in range(2))
    assert one.test.describe() == other.test.describe() != one.validation.describe()  # type: ignore[union-attr]
    assert (len(one.train), len(one.test), one.class_names) == (60, 2200, TOKENS)
    drawn = [one.train.batch(torch.arange(8), generator=generator(seed)).rows for seed in (1, 1, 2)]
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])  # type: ignore[arg-type]
    assert load_splits("captions:train=9,filler=3", length=1).train.image_shape == (1, 28, 17)
    labels = load_splits("captions:together=0", length=1).test.batch(torch.arange(600)).labels
    pairs = named(labels).unflatten(1, (4, 2))
    assert not pairs.all(2).any() and pairs.any()
    for given in ("together=1.5", "filler=-1", "train=0", "negatives=none"):
        with pytest.raises(UsageError) as error:
            load_splits(f"captions:{given}", length=1)
        assert given.partition("=")[0] in str(error.value)


def test_scenes_of_words_and_files(tmp_path: Path) -> None:
    scene = scene_of("fork, cat", 3)
    assert [CLASSES[c] for c in scene.present[0].nonzero().flatten().tolist()] == ["fork", "cat"]
    np.save(tmp_path / "some.npy", scene.features.numpy())
    assert torch.equal(read_scene(tmp_path / "some.npy").features, scene.features)
    np.save(tmp_path / "other.npy", np.zeros((3, 4)))
    with pytest.raises(UsageError) as error:
        read_scene(tmp_path / "other.npy")
    assert "(1, 3, 4)" in str(error.value)
    with pytest.raises(UsageError) as error:
        scene_of("fork, dragon", 0)
    assert "dragon" in str(error.value)
    assert isinstance(held_out(5, 0.9, 0).scenes, Scenes)
