"""Convolutions of capsules: votes, routings and competition against loops, places of couplings, exactness, refusals."""

from typing import Any

import pytest
import torch
from torch import Tensor

import capsule_loops as loops
from mereo.core import Capsules, intervene, record
from mereo.core.window_votes import WindowVotes
from mereo.errors import UsageError
from mereo.layers.capsules import ConvCapsules
from mereo.mechanisms.routing import VOTE_ROUTINGS

D = torch.float64
GEOMETRY = {
    "stride 2": {"kernel": 3, "stride": 2},
    "padded": {"kernel": (2, 3), "stride": (1, 2), "padding": (1, 0)},
    "whole map": {"kernel": None, "size": (5, 4), "shared": True, "coordinates": True},
    "places of parents": {"kernel": 2, "coordinates": True, "coordinates_of": "parents"},
}


def some(in_types: int = 2, out_types: int = 3, **options: Any) -> tuple[ConvCapsules, Tensor, Tensor]:
    torch.manual_seed(0)
    layer = ConvCapsules(in_types, out_types, **{"in_pose": (2, 2), **options}).double()
    for name, parameter in layer.named_parameters():
        if name != "weight":
            torch.nn.init.normal_(parameter, std=0.5)
    poses = torch.randn(2, in_types, *layer.in_pose, 5, 4, dtype=D)
    return layer, poses, torch.rand(2, in_types, 5, 4, dtype=D)


@pytest.mark.parametrize(
    "options",
    [
        {"in_pose": (2, 3), "out_pose": (2, 4), "kernel": 3, "stride": 2},
        {"in_pose": (2, 3), "out_pose": (2, 2), "kernel": (2, 3), "padding": (1, 2), "coordinates": True},
        {"pose": "vector", "in_pose": (3,), "out_pose": (5,), "kernel": 2, "coordinates": (1, 4)},
        {"pose": "complex", "in_pose": (2, 3), "out_pose": (2, 2), "kernel": 2, "stride": 2, "coordinates": (3, 0)},
        {"kernel": None, "size": (5, 4), "shared": True, "coordinates": (0, 1), "coordinate_offset": 0.0},
    ],
)
def test_votes_equal_loops(options: dict[str, Any]) -> None:
    layer, poses, _ = some(**options)
    made = layer.votes(poses)
    tiles = made.windows.of_types(layer.in_types, layer.out_types)
    votes, count = made.dense().squeeze(1).unflatten(0, (2, -1)), made.windows.count
    for image in range(2):
        expected = loops.all_votes(layer, poses[image])
        for window in range(count):
            for s, child in enumerate(tiles.senders[window].tolist()):
                for r, parent in enumerate(tiles.receivers[window].tolist()):
                    if child < 0:
                        assert (votes[image, window, r, s] == 0).all()
                        continue
                    t, cell = divmod(child, 20)
                    kind, place = divmod(parent, count)
                    where = (kind, *divmod(place, made.windows.sides[1])), (t, *divmod(cell, 4))
                    torch.testing.assert_close(votes[image, window, r, s], expected.pop(where))
        assert not expected


def test_coordinates_are_added_to_two_entries_in_full_precision() -> None:
    layer, poses, _ = some(kernel=None, size=(5, 4), shared=True, coordinates=True)
    plain, _, _ = some(kernel=None, size=(5, 4), shared=True)
    added = (layer.votes(poses).dense() - plain.votes(poses).dense()).squeeze(1).unflatten(2, (5, 4, 2))
    rows = (torch.arange(5, dtype=D) + 0.5).view(5, 1, 1) / 5
    columns = (torch.arange(4, dtype=D) + 0.5).view(1, 4, 1) / 4
    zeros = torch.zeros(5, 4, 2, dtype=D)
    expected = torch.stack((zeros, rows + zeros, zeros, columns + zeros), -1)
    torch.testing.assert_close(added, expected.expand_as(added), rtol=0, atol=1e-14)


