"""Weights for images of another size, and networks for large images."""

import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor

import mereo
from mereo.errors import UsageError
from mereo.layers import resize_positions
from mereo.models.capsule_sizes import nearest_members, over_grid
from mereo.models.pretrained import fill
from mereo.models.registry import outline
from mereo.models.weights import load_tensors, save_tensors

SMALL = {"channels": (4, 6, 8), "depth": 1, "num_classes": 3, "in_chans": 1}


@pytest.mark.parametrize(
    ("side", "reduction", "grids", "parameters"),
    [
        (32, 1, [(8, 8), (4, 4), (2, 2)], 344_320),
        (63, 1, [(15, 15), (8, 8), (4, 4)], 899_144),
        (64, 2, [(8, 8), (4, 4), (2, 2)], 344_320),
        (128, 4, [(8, 8), (4, 4), (2, 2)], 344_320),
        (224, 4, [(14, 14), (7, 7), (3, 3)], 620_792),
    ],
)
def test_the_stem_follows_the_image_and_adds_no_weights(
    side: int, reduction: int, grids: list[tuple[int, int]], parameters: int
) -> None:
    model = outline("mspcaps_tiny", img_size=side, num_classes=10, in_chans=3)
    assert [stage["reduction"] for stage in model.feature_info] == [reduction, 2 * reduction, 4 * reduction]
    assert model.grids == grids
    assert sum(p.numel() for p in model.parameters()) == parameters
    small = outline("mspcaps_tiny", num_classes=10, in_chans=3).state_dict()
    blocks = {name: x.shape for name, x in model.state_dict().items() if name.startswith("blocks")}
    assert blocks == {name: x.shape for name, x in small.items() if name.startswith("blocks")}


