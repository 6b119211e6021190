"""The subnets of Ensem-NN: counts, lengths, padding, what each reads, and one of them by loops in float64."""

from typing import Any

import pytest
import torch
from torch import Tensor

import mereo
from mereo.core import record
from mereo.data.skeletons import KINECT, parts_of
from mereo.errors import UsageError
from mereo.layers.residual_1d import Residual1d, same_padding
from mereo.models.registry import outline
from mereo.models.sequence.skeleton_ensemble import SkeletonNetwork, frame_differences, valid_lengths

SMALL: dict[str, Any] = {
    "num_classes": 3, "frames": 12, "joints": 5, "bodies": 1, "widths": (2, 3), "kernel": 4,
}  # fmt: skip


def made(**given: Any) -> Any:
    torch.manual_seed(0)
    model = SkeletonNetwork(**{**SMALL, **given}).double().eval()
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm1d):
            for value in (module.weight, module.running_var):
                torch.nn.init.uniform_(value, 0.5, 1.5)  # type: ignore[arg-type]
            for value in (module.bias, module.running_mean):
                torch.nn.init.normal_(value)  # type: ignore[arg-type]
    return model


def some(count: int = 2, length: int = 12, **given: Any) -> Tensor:
    model = made(**given)
    return torch.randn(count, length, model.input_shape[1], dtype=torch.float64)


@pytest.mark.parametrize(
    ("preset", "arguments", "count"),
    [
        ("skeleton_base", {}, 1_874_876), ("skeleton_base", {"kind": "spatial"}, 1_951_676),
        ("skeleton_two_stream", {}, 3_826_552), ("skeleton_parts", {}, 9_082_540),
        ("skeleton_attention", {}, 2_138_257), ("skeleton_difference", {}, 1_874_364),
        ("skeleton_ensemble", {}, 16_921_713),
    ],
)  # fmt: skip
def test_counts_of_the_paper(preset: str, arguments: dict[str, Any], count: int) -> None:
    assert sum(p.numel() for p in outline(preset, **arguments).parameters()) == count


def test_counts_by_kind_of_layer() -> None:
    base = Residual1d(150)
    counts = [sum(p.numel() for p in part.parameters()) for part in (base.stem, base.shortcuts, base.norm)]
    assert counts == [76_864, 41_344, 512]
    units = {type(m).__name__: 0 for m in base.units.modules()}
    for module in base.units.modules():
        units[type(module).__name__] += sum(p.numel() for p in module.parameters(recurse=False))
    assert (units["SameConv1d"], units["BatchNorm1d"]) == (1_738_048, 2_688)
    parts = outline("skeleton_parts")
    assert parts.streams[0].stem.weight.shape == (5 * 64, 36, 8)
    assert sum(p.numel() for p in SkeletonNetwork(kind="parts", parts=((0, 1, 2, 3, 4, 5),)).parameters()) == 1_816_508


def test_lengths_and_padding() -> None:
    assert [same_padding(300, 8, s) for s in (1, 2)] == [(3, 4), (3, 3)]
    assert [same_padding(75, 8, 2), same_padding(75, 1, 2)] == [(3, 4), (0, 0)]
    for steps, expected in ((300, [300, 150, 75]), (150, [150, 75, 38])):
        network, seen = Residual1d(6, (2, 3, 4)).eval(), list[int]()
        for place in (2, 5, 8):
            network.units[place].register_forward_hook(lambda *call, seen=seen: seen.append(call[2].shape[-1]))
        network.maps(torch.zeros(1, 6, steps))
        assert seen == expected