@pytest.mark.parametrize("compete", ["positions", "window"])
@pytest.mark.parametrize("geometry", GEOMETRY)
def test_em_equals_loops(geometry: str, compete: str) -> None:
    layer, poses, present = some(compete=compete, **GEOMETRY[geometry])
    parents = layer(poses, present)
    for image in range(2):
        means, activations = loops.em(layer, poses[image], present[image])
        torch.testing.assert_close(parents.pose[image], loops.as_maps(means, (2, 2)))
        torch.testing.assert_close(parents.activation[image], loops.as_maps(activations))


@pytest.mark.parametrize(
    "options",
    [
        {"steps": 1, "inverse_temperature": 0.3},
        {"steps": 2, "schedule": "constant", "inverse_temperature": 1e-3, "renormalise": True},
        {"steps": 2, "floor": "clamped", "variance_floor": 0.5, "cost_per_children": True},
    ],
)
def test_em_with_options_equals_loops(options: dict[str, Any]) -> None:
    layer, poses, present = some(kernel=3, stride=2, routing_options=options)
    parents = layer(poses, present)
    means, activations = loops.em(layer, poses[0], present[0])
    torch.testing.assert_close(parents.pose[0], loops.as_maps(means, (2, 2)))
    torch.testing.assert_close(parents.activation[0], loops.as_maps(activations))


@pytest.mark.parametrize("compete", ["positions", "window"])
@pytest.mark.parametrize("geometry", GEOMETRY)
@pytest.mark.parametrize("routing", ["dynamic", "self_attention"])
def test_other_routings_equal_loops(routing: str, geometry: str, compete: str) -> None:
    layer, poses, _ = some(compete=compete, routing=routing, **GEOMETRY[geometry])
    if routing == "self_attention":
        torch.nn.init.zeros_(layer.routing.log_prior)
    parents = layer(poses)
    expected = loops.as_maps(getattr(loops, routing)(layer, poses[0]), (2, 2))
    torch.testing.assert_close(parents.pose[0], expected)
    torch.testing.assert_close(parents.activation[0], expected.flatten(1, 2).norm(dim=1))


@pytest.mark.long
@pytest.mark.parametrize("compete", ["positions", "window"])
@pytest.mark.parametrize("routing", ["em", "dynamic", "self_attention"])
def test_gradients(routing: str, compete: str) -> None:
    layer, poses, present = some(1, 2, kernel=2, padding=1, compete=compete, routing=routing, coordinates=True)
    poses, present = poses[:1, ..., :3, :2], 0.1 + 0.8 * present[:1, ..., :3, :2]
    names, parameters = zip(*layer.named_parameters(), strict=True)

    def call(poses: Tensor, present: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (poses, present)))

    inputs = (poses.contiguous().requires_grad_(), present.contiguous().requires_grad_(), *parameters)
    assert torch.autograd.gradcheck(call, inputs)


def test_vector_windows_use_the_passes_without_votes() -> None:
    """The same by compiled passes, by the verbs without votes, and by stored votes."""
    layer, poses, _ = some(pose="vector", in_pose=(3,), kernel=3, compete="window", routing="dynamic")
    votes = layer.votes(poses)
    assert layer.routing._can_fuse(votes)
    fused = layer.routing(votes).pose
    for method in ("streamed", "stored"):
        votes = layer.votes(poses)
        votes.method = method
        torch.testing.assert_close(layer.routing(votes).pose, fused)


@pytest.mark.parametrize("pose", ["matrix", "vector"])
def test_verbs_agree_with_stored_votes(pose: str) -> None:
    shape = (2, 3) if pose == "matrix" else (3,)
    layer, poses, _ = some(pose=pose, in_pose=shape, kernel=3, stride=2, coordinates=True)
    streamed, stored = layer.votes(poses), layer.votes(poses)
    streamed.method, stored.method = "streamed", "stored"
    windows, receivers, senders, size = stored.sizes
    couplings = torch.rand(windows, 1, receivers, senders, dtype=D)
    parents = torch.randn(windows, 1, receivers, size, dtype=D)
    torch.testing.assert_close(streamed.combine(couplings), stored.combine(couplings))
    torch.testing.assert_close(streamed.agree(parents), stored.agree(parents))
    torch.testing.assert_close(streamed.sum(), stored.dense().sum(3))
    assert streamed._stored is None