@pytest.mark.parametrize(("side", "reduction"), [((65, 97), 2), ((130, 64), 4), ((20, 33), 1)])
def test_maps_have_the_sides_that_are_stated(side: tuple[int, int], reduction: int) -> None:
    model = mereo.create_model("mspcaps_tiny", img_size=side, **SMALL).eval()
    maps = model.forward_intermediates(torch.rand(1, 1, *side), intermediates_only=True)
    for i, each in enumerate(maps):
        assert each.shape[2:] == tuple(-(-s // (reduction * 2**i)) for s in side)
    explicit = mereo.create_model("mspcaps_tiny", img_size=side, stem_reduction=reduction, **SMALL).eval()
    explicit.load_state_dict(model.state_dict())
    images = torch.rand(2, 1, *side)
    torch.testing.assert_close(explicit(images), model(images))


def test_the_first_map_of_a_large_image_from_its_definition() -> None:
    model = mereo.create_model("mspcaps_tiny", img_size=128, **SMALL).eval()
    images = torch.rand(1, 1, 128, 128)
    convolution, norm = model.blocks[0].entry
    entry = norm(torch.nn.functional.conv2d(images, convolution.weight, stride=2, padding=1)).relu()
    expected = torch.zeros(1, 4, 32, 32)
    for row in range(32):
        for column in range(32):
            top, left = max(2 * row - 1, 0), max(2 * column - 1, 0)
            expected[..., row, column] = entry[..., top : 2 * row + 2, left : 2 * column + 2].amax((-2, -1))
    torch.testing.assert_close(model.stage(0, images), expected)


@pytest.mark.parametrize("wrong", [0, 3, 128, -1, True * 5])
def test_a_wrong_reduction_is_refused(wrong: int) -> None:
    with pytest.raises(UsageError, match=f"stem_reduction is {wrong}"):
        mereo.create_model("mspcaps_tiny", stem_reduction=wrong)
    with pytest.raises(UsageError, match="img_size is 16 x 16"):
        mereo.create_model("mspcaps_tiny", img_size=16, stem_reduction=8)


def test_transforms_are_interpolated_like_positions() -> None:
    weight = torch.randn(3, 6, 2, 5)
    moved = over_grid(weight, (2, 3), (4, 5))
    assert moved.shape == (3, 20, 2, 5)
    for receiver in range(3):
        for d in range(2):
            table = weight[receiver, :, d].unsqueeze(0)
            torch.testing.assert_close(moved[receiver, :, d], resize_positions(table, (2, 3), (4, 5))[0])


def test_members_come_from_the_nearest_cell() -> None:
    # Cells of a 1 x 2 grid with 2 members each, for a 2 x 3 grid with 3: cells 0 1 | 0 1 1, both rows alike.
    row = [0, 1, 0, 2, 3, 2, 2, 3, 2]
    assert nearest_members((1, 2), (2, 3), 2, 3).tolist() == 2 * row
    assert nearest_members((3, 3), (3, 3), 4, 4).tolist() == list(range(36))


OPTIONS: list[dict[str, object]] = [
    {}, {"share_weights": False, "pose_dims": (4, 6, 8)}, {"coupling_over": "receivers"}, {"scales": (0, 1)},
    {"scales": (0, 2), "share_weights": False, "pose_dims": (4, 6, 8)}, {"scales": (1,)}, {"routing": "dynamic"},
]  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize(("old", "new"), [((32, 32), (48, 40)), ((40, 64), (32, 32)), ((32, 32), (64, 64))], ids=str)
def test_weights_of_every_variant_fit_other_sizes(
    options: dict[str, object], old: tuple[int, int], new: tuple[int, int]
) -> None:
    arguments = {**SMALL, **options}
    source = mereo.create_model("mspcaps_tiny", img_size=old, **arguments).eval()
    model = mereo.create_model("mspcaps_tiny", img_size=new, **arguments).eval()
    fresh = {name: x.clone() for name, x in model.state_dict().items()}
    filled = fill(model, source.state_dict(), source.config, "source")
    own, given = model.state_dict(), source.state_dict()
    assert {name.partition(".")[0] for name in own} >= {*filled.moved, *filled.unfit}
    for name in own:
        if name.partition(".")[0] not in (*filled.moved, *filled.unfit):
            assert torch.equal(own[name], given[name])
        if name.partition(".")[0] in filled.unfit and "weight" in name:
            assert torch.equal(own[name], fresh[name]) or own[name].shape == given[name].shape
    if source.grids != model.grids and options.get("routing") != "dynamic":
        assert filled.unfit == () and {"head", "patchify"} <= set(filled.moved)
        assert "moved to" in filled.resized
    assert model(torch.rand(2, 1, *new)).isfinite().all()


def test_equal_grids_keep_every_weight_and_the_predictions_of_wide_patches() -> None:
    source = mereo.create_model("mspcaps_tiny", img_size=32, **SMALL).eval()
    model = mereo.create_model("mspcaps_tiny", img_size=64, **SMALL).eval()
    filled = fill(model, source.state_dict(), source.config, "source")
    assert filled.resized is None and filled.new == ()
    for name, value in source.state_dict().items():
        assert torch.equal(model.state_dict()[name], value)


def test_a_constant_image_gives_the_same_scores_at_another_size() -> None:
    """With equal positions and votes everywhere, the number of patches does not matter, whatever parents sum over."""
    for over, tolerance in (("senders", 1e-5), ("receivers", 0.01)):
        arguments = {**SMALL, "coupling_over": over}
        source = mereo.create_model("mspcaps_tiny", img_size=32, **arguments).eval()
        with torch.no_grad():
            for name, x in source.named_parameters():
                if name.startswith("patchify") and name.endswith("position"):
                    x.copy_(x[:1].expand_as(x))
                if name in ("middle.weight", "head.weight"):
                    x.copy_(x[:, :1].expand_as(x) if name == "head.weight" else x[:1, :1].expand_as(x))
        model = mereo.create_model("mspcaps_tiny", img_size=48, **arguments).eval()
        fill(model, source.state_dict(), source.config, "source")
        parts = {32: {}, 48: {}}
        for side, each in ((32, source), (48, model)):
            # The same capsules in every patch, without borders.
            capsules = {i: torch.ones(1, rows * columns, d) * torch.linspace(-1, 1, d)
                        for i, ((rows, columns), d) in enumerate(zip(each.grids, (8, 8, 16), strict=True))}  # fmt: skip
            middle = each.middle(capsules[0][:, each.order], capsules[1])
            parts[side] = each.head(middle, capsules[2])
        torch.testing.assert_close(parts[48], parts[32], atol=tolerance, rtol=tolerance)


def test_layers_that_cannot_be_moved_are_new_and_reported(tmp_path: Path) -> None:
    arguments = {"conv_channels": 4, "primary_types": 2, "primary_dim": 4, "class_dim": 4, "num_classes": 3}
    source = mereo.create_model("capsnet", img_size=28, in_chans=1, **arguments).eval()
    mereo.save_weights(tmp_path / "caps.safetensors", source, class_names=("a", "b", "c"))
    with pytest.warns(UserWarning, match="weights for images of 28x28 moved to 32x32: new .*head"):
        model = mereo.create_model("capsnet", weights=tmp_path / "caps.safetensors", img_size=32)
    own, given = model.state_dict(), source.state_dict()
    kept = [name for name in own if own[name].shape == given[name].shape and "head" not in name]
    assert any("conv" in name for name in kept) or kept
    assert all(torch.equal(own[name], given[name]) for name in kept if not name.startswith("decoder"))
    assert model.class_names == () and model(torch.rand(1, 1, 32, 32)).shape == (1, 3)
    with pytest.raises(UsageError, match="do not fit"):
        mereo.create_model("capsnet", weights=tmp_path / "caps.safetensors", img_size=32, primary_dim=8)


def test_bundled_weights_serve_other_sizes() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = mereo.create_model("mspcaps_tiny", pretrained="mnist", img_size=48).eval()
    source = mereo.create_model("mspcaps_tiny", pretrained="mnist")
    assert torch.equal(model.blocks[1].entry[0].weight, source.blocks[1].entry[0].weight)
    assert model.class_names == source.class_names


def test_files_older_than_the_stem_keep_their_maps(tmp_path: Path) -> None:
    path = tmp_path / "old.safetensors"
    model = mereo.create_model("mspcaps_tiny", img_size=64, stem_reduction=1, **SMALL).eval()
    mereo.save_weights(path, model)
    tensors, metadata = load_tensors(path)
    del metadata["args"]["stem_reduction"]
    save_tensors(path, tensors, metadata)
    images: Tensor = torch.rand(2, 1, 64, 64)
    again = mereo.load(path)
    torch.testing.assert_close(again(images), model(images))
    assert mereo.create_model("mspcaps_tiny", weights=path).feature_info[0]["reduction"] == 1
    moved = mereo.create_model("mspcaps_tiny", weights=path, img_size=64)
    torch.testing.assert_close(moved.eval()(images), model(images))