def convolved(x: Tensor, layer: Any) -> Tensor:
    """Brute-force correlation with zeros outside: (channels, steps) -> (filters, steps / stride)."""
    (kernel,), (stride,) = layer.kernel_size, layer.stride
    steps = -(-x.shape[1] // stride)
    left = max((steps - 1) * stride + kernel - x.shape[1], 0) // 2
    out = torch.zeros(len(layer.weight), steps, dtype=x.dtype)
    for f in range(len(layer.weight)):
        for t in range(steps):
            out[f, t] = layer.bias[f]
            for k in range(kernel):
                if 0 <= (place := t * stride + k - left) < x.shape[1]:
                    out[f, t] += layer.weight[f, :, k] @ x[:, place]
    return out


def normed(x: Tensor, norm: Any) -> Tensor:
    scale = norm.weight / (norm.running_var + 1e-3).sqrt()
    return ((x - norm.running_mean[:, None]) * scale[:, None] + norm.bias[:, None]).relu()


@pytest.mark.parametrize("kind", ["base", "spatial", "attention"])
def test_a_network_by_loops(kind: str) -> None:
    model, inputs = made(kind=kind, centre=0.3), some(1)
    inputs[:, 9:] = 0
    with torch.no_grad():
        found = model(inputs)
        x = inputs[0].clone()
        x[:9] -= 0.3
        if kind == "attention":
            for t in range(12):
                shares = model.attend.score(model.attend.hidden(x[t]).tanh()).softmax(0)
                x[t] = x[t] * shares
        network = model.streams[0]
        h = convolved(x if kind == "spatial" else x.T, network.stem)
        for group in (0, 1):
            branch = h
            for unit in network.units[3 * group : 3 * group + 3]:
                layers = list(unit)
                if kind == "attention":
                    branch = convolved(normed(branch, layers[0]), layers[3])
                else:
                    branch = normed(convolved(branch, layers[0]), layers[1])
            h = branch + (convolved(h, network.shortcuts[group]) if group else h)
            if kind == "attention":
                attention = network.attention[group]
                scores = convolved(convolved(branch, attention.hidden).relu(), attention.score)[0]
                h = h * scores.softmax(0)
        h = h if kind == "attention" else normed(h, network.norm)
        scores = model.head.weight[0] @ h.mean(1) + model.head.bias[0]
    torch.testing.assert_close(found[0], scores.log_softmax(0))


def test_the_released_block_attention_changes_nothing() -> None:
    model, inputs = made(kind="attention", block_attention="legacy"), some()
    without = made(kind="attention", block_attention="none")
    without.load_state_dict(model.state_dict(), strict=False)
    before = model(inputs)
    torch.testing.assert_close(before, without(inputs))
    before.sum().backward()
    for parameter in model.streams[0].attention.parameters():
        assert not parameter.grad.any()
        torch.nn.init.normal_(parameter)
    torch.testing.assert_close(model(inputs), before)


def test_differences_of_a_constant_sequence_are_zero_but_for_the_released_spike() -> None:
    frames = torch.full((2, 6, 3), 0.7)
    frames[0, 4:] = 0
    valid = (torch.arange(6) < torch.tensor([[4], [6]])).unsqueeze(-1)
    assert not frame_differences(frames, valid).any()
    spike = frame_differences(frames, None)
    assert spike[0, 4].tolist() == pytest.approx([-0.7] * 3) and int((spike != 0).any(-1).sum()) == 1
    inputs = some(1)
    inputs[:, 8:] = 0
    one, other = (made(kind="difference", end_spike=spike)(inputs) for spike in (False, True))
    assert (one - other).abs().max() > 1e-6


def test_frames_of_zeros_at_the_end_are_padding() -> None:
    frames = torch.zeros(3, 5, 2)
    frames[0, :3], frames[1, :, 1] = -1.0, -2.0
    frames[0, 1] = 0  # a frame that was skipped
    assert valid_lengths(frames).tolist() == [3, 5, 0]
    model, inputs = made(centre=0.2), some()
    inputs[0, 7:] = 0
    torch.testing.assert_close(model(inputs), model(inputs, torch.tensor([7, 12])))
    assert (model(inputs)[0] - model(inputs, torch.tensor([12, 12]))[0]).abs().max() > 1e-6


def test_a_shift_of_four_frames_moves_features_by_a_step() -> None:
    torch.manual_seed(0)
    network = Residual1d(3, (2, 3, 4)).double().eval()
    pattern = torch.zeros(1, 3, 320, dtype=torch.float64)
    pattern[..., 150:170] = torch.randn(3, 20)
    with torch.no_grad():
        first, second = network.maps(pattern), network.maps(pattern.roll(4, -1))
    inside = slice(20, 60)  # beyond the reach of both ends
    torch.testing.assert_close(second[..., 21:61], first[..., inside])
    assert first[..., inside].std() > 0


def test_five_networks_are_one_grouped_convolution() -> None:
    model, inputs = made(kind="parts"), some()
    grouped = model.streams[0]
    with torch.no_grad():
        features = model.forward_features(inputs)
        padded = torch.nn.functional.pad(inputs, (0, 1))
        for number, places in enumerate(torch.tensor(parts_of(5, 1))):
            alone = Residual1d(len(places), (2, 3), kernel=4).double().eval()
            own = {}
            for name, value in grouped.state_dict().items():
                size = dict(alone.named_parameters(), **dict(alone.named_buffers()))[name].shape
                own[name] = value.view(5, *size)[number] if value.dim() else value
            alone.load_state_dict(own)
            torch.testing.assert_close(features[:, number], alone(padded[..., places].mT)[:, 0])


def test_parts_of_the_kinect_skeleton() -> None:
    places = torch.tensor(parts_of(25, 2))
    assert places.shape == (5, 36)
    for row, part in zip(places, KINECT.parts, strict=True):
        for body in (0, 1):
            slots = row.view(2, 6, 3)[body]
            for slot in range(6):
                expected = [75 * body + 3 * part[slot] + c for c in range(3)] if slot < len(part) else [150] * 3
                assert slots[slot].tolist() == expected
    assert [len(part) for part in KINECT.parts] == [6, 6, 4, 4, 5]
    assert sorted(joint for part in KINECT.parts for joint in part) == list(range(25))
    assert KINECT.mirrored[KINECT.parts[0][2]] == KINECT.parts[1][2] and KINECT.mirrored[3] == 3


def test_couplings_of_attention_are_recorded() -> None:
    model, inputs = made(kind="attention"), some()
    with record(model) as trace:
        model(inputs)
    names = [name for name, kind in trace.kinds.items() if kind == "couplings"]
    assert names == ["attend.coupling", "streams.0.attention.0.coupling", "streams.0.attention.1.coupling"]
    for name, shape in zip(names, ((2, 1, 12, 15), (2, 1, 1, 12), (2, 1, 1, 6)), strict=True):
        (couplings,) = trace.steps(name)
        assert couplings.shape == shape
        torch.testing.assert_close(couplings.sum(-1), torch.ones_like(couplings[..., 0]))


def test_the_penalty_is_the_sum_of_magnitudes_of_filters() -> None:
    model = made(l1=0.5).train()
    model(some())
    (loss,) = mereo.added_losses(model).values()
    expected = sum(m.weight.abs().sum() for m in model.streams.modules() if hasattr(m, "kernel_size"))
    torch.testing.assert_close(loss, 0.5 * expected)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"kind": "three"}, "kind is 'three'"), ({"fusion": "sum"}, "fusion is 'sum'"), ({"joints": 0}, "joints is 0"),
        ({"block_attention": "all"}, "block_attention is 'all'"), ({"l1": -1.0}, "l1 is -1"),
        ({"kind": "parts", "parts": ((0, 5),)}, "parts is ((0, 5),)"), ({"widths": (2, 0)}, "widths[1] is 0"),
    ],
)  # fmt: skip
def test_wrong_arguments(given: dict[str, Any], name: str) -> None:
    with pytest.raises(UsageError) as error:
        SkeletonNetwork(**{**SMALL, **given})
    assert name in str(error.value)


def test_wrong_inputs() -> None:
    model, inputs = made(), some()
    for wrong, lengths, value in (
        (inputs[:, :5], None, "(2, 5, 15)"), (inputs[..., :12], None, "(2, 12, 12)"), (inputs.long(), None, "int64"),
        (inputs, torch.tensor([3]), "(1,)"), (inputs, torch.tensor([0, 3]), "hold 0"),
        (inputs, torch.tensor([13, 3]), "hold 13"),
    ):  # fmt: skip
        with pytest.raises(UsageError) as error:
            model(wrong, lengths)
        assert value in str(error.value)