def test_couplings_are_shown_over_the_whole_maps() -> None:
    layer, poses, present = some(kernel=3, stride=1)
    with record(layer) as trace:
        layer(poses, present)
    couplings = trace["routing.coupling"]
    assert couplings.shape == (2, 1, 3 * 3 * 2, 2 * 5 * 4)
    # All positions compete: what the parents take of a child is its activation.
    torch.testing.assert_close(couplings.sum(2).squeeze(1), present.flatten(1))
    # Parent (type 1, row 2, column 0) reads rows 2 to 4 and columns 0 to 2.
    read = (couplings[0, 0, 1 * 6 + 2 * 2 + 0].unflatten(0, (2, 5, 4)) > 0).all(0)
    expected = torch.zeros(5, 4, dtype=torch.bool)
    expected[2:, :3] = True
    assert torch.equal(read, expected)


def test_in_one_window_a_child_counts_whole_in_every_window() -> None:
    layer, poses, present = some(kernel=3, stride=1, compete="window")
    with record(layer) as trace:
        layer(poses, present)
    windows = torch.nn.functional.fold(torch.ones(1, 9, 6, dtype=D), (5, 4), 3).squeeze()
    torch.testing.assert_close(trace["routing.coupling"].sum(2).unflatten(-1, (2, 5, 4)).squeeze(1), present * windows)


@pytest.mark.parametrize("routing", sorted(VOTE_ROUTINGS))
def test_without_couplings_no_input_has_influence(routing: str) -> None:
    layer, poses, present = some(kernel=3, routing=routing)
    with intervene(layer, {"routing.coupling": torch.zeros_like}):
        first, second = layer(poses, present), layer(3 * poses.flip(0), present.flip(0))
    torch.testing.assert_close(first, second)


KINDS: list[dict[str, Any]] = [
    {"pose": "matrix", "in_pose": (2, 2)},
    {"pose": "vector", "in_pose": (4,)},
    {"pose": "complex", "in_pose": (2, 2)},
]


@pytest.mark.parametrize("options", KINDS, ids=lambda each: each["pose"])
@pytest.mark.parametrize("routing", sorted(VOTE_ROUTINGS))
def test_every_routing_runs_on_every_pose(routing: str, options: dict[str, Any]) -> None:
    """Zero and huge inputs, half precision, one sample, and a batch of none."""
    torch.manual_seed(0)
    layer = ConvCapsules(2, 3, 3, 2, padding=1, routing=routing, coordinates=True, **options)
    poses, present = torch.randn(1, 2, *layer.in_pose, 5, 5), torch.rand(1, 2, 5, 5)
    expected: Capsules = layer(poses, present)
    assert expected.pose.shape == (1, 3, *layer.out_pose, 3, 3) and expected.activation.shape == (1, 3, 3, 3)
    for scale, share in ((0, 0), (0, 1), (1e15, 1)):
        layer.zero_grad()
        inputs = (scale * poses).requires_grad_(), (share * present).requires_grad_()
        parents = layer(*inputs)
        (parents.pose.clamp(-1e6, 1e6).sum() + parents.activation.sum()).backward()
        for tensor in (*parents, *(x.grad for x in (*inputs, *layer.parameters()))):
            assert tensor is None or tensor.isfinite().all()
    half = layer.bfloat16()(poses.bfloat16(), present.bfloat16())
    assert half.pose.dtype == torch.bfloat16
    scale = expected.pose.abs().max()
    assert ((half.pose.float() - expected.pose).abs().max() / scale).item() < 0.2
    assert layer.float()(poses[:0], present[:0]).pose.shape[0] == 0


