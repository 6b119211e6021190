"""Mechanisms put into networks of mereo, timm and a user's own, and taken out again."""

import copy
import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest
import timm
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import ddp_steps
import mereo
from mereo.core.operations import forward_operations
from mereo.errors import UsageError
from mereo.surgery.inserted import Inserted
from processes import in_processes, needs_gloo

SIZE = 32


def own() -> nn.Module:
    """A sequence of sequences, which runs all of its children."""
    stages = [nn.Sequential(nn.Conv2d(a, b, 3, 2, 1), nn.ReLU()) for a, b in ((3, 4), (4, 6))]
    return nn.Sequential(*stages, nn.Flatten(), nn.Linear(6 * (SIZE // 4) ** 2, 5))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], dict[str, list[str]]]] = {
    "mereo resnet": (
        lambda: mereo.create_model("resnet20", blocks=1, img_size=SIZE),
        {"stages": ["stages.0", "stages.1", "stages.2"], "blocks": [f"stages.{i}.0.second" for i in range(3)]},
    ),
    "mereo vit": (
        lambda: mereo.create_model("vit_tiny", embed_dim=12, depth=2, img_size=SIZE, patch_size=8),
        {"blocks": ["blocks.0.attn", "blocks.1.attn"]},
    ),
    "timm resnet": (
        lambda: timm.create_model("test_resnet", zero_init_last=False),
        {"stages": [f"layer{i}" for i in range(1, 5)]},
    ),
    "timm vit": (lambda: timm.create_model("test_vit", img_size=SIZE), {"stages": [f"blocks.{i}" for i in range(6)]}),
    "own": (own, {"stages": ["0", "1"]}),
}
CASES = [(name, where) for name, (_, places) in NETWORKS.items() for where in places]


def opened(model: nn.Module) -> nn.Module:
    """A copy whose gains are one."""
    model = copy.deepcopy(model)
    for module in model.modules():
        if isinstance(module, Inserted):
            nn.init.ones_(module.gain)
    return model


@pytest.mark.parametrize(("network", "where"), CASES)
def test_a_network_is_the_same_until_it_learns_and_after_removal(network: str, where: str) -> None:
    make, places = NETWORKS[network]
    model, images = make().eval(), torch.randn(2, 3, SIZE, SIZE)
    plain, state = model(images), model.state_dict()
    done = mereo.insert(model, "squeeze_excite", where, img_size=SIZE, hidden=2)
    assert list(done.places) == places[where]
    assert done.parameters[1] == sum(p.numel() for p in model.parameters()) > done.parameters[0]
    assert done.multiply_adds[1] > done.multiply_adds[0] and "squeeze_excite" in str(done)
    assert torch.equal(model(images), plain) and set(state) < set(model.state_dict())
    other = opened(model)
    assert not torch.equal(other(images), plain) and torch.equal(model(images), plain)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(images), plain)
    mereo.remove(model)
    assert torch.equal(model(images), plain) and list(model.state_dict()) == list(state)


@pytest.mark.long
@pytest.mark.parametrize("network", ["mereo resnet", "timm vit"])
def test_what_is_inserted_trains_compiles_and_exports(network: str) -> None:
    model, images = NETWORKS[network][0](), torch.randn(2, 3, SIZE, SIZE)
    mereo.insert(model, "multi_head", "blocks", img_size=SIZE, heads=2)
    model(images).square().mean().backward()
    gains = [module.gain for module in model.modules() if isinstance(module, Inserted)]
    assert gains and all(gain.grad is not None and gain.grad.any() for gain in gains)
    model = opened(model).eval()
    with torch.no_grad():
        expected = model(images)
        torch.compiler.reset()
        compiled = torch.compile(model, fullgraph=True, backend="eager")(images)
        torch.testing.assert_close(compiled, expected, rtol=1e-4, atol=1e-4)
        exported = torch.export.export(model, (images,)).module()(images)
        torch.testing.assert_close(exported, expected, rtol=1e-4, atol=1e-4)


def test_names_several_insertions_and_the_record_of_them() -> None:
    model = mereo.create_model("resnet20", blocks=1, img_size=SIZE).eval()
    images = torch.randn(1, 3, SIZE, SIZE)
    plain, config = model(images), dict(model.config)
    mereo.insert(model, "efficient_channel_gate", "stages.[01]", start=1.0)
    once = model(images)
    assert not torch.equal(once, plain)
    mereo.insert(model, "squeeze_excite", ["stages.0"], start=1.0)
    assert not torch.equal(model(images), once)
    assert [entry["args"]["name"] for entry in model.config["surgery"]] == ["efficient_channel_gate", "squeeze_excite"]
    mereo.remove(model)
    assert torch.equal(model(images), plain) and model.config == config


@pytest.mark.parametrize(
    ("name", "where", "words"),
    [("em", "stages", "em"), ("squeeze_excite", "stage.*", "stage"), ("squeeze_excite", "head", "head")],
)
def test_what_cannot_be_inserted_is_named_and_nothing_changes(name: str, where: str, words: str) -> None:
    model = mereo.create_model("resnet20", blocks=1, img_size=SIZE)
    keys = list(model.state_dict())
    with pytest.raises(UsageError, match=words):
        mereo.insert(model, name, where)
    assert list(model.state_dict()) == keys and "surgery" not in model.config


class Found(NamedTuple):
    maps: Tensor
    mean: Tensor


class Pair(nn.Module):
    """Returns a named tuple, behind functions and a layer that runs twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(6, 6, 3, padding=1)

    def forward(self, x: Tensor) -> Found:
        maps = self.conv(self.conv(x).relu())
        return Found(maps, maps.mean((2, 3)))


class Unusual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.pair = nn.Conv2d(3, 6, 3, 2, 1), Pair()

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        found = self.pair(torch.relu(self.stem(x)))
        return {"mean": found.maps.mean((2, 3)), "before": found.mean}


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_named_tuples_shared_layers_and_functions(memory_format: torch.memory_format) -> None:
    model = Unusual().eval().to(memory_format=memory_format)
    images = torch.randn(2, 3, 8, 8).to(memory_format=memory_format)
    plain = model(images)
    assert mereo.insert(model, "squeeze_excite", "pair", img_size=8).places == ("pair",)
    same, opens = model(images), opened(model)(images)
    assert torch.equal(same["mean"], plain["mean"]) and torch.equal(opens["before"], plain["before"])
    assert not torch.allclose(opens["mean"], plain["mean"])
    mereo.remove(model)
    mereo.insert(model, "squeeze_excite", "pair.conv", img_size=8)
    assert torch.equal(model(images)["mean"], plain["mean"]), "behind both runs of a layer"
    assert torch.equal(mereo.remove(model)(images)["mean"], plain["mean"])


def test_counts_by_hand() -> None:
    for name, parameters, multiply_adds in (
        # Squeeze and excite of 6 channels with 2 hidden ones, and the gains.
        ("squeeze_excite", 6 * 2 + 2 + 2 * 6 + 6 + 6, 2 * 6 * 2),
        # Four projections of 16 cells, queries with keys and couplings with values.
        ("multi_head", 4 * (6 * 6 + 6) + 6, 4 * 16 * 6 * 6 + 2 * 16 * 16 * 6),
    ):
        model = nn.Sequential(nn.Conv2d(3, 6, 3, 2, 1), nn.ReLU())
        arguments = {"hidden": 2} if name == "squeeze_excite" else {}
        done = mereo.insert(model, name, "0", img_size=8, **arguments)
        assert done.parameters == (3 * 6 * 9 + 6, 3 * 6 * 9 + 6 + parameters)
        assert done.multiply_adds == (16 * 3 * 6 * 9, 16 * 3 * 6 * 9 + multiply_adds)


def test_weights_beyond_the_memory_are_refused_before_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    model = timm.create_model("resnet18", num_classes=4)
    monkeypatch.setattr(sys.modules["mereo.surgery.insert"], "free_memory", lambda device: 2**20)
    names = [*model.state_dict()]
    # 16 senders and as many receivers of 128 channels, in float32.
    with pytest.raises(UsageError, match=r"dynamic after layer2 of ResNet has 16 MiB of weights, and 1 MiB of memory"):
        mereo.insert(model, "dynamic", "layer2", img_size=32)
    assert [*model.state_dict()] == names


def test_a_distributed_network_is_refused() -> None:
    wrapped = object.__new__(DistributedDataParallel)
    for change in (lambda: mereo.insert(wrapped, "squeeze_excite"), lambda: mereo.remove(wrapped)):
        with pytest.raises(UsageError, match="DistributedDataParallel"):
            change()


@pytest.mark.long
def test_compiled_networks_are_compiled_again() -> None:
    torch.compiler.reset()
    model, images = own().eval(), torch.randn(2, 3, SIZE, SIZE)
    compiled = torch.compile(model, backend="aot_eager")
    plain = compiled(images)
    mereo.insert(compiled, "squeeze_excite", img_size=SIZE, start=1.0)
    torch.testing.assert_close(compiled(images), model(images))
    assert not torch.allclose(compiled(images), plain)
    assert mereo.remove(compiled) is compiled and torch.equal(compiled(images), plain)


@pytest.mark.long
@needs_gloo
def test_gradients_of_two_processes_are_the_mean_of_both() -> None:
    for differences in in_processes(2, ddp_steps.largest_difference):
        assert max(differences) < 1e-12


def test_a_network_that_reads_no_such_image_is_refused_in_words() -> None:
    with pytest.raises(UsageError, match=r"Embedding cannot read an image of 224 x 224 .*; give img_size"):
        mereo.insert(nn.Embedding(4, 8), "aaren")


def test_a_network_of_transformers_states_its_image_size() -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.ViTConfig(**sizes, image_size=32, patch_size=8)
    model, images = transformers.ViTForImageClassification(config).eval(), torch.rand(1, 3, 32, 32)
    before = model(images).logits
    mereo.insert(model, "aaren", "vit.layers.0")
    torch.testing.assert_close(model(images).logits, before)


def test_operations_of_many_tokens_are_counted_by_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    done = []
    for most in (10**9, 1):
        monkeypatch.setattr(sys.modules["mereo.surgery.insert"], "_MANY", most)
        model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=1, embed_dim=24)
        done.append(mereo.insert(model, "tensor_attention", "attention", img_size=32))
    assert done[0] == done[1]
    # All scores of 4,096 tokens would take 256 GiB.
    attention = mereo.create_mechanism("tensor_attention", dim=4, num_heads=1)
    scores = 2 * 4096**3 * 4
    assert forward_operations(attention, torch.zeros(1, 4096, 4), of_shapes=True) > scores


class Twice(nn.Module):
    """A block that is called with 16 tokens, and then with 4."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.block = nn.Conv2d(3, 8, 8, 8), nn.Linear(8, 8)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.block(self.patches(images).flatten(2).transpose(1, 2))
        return self.block(tokens[:, :4])


def test_a_network_stays_as_it_was_where_a_mechanism_does_not_fit() -> None:
    model, images = Twice(), torch.rand(1, 3, 32, 32)
    mereo.insert(model, "aaren", "block", img_size=32)
    before, names = model(images), [*model.state_dict()]
    with pytest.raises(
        UsageError, match=r"position_routing does not fit after block of Twice: .*the network is as it was"
    ):
        mereo.insert(model, "position_routing", "block", img_size=32)
    assert [*model.state_dict()] == names
    torch.testing.assert_close(model(images), before, rtol=0, atol=0)
    with pytest.raises(UsageError, match="there are 16 patches, and SqueezeExcite was put among 2 x 2 of them"):
        mereo.insert(model, "squeeze_excite", "block", img_size=32)
    mereo.remove(model)
    assert len(names) - len([*model.state_dict()]) > 0 and not hasattr(model, "inserted")


def test_a_stage_that_runs_all_of_its_children_holds_nothing_itself() -> None:
    model = timm.create_model("regnety_002", num_classes=4).eval()
    images = torch.rand(1, 3, 32, 32)
    expected = model(images)
    mereo.insert(model, "squeeze_excite", "blocks", img_size=32)
    torch.testing.assert_close(model(images), expected, rtol=0, atol=0)


@pytest.mark.parametrize("change", [mereo.watchable, mereo.moh, mereo.sea, mereo.evit])
def test_attention_with_rotary_positions_is_refused(change: Callable[[nn.Module], nn.Module]) -> None:
    model = timm.create_model("eva02_tiny_patch14_224", img_size=28, embed_dim=24, depth=1, num_heads=3)
    with pytest.raises(UsageError, match="computes something else"):
        change(model)


@pytest.mark.parametrize("change", [mereo.tap, lambda model: mereo.insert(model, "aaren")], ids=["tap", "insert"])
def test_a_network_of_another_size_than_it_states_is_named(change: Callable[[nn.Module], object]) -> None:
    model = timm.create_model("mvitv2_tiny", img_size=64)
    with pytest.raises(UsageError, match=r"MultiScaleVit cannot read an image of 224 x 224 .* give img_size"):
        change(model)
