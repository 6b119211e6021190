"""Sequences of joints: files of NTU RGB+D and arrays, folders, what is refused, batches and their augmentation."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mereo.data import Augmentation, Batch, dataset_info, load_splits
from mereo.data.actions import ACTIONS, make
from mereo.data.layout_options import LayoutOptions
from mereo.data.sequence_files import checked, read_item, read_skeleton, sequences_of, to_predict
from mereo.data.sequences import Sequences
from mereo.data.skeletons import FIFTEEN, KINECT
from mereo.errors import MereoError, UsageError


def ntu(frames: list[list[Any]], joints: int = 25) -> str:
    """A file as NTU writes it, from the places (25, 3) of the bodies of each frame."""
    lines = [str(len(frames))]
    for bodies in frames:
        lines.append(str(len(bodies)))
        for number, body in enumerate(bodies):
            lines += [f"7205759403793{number} 0 1 1 1 1 0 0.02 -0.03 2", str(joints)]
            lines += [
                " ".join(f"{x:.6f}" for x in joint) + " 270.1 190.2 1030 520 -0.1 0.9 -0.05 -0.3 2" for joint in body
            ]
    return "\n".join(lines) + "\n"


def body(seed: int) -> Any:
    return np.random.default_rng(seed).normal(size=(25, 3))


def test_frames_of_none_one_two_and_three_bodies() -> None:
    bodies = [body(seed) for seed in range(3)]
    frames = read_skeleton(ntu([bodies[:1], [], bodies[:2], bodies])).view(4, 2, 25, 3).numpy()
    for frame, shown in ((0, 1), (1, 0), (2, 2), (3, 0)):  # more than two bodies are skipped
        for place in (0, 1):
            expected = bodies[place] if place < shown else np.zeros((25, 3))
            np.testing.assert_allclose(frames[frame, place], expected, atol=1e-6)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (ntu([[body(0)], [body(1)]])[:-900], "frame 2 of 2"), (ntu([[np.zeros((20, 3))]], 20), "20 joints"),
        (ntu([[np.full((25, 3), np.nan)]]), "frame 0"), ("0\n", "(0, 2, 25, 3)"), ("", "cut off"),
        (ntu([[], []]), "no body"), ("9000000000 1", "9000000000 frames"),
    ],
    ids=["cut off", "joints", "not finite", "no frames", "empty", "no body", "more frames than numbers"],
)  # fmt: skip
def test_files_that_are_refused(text: str, value: str) -> None:
    with pytest.raises(UsageError) as error:
        read_skeleton(text)
    assert value in str(error.value)


@pytest.mark.parametrize(
    ("array", "value"),
    [
        (np.zeros((0, 5, 3)), "(0, 5, 3)"), (np.ones((4, 5, 2)), "(4, 5, 2)"), (np.ones((4, 7)), "(4, 7)"),
        (np.array([[1.0, 2, 3], [1, np.inf, 3]]), "frame 1"), (np.zeros((4, 6)), "no body"), (np.array(["a"]), "<U1"),
    ],
)  # fmt: skip
def test_arrays_that_are_refused(array: Any, value: str) -> None:
    with pytest.raises(UsageError) as error:
        checked(array)
    assert value in str(error.value)


def classes(folder: Path, lengths: tuple[int, ...] = (3, 5, 4), joints: int = 4) -> Path:
    draw = np.random.default_rng(0)
    for label in ("falls", "walks"):
        for number in range(6):
            (folder / label).mkdir(parents=True, exist_ok=True)
            np.save(folder / label / f"{number}.npy", draw.normal(size=(lengths[number % 3], joints, 3)))
    return folder


def test_a_folder_of_classes(tmp_path: Path) -> None:
    info = dataset_info(classes(tmp_path))
    assert info.fields == ("sequences", "lengths", "labels") and info.num_classes == 2
    assert dict(info.network_arguments) == {"joints": 4, "bodies": 1}
    splits = load_splits(str(tmp_path), length=4, info=info)
    assert {name: len(getattr(splits, name)) for name in info.splits} == dict(info.splits)
    assert sum(info.splits.values()) == 12 and splits.class_names == ("falls", "walks")
    # Names of the classes and frames stay together, whatever the split.
    stored = {label: [np.load(each) for each in (tmp_path / label).iterdir()] for label in splits.class_names}
    for part in (splits.train, splits.validation, splits.test):
        assert part is not None
        batch = part.batch(torch.arange(len(part)))
        assert batch.lengths is not None
        for frames, length, label in zip(batch.sequences, batch.lengths.tolist(), batch.labels.tolist(), strict=True):
            known = [each for each in stored[splits.class_names[label]] if np.allclose(each[0].ravel(), frames[0])]
            assert len(known) == 1 and length == min(len(known[0]), 4) and not frames[length:].any()


def test_broken_sequences_are_named_and_left_out(tmp_path: Path) -> None:
    classes(tmp_path)
    np.save(tmp_path / "walks" / "0.npy", np.full((3, 4, 3), np.nan))
    np.save(tmp_path / "walks" / "1.npy", np.ones((3, 5, 3)))
    (tmp_path / "walks" / "2.npy").write_bytes((tmp_path / "walks" / "3.npy").read_bytes()[:200])
    splits = load_splits(str(tmp_path), length=4, info=dataset_info(tmp_path))
    assert splits.skipped == 3
    reasons = {Path(file).name: reason for _, file, reason in splits.unreadable}
    for name, value in (("0.npy", "frame 0"), ("1.npy", "5 joints"), ("2.npy", str(tmp_path / "walks" / "2.npy"))):
        assert value in reasons[name]
    with pytest.raises(UsageError):
        load_splits(str(tmp_path), length=4, info=dataset_info(tmp_path), strict=True)


def test_names_of_ntu_state_class_and_subject(tmp_path: Path) -> None:
    for subject in (1, 2, 3):
        for action in (13, 43):
            for again in (1, 2):
                name = f"S001C001P{subject:03}R{again:03}A{action:03}.skeleton"
                (tmp_path / name).write_text(ntu([[body(subject)]] * (1 + again)))
    info = dataset_info(tmp_path)
    assert "cross-subject" in info.summary and dict(info.network_arguments) == {"joints": 25, "bodies": 2}
    splits = load_splits(str(tmp_path), length=3, info=info)
    assert splits.class_names == ("A013", "A043") and (len(splits.train), len(splits.test)) == (7, 4)
    first = splits.test.batch(torch.arange(1)).sequences[0, 0, :75].view(25, 3).numpy()
    np.testing.assert_allclose(first, body(3), atol=1e-6)
    (tmp_path / "S001C001P003R001A050.skeleton").write_text(ntu([[body(3)]] * 2))  # of no training subject
    info = dataset_info(tmp_path)
    assert "cross-subject" not in info.summary and dict(info.splits) == {"train": 11, "validation": 1, "test": 1}
    (tmp_path / "walk.skeleton").write_text(ntu([[body(1)]]))
    with pytest.raises(UsageError) as error:
        dataset_info(tmp_path)
    assert "walk.skeleton" in str(error.value)


def test_cameras_divide_files_of_ntu_where_that_is_stated(tmp_path: Path) -> None:
    for camera in (1, 2, 3):
        for action in (13, 43):
            for subject in (1, 3):
                name = f"S001C{camera:03}P{subject:03}R001A{action:03}.skeleton"
                (tmp_path / name).write_text(ntu([[body(camera)]] * 2))
    info = dataset_info(tmp_path, options=LayoutOptions(split_by="camera"))
    assert "cross-view" in info.summary and info.splits["test"] == 4
    splits = load_splits(str(tmp_path), length=3, info=info)
    shown = splits.test.batch(torch.arange(4)).sequences[:, 0, :75].reshape(4, 25, 3).numpy()
    np.testing.assert_allclose(shown, np.broadcast_to(body(1), (4, 25, 3)), atol=1e-6)
    assert "cross-subject" in dataset_info(tmp_path, options=LayoutOptions()).summary
    for path in tmp_path.glob("*C001*"):
        path.unlink()
    for folder in (tmp_path, classes(tmp_path / "arrays")):
        with pytest.raises(UsageError) as error:
            dataset_info(folder, options=LayoutOptions(split_by="camera"))
        assert "split_by" in str(error.value)


def test_tables_of_labels(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(12, 5, 4, 3))
    values[3, 2:] = 0
    labels = ["up" if number % 2 else "down" for number in range(12)]
    one, files = tmp_path / "one", tmp_path / "files"
    one.mkdir()
    np.savez(one / "all.npz", sequences=values)
    (one / "labels.csv").write_text("label\n" + "\n".join(labels) + "\n")
    files.mkdir()
    rows = []
    for number, label in enumerate(labels):
        np.save(files / f"s{number}.npy", values[number][: 2 if number == 3 else 5])
        rows.append(f"s{number}.npy,{label},{'test' if number > 8 else 'train'}")
    (files / "labels.csv").write_text("file,label,split\n" + "\n".join(rows) + "\n")
    for folder, sizes in ((one, (10, 1, 1)), (files, (8, 1, 3))):
        splits = load_splits(str(folder), length=5, info=dataset_info(folder))
        assert (len(splits.train), len(splits.validation or ()), len(splits.test)) == sizes
        every = [part.batch(torch.arange(len(part))) for part in (splits.train, splits.validation, splits.test) if part]
        assert sorted(each for batch in every for each in batch.lengths.tolist()) == [2] + [5] * 11  # type: ignore[union-attr]
    (files / "labels.csv").write_text("file,label\nmissing.npy,up\n")
    (one / "labels.csv").write_text("label\nup\ndown\n")
    untrained = tmp_path / "untrained"
    for split, label in (("train", "up"), ("train", "down"), ("test", "left")):
        (untrained / split / label).mkdir(parents=True)
        for number in range(3):
            np.save(untrained / split / label / f"{number}.npy", values[number])
    for folder, value in ((files, "missing.npy"), (one, "2 rows"), (untrained, "'left'")):
        with pytest.raises(UsageError) as error:
            dataset_info(folder)
        assert value in str(error.value)


def test_sequences_to_predict(tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", np.ones((3, 4, 3)))
    np.savez(tmp_path / "many.npz", sequences=np.ones((2, 6, 4, 3)), lengths=np.array([2, 6]))
    names, each = sequences_of([tmp_path / "one.npy", tmp_path / "many.npz", np.ones((5, 12))])
    assert names == ["one", "many-0", "many-1", "sequence0"] and [len(one) for one in each] == [3, 2, 6, 5]
    batch = to_predict(names, each, (4, 12)).batch(torch.arange(4))
    assert batch.sequences.shape == (4, 4, 12) and batch.labels is None
    with pytest.raises(UsageError) as error:
        to_predict(names, each, (4, 45))
    assert "12 coordinates" in str(error.value) and "45" in str(error.value)
    with pytest.raises(MereoError):
        read_item(tmp_path / "none.npy", None)


def test_long_sequences_give_evenly_spaced_frames() -> None:
    frames = [torch.arange(1.0, 1 + n).unsqueeze(1) for n in (10, 3)]
    part = Sequences.joined(frames, [0, 1], ("a", "b"), 4)
    batch = part.batch(torch.tensor([1, 0]))
    assert batch.sequences[..., 0].tolist() == [[1, 2, 3, 0], [1, 3, 6, 8]]
    assert batch.lengths is not None and batch.lengths.tolist() == [3, 4] and batch.labels.tolist() == [1, 0]
    assert part.subset(torch.tensor([1])).describe() != part.describe()


def changed(text: str, sequences: Tensor, seed: int = 0) -> Batch:
    lengths = (sequences != 0).any(-1).sum(1)
    augmentation = Augmentation.parse([text])
    drawn = augmentation.draw(*sequences.shape, torch.Generator().manual_seed(seed))  # type: ignore[call-arg]
    return augmentation.apply_batch(Batch(sequences=sequences, lengths=lengths), drawn)


def test_turning_keeps_bones_heights_and_padding() -> None:
    sequences = torch.randn(3, 6, 150)
    sequences[:, 4:], sequences[1, :, 75:] = 0, 0
    turned = changed("turn=90", sequences).sequences
    before, after = (each.view(3, 6, 2, 25, 3) for each in (sequences, turned))
    torch.testing.assert_close(after[..., 1], before[..., 1])
    one, other = (torch.cdist(each, each) for each in (before[:, :4, 0], after[:, :4, 0]))
    torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)
    assert ((sequences == 0) == (turned == 0)).all() and (turned - sequences).abs().max() > 0.1


def test_mirroring_exchanges_sides_and_twice_changes_nothing() -> None:
    sequences = torch.randn(8, 2, 45)
    mirrored = changed("mirror", sequences).sequences
    same = (mirrored == sequences).flatten(1).all(1)
    assert 0 < int(same.sum()) < 8
    row = int((~same).nonzero()[0])
    before, after = (each[row].view(2, 15, 3) for each in (sequences, mirrored))
    for right, left in zip(FIFTEEN.parts[0], FIFTEEN.parts[1], strict=True):
        torch.testing.assert_close(after[:, right, 1:], before[:, left, 1:])
    torch.testing.assert_close(changed("mirror", mirrored).sequences, sequences)
    assert sorted(KINECT.mirrored) == list(range(25))
    with pytest.raises(UsageError) as error:
        changed("mirror", torch.randn(1, 2, 12))
    assert "4 joints" in str(error.value)


def test_speed_and_noise() -> None:
    sequences = torch.zeros(1, 8, 3)
    sequences[0, :6] = torch.arange(1.0, 7).unsqueeze(1)
    fast, slow = (changed(f"speed={factor}:{factor}", sequences) for factor in (2, 0.75))
    assert fast.sequences[0, :, 0].tolist() == [1, 3, 5, 0, 0, 0, 0, 0]
    assert slow.sequences[0, :, 0].tolist() == pytest.approx([1, 1.75, 2.5, 3.25, 4, 4.75, 5.5, 6])
    assert fast.lengths is not None and (fast.lengths.item(), slow.lengths.item()) == (3, 8)  # type: ignore[union-attr]
    noisy = changed("joint_noise=0.1", sequences).sequences
    assert not noisy[0, 6:].any() and 0.01 < (noisy - sequences).abs().max() < 1


def test_actions_are_the_same_again_and_differ_by_class() -> None:
    (one, lengths), (again, _), (other, _) = (make(10, seed, 20, 30, 0.0) for seed in (0, 0, 1))
    assert np.array_equal(one, again) and not np.array_equal(one, other)
    assert lengths.min() >= 20 and lengths.max() <= 30 and one.shape == (10, 30, 45)
    joints = one.reshape(10, 30, 15, 3)
    for start, end in FIFTEEN.bones:  # bones keep their lengths
        bone = np.linalg.norm(joints[:, :, start] - joints[:, :, end], axis=-1)
        assert np.ptp(bone, axis=1).max() < (1e-9 if end > 1 else 0.5)
    drop = joints[:, 0, 0, 1] - joints[:, :, 0, 1].min(1)
    assert drop[ACTIONS.index("fall")] > drop[ACTIONS.index("wave")]
    splits = load_splits("actions:train=7", length=10)
    assert splits.class_names == ACTIONS and splits.train.batch(torch.arange(7)).labels.tolist() == [
        0,
        1,
        2,
        3,
        4,
        0,
        1,
    ]