@pytest.mark.parametrize("method", ["auto", "streamed", "stored"])
@pytest.mark.parametrize("routing", sorted(VOTE_ROUTINGS))
def test_autocast_computes_in_float32(routing: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    layer = ConvCapsules(2, 3, 3, 2, routing=routing, in_pose=(2, 2))
    poses, present = torch.randn(2, 2, 2, 2, 5, 5), torch.rand(2, 2, 5, 5)
    made = layer.votes

    def votes(poses: Tensor) -> WindowVotes:
        votes = made(poses)
        votes.method = method
        return votes

    monkeypatch.setattr(layer, "votes", votes)
    expected = layer(poses, present)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(layer(poses, present), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("routing", "compete"),
    [
        ("dynamic", "positions"), *((each, "window") for each in sorted(VOTE_ROUTINGS)),
    ],
)  # fmt: skip
@pytest.mark.long
def test_compiles_and_exports(routing: str, compete: str) -> None:
    torch.manual_seed(0)
    layer = ConvCapsules(2, 3, 3, 2, padding=1, routing=routing, compete=compete, coordinates=True, in_pose=(2, 2))
    inputs = torch.randn(2, 2, 2, 2, 5, 5), torch.rand(2, 2, 5, 5)
    expected = layer(*inputs)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")(*inputs)
    torch.testing.assert_close(compiled, expected, rtol=1e-4, atol=1e-5)
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(layer, inputs, dynamic_shapes=({0: batch}, {0: batch}))
    inputs = torch.randn(3, 2, 2, 2, 5, 5), torch.rand(3, 2, 5, 5)
    torch.testing.assert_close(program.module()(*inputs), layer(*inputs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernel": 6}, "kernel"),
        ({"kernel": None}, "size"),
        ({"pose": "vector"}, "in_pose"),
        ({"in_pose": (2, 2), "out_pose": (3, 2)}, "out_pose"),
        ({"pose": "complex", "in_pose": (3, 2)}, "in_pose"),
        ({"coordinates": (1, 1)}, "coordinates"),
        ({"routing": "emm"}, "em"),
        ({"routing_options": {"step": 2}}, "steps"),
        ({"routing": "dynamic", "routing_options": {"step": 2}}, "step"),
        ({"compete": "all"}, "compete"),
        ({"stride": 0}, "stride"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        layer, poses, present = some(**options)
        layer(poses, present)


def test_wrong_inputs() -> None:
    layer, poses, present = some(kernel=3)
    with pytest.raises(UsageError, match="activation is None"):
        layer(poses)
    with pytest.raises(UsageError, match="poses are"):
        layer(poses[:, :1], present)
    with pytest.raises(UsageError, match="activation is"):
        layer(poses, present[..., :3])


@pytest.mark.parametrize("routing", sorted(VOTE_ROUTINGS))
@pytest.mark.parametrize("sizes", [(6, 5), (5, 6)])
@pytest.mark.parametrize("pose", ["vector", "matrix", "complex"])
def test_every_number_of_a_child_counts_whatever_the_size_of_the_parents(
    routing: str, sizes: tuple[int, int], pose: Any
) -> None:
    first = {"vector": (), "matrix": (3,), "complex": (2,)}[pose]
    shapes = [(*first, size) for size in sizes]
    layer = ConvCapsules(2, 3, 2, in_pose=shapes[0], out_pose=shapes[1], pose=pose, routing=routing, coordinates=True)
    for parameter in layer.routing.parameters():
        torch.nn.init.normal_(parameter)
    poses = torch.randn(2, 2, *shapes[0], 3, 3).requires_grad_()
    parents = layer(poses, torch.rand(2, 2, 3, 3))
    scores = [parents.pose, *([parents.activation] if parents.activation.requires_grad else [])]
    for score in scores:
        (gradient,) = torch.autograd.grad(score.square().sum(), poses, retain_graph=True)
        assert gradient.abs().amax((0, 1, -2, -1)).all(), "a number has no influence"


def test_a_layer_gives_the_size_of_children_itself() -> None:
    with pytest.raises(UsageError, match="sender_dim is 3"):
        ConvCapsules(
            2, 3, 2, in_pose=(6,), out_pose=(5,), pose="vector", routing="self_routing",
            routing_options={"sender_dim": 3},
        )  # fmt: skip
