"""Weights of timm's blocks in the gates of the same equations."""

import pytest
import torch
from timm.layers import EcaModule, SEModule
from timm.layers.cbam import CbamModule
from timm.layers.coord_attn import CoordAttn, EfficientLocalAttn
from torch import nn

import mereo
from mereo.errors import UsageError
from mereo.mechanisms.gate import ULSAM, load_published

BLOCKS = {
    "se": (lambda: SEModule(32), {"hidden": 8}),
    "eca": (lambda: EcaModule(32), {}),
    "cbam": (lambda: CbamModule(32), {"hidden": 2}),
    "coordinate_attention": (lambda: CoordAttn(32), {"hidden": 8}),
    "ela": (lambda: EfficientLocalAttn(32), {"norm_groups": 1, "separate": True, "activation": "silu"}),
}


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("training", [False, True])
def test_outputs_and_gradients_are_those_of_timm(name: str, training: bool) -> None:
    make, arguments = BLOCKS[name]
    block = make().double().train(training)
    for parameter in block.parameters():
        nn.init.normal_(parameter, std=0.5)
    gate = mereo.create_mechanism(name, 32, **arguments).double().train(training)
    assert load_published(gate, block.state_dict()) is gate
    x = torch.randn(2, 32, 5, 6, dtype=torch.float64)
    first, second = x.clone().requires_grad_(), x.clone().requires_grad_()
    for module, inputs in ((block, first), (gate, second)):
        module(inputs).sin().sum().backward()
    torch.testing.assert_close(gate(x), block(x))
    torch.testing.assert_close(first.grad, second.grad)


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(UsageError, match="MultiHead"):
        load_published(mereo.create_mechanism("multi_head", 8), {})
    with pytest.raises(UsageError, match="squeeze"):
        load_published(mereo.create_mechanism("se", 32), EcaModule(32).state_dict())
    with pytest.raises(UsageError, match=r"squeeze\.weight of SqueezeExcite 128"):
        load_published(mereo.create_mechanism("se", 32), SEModule(32).state_dict())


def test_groups_of_the_authors_code_are_put_together_in_order() -> None:
    gate, whole = ULSAM(24, 12), ULSAM(24, 12)
    nn.init.normal_(whole.scale.weight), nn.init.normal_(whole.point.weight)
    names = {"scale": "conv_dws", "scale_norm": "bn_dws", "point": "conv_point", "point_norm": "bn_point"}
    state = {}
    for name, tensor in whole.state_dict().items():
        module, _, last = name.partition(".")
        parts = tensor.chunk(12) if tensor.dim() else [tensor] * 12
        state |= {f"subspaces.{i}.{names[module]}.{last}": part for i, part in enumerate(parts)}
    load_published(gate, dict(reversed(state.items())))
    assert all(torch.equal(a, b) for a, b in zip(gate.state_dict().values(), whole.state_dict().values(), strict=True))
