"""NiNformer: worked numbers of a block, its sizes, and the authors' names."""

from typing import Any

import pytest
import torch
from torch import nn

import mereo
from mereo.errors import UsageError
from mereo.models.conversion import to_layout
from mereo.models.layout import LAYOUTS
from mereo.models.registry import outline
from mereo.models.vision.ninformer import NiNBlock, NiNformer

TINY: dict[str, Any] = {"img_size": 8, "dim": 12, "depth": 2, "hidden_dim": 8}


def zero(*layers: nn.Linear) -> None:
    for layer in layers:
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)


def squaring(block: NiNBlock) -> NiNBlock:
    """Without updates of any feed-forward, and with the identity as projection."""
    zero(block.gate.token_mixing.second, block.gate.channel_mixing.second, block.feed_forward.second)
    nn.init.eye_(block.gate.proj.weight)
    nn.init.zeros_(block.gate.proj.bias)
    return block.eval()


def test_a_block_by_hand() -> None:
    block = squaring(NiNBlock(2, 1, 3))
    out = block(torch.tensor([1.0, 2.0]).view(1, 2, 1, 1))
    torch.testing.assert_close(out.flatten(), torch.tensor([1.99996, 2.99996]), rtol=0, atol=1e-6)


def test_without_gate_and_feed_forward_a_block_is_the_identity() -> None:
    block, maps = NiNBlock(4, 6, 8).eval(), torch.randn(2, 4, 2, 3)
    zero(block.gate.proj, block.feed_forward.second)
    assert torch.equal(block(maps), maps)


def test_one_norm_serves_twice_or_two_once() -> None:
    maps = torch.randn(2, 4, 2, 3)
    shared, apart = NiNBlock(4, 6, 8).eval(), NiNBlock(4, 6, 8, shared_norm=False).eval()
    assert shared.second_norm is None
    with torch.no_grad():
        shared.norm.weight.uniform_()
    apart.load_state_dict(
        shared.state_dict() | {f"second_norm.{name}": value for name, value in shared.norm.state_dict().items()}
    )
    assert torch.equal(apart(maps), shared(maps))
    nn.init.zeros_(apart.second_norm.weight)
    assert not torch.equal(apart(maps), shared(maps))


@pytest.mark.parametrize(("sizes", "count"), [((4, 3, 8), 255), ((256, 64, 512), 659_264)])
def test_parameters_of_a_block(sizes: tuple[int, int, int], count: int) -> None:
    assert sum(p.numel() for p in NiNBlock(*sizes).parameters()) == count


@pytest.mark.parametrize(("name", "count"), [("ninformer_cifar", 2_637_056), ("ninformer_mnist", 2_575_556)])
def test_parameters_of_all_blocks(name: str, count: int) -> None:
    model = outline(name)
    assert isinstance(model, NiNformer) and sum(p.numel() for p in model.stages.parameters()) == count


def test_without_dropout_training_changes_nothing() -> None:
    images = torch.rand(2, 3, 8, 8)
    model = mereo.create_model("ninformer_cifar", **TINY, dropout=0.0)
    assert torch.equal(model(images), model.eval()(images))


def test_gates_are_recorded() -> None:
    with mereo.record(model := mereo.create_model("ninformer_cifar", **TINY).eval()) as trace:
        model(torch.rand(2, 3, 8, 8))
    assert trace["stages.1.gate.gates"].shape == (2, 4, 12)


def test_the_names_of_the_authors() -> None:
    model = mereo.create_model("ninformer_cifar", **TINY)
    (layout,) = [each for each in LAYOUTS if each.module is NiNformer]
    tensors = to_layout(model, layout)
    assert {"patcher.weight", "model.0.mgu.Mixer.token_mix.2.net.3.bias", "model.1.ffn.net.0.weight",
            "model.0.mgu.Mixer.channel_mix.0.weight", "classifier.bias"} <= set(tensors)  # fmt: skip
    again = mereo.convert(tensors, model="ninformer_cifar", **TINY)
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in model.state_dict().items())


def test_an_image_smaller_than_a_patch() -> None:
    with pytest.raises(UsageError, match="no patch of 4 x 4 fits"):
        mereo.create_model("ninformer_cifar", img_size=3)
