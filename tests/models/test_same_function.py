"""Networks of timm that were changed: converted to what computes the same, or refused by name."""

import copy
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

import mereo
from mereo.errors import UsageError
from mereo.models.layout import LAYOUTS
from mereo.models.same_function import _vary

timm = pytest.importorskip("timm")


def vit(**changes: Any) -> nn.Module:
    small = {"img_size": 16, "patch_size": 4, "embed_dim": 12, "depth": 3, "num_heads": 3, "num_classes": 4}
    return timm.create_model("vit_tiny_patch16_224", **{**small, **changes})  # type: ignore[no-any-return]


def cait(**changes: Any) -> nn.Module:
    small = {"img_size": 16, "patch_size": 4, "embed_dim": 12, "depth": 2, "num_heads": 3, "num_classes": 4}
    return timm.create_model("cait_xxs24_224", **{**small, **changes})  # type: ignore[no-any-return]


def davit(**changes: Any) -> nn.Module:
    small = {"depths": (1, 1), "embed_dims": (8, 16), "num_heads": (2, 4), "num_classes": 4}
    return timm.models.davit.DaVit(**{**small, **changes})  # type: ignore[no-any-return]


def volo(**changes: Any) -> nn.Module:
    small = {
        "layers": (1, 2, 1, 1), "embed_dims": (8, 12, 12, 12), "num_heads": (2, 3, 3, 3), "num_classes": 4,
        "img_size": 32, "stem_hidden_dim": 6,
    }  # fmt: skip
    return timm.models.volo.VOLO(**{**small, **changes})  # type: ignore[no-any-return]


MADE: dict[str, Callable[[], nn.Module]] = {
    "max of DaViT": lambda: davit(global_pool="max"),
    "mean and max of DaViT": lambda: davit(global_pool="avgmax"),
    "max of SHViT": lambda: timm.create_model("shvit_s1", global_pool="max"),
    "activation of CaiT": lambda: cait(act_layer=nn.ReLU),
    "tanh of CaiT": lambda: cait(act_layer=partial(nn.GELU, approximate="tanh")),
    "eps of CaiT": lambda: cait(norm_layer=partial(nn.LayerNorm, eps=1e-5)),
    "eps of VOLO": lambda: volo(norm_layer=partial(nn.LayerNorm, eps=1e-6)),
    "heads of VOLO": lambda: volo(num_heads=(2, 3, 3, 6)),
    "tanh of ViT": lambda: vit(act_layer=partial(nn.GELU, approximate="tanh")),
    "dropout of couplings": lambda: vit(attn_drop_rate=0.25),
}


def shvit(**changes: Any) -> nn.Module:
    small = {"embed_dim": (16, 24, 32), "depth": (1, 1, 2), "partial_dim": (4, 5, 7), "qk_dim": (3, 3, 3)}
    return timm.create_model("shvit_s1", **{**small, "num_classes": 4, **changes})  # type: ignore[no-any-return]


def maxvit(**changes: Any) -> nn.Module:
    small = {"img_size": 64, "embed_dim": (32, 64), "depths": (1, 1), "block_type": ("M",) * 2, "stem_width": 8}
    return timm.create_model("maxvit_tiny_tf_224", **{**small, "num_classes": 4, **changes})  # type: ignore[no-any-return]


def halonet(**changes: Any) -> nn.Module:
    return timm.create_model("halonet26t", **{"img_size": 64, "num_classes": 4, **changes})  # type: ignore[no-any-return]


FAMILIES: dict[str, Callable[..., nn.Module]] = {
    "VisionTransformer": vit, "Cait": cait, "DaVit": davit, "VOLO": volo, "SHViT": shvit, "MaxxVit": maxvit,
    "ByobNet": halonet,
}  # fmt: skip


class Adapted(nn.Module):
    """A linear layer or convolution with an addition, as of LoRA."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base, self.gain = base, nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) * self.gain  # type: ignore[no-any-return]


def _last(model: Any, *kinds: type[nn.Module]) -> tuple[str, Any]:
    """The last layer of some kinds before the classifier."""
    found = [(name, m) for name, m in model.named_modules() if isinstance(m, kinds) and "head" not in name]
    return found[-1]


def _layer(model: Any) -> tuple[str, Any]:
    return _last(model, nn.Linear, nn.Conv2d)


def _activation(model: Any) -> None:
    model.set_submodule(_last(model, nn.GELU, nn.SiLU, nn.ReLU, timm.layers.GELUTanh)[0], nn.Hardswish())


def _eps(model: Any) -> None:
    _last(model, nn.LayerNorm, nn.BatchNorm2d, nn.GroupNorm)[1].eps = 1e-2


def _heads(model: Any) -> None:
    attention = [m for m in model.modules() if hasattr(m, "num_heads") and any(m.children())][-1]
    width = attention.num_heads * attention.head_dim if hasattr(attention, "head_dim") else None
    attention.num_heads = 1
    if width is not None:
        attention.head_dim, attention.scale = width, width**-0.5


def _own_class(model: Any) -> None:
    layer = _layer(model)[1]
    kind: Any = type(layer)
    layer.__class__ = type("Doubling", (kind,), {"forward": lambda self, x: 2 * kind.forward(self, x)})


def _wrapped(model: Any) -> None:
    name, layer = _layer(model)
    model.set_submodule(name, nn.Sequential(layer))


def _one_more(model: Any) -> None:
    name, activation = _last(model, nn.GELU, nn.SiLU, nn.ReLU, timm.layers.GELUTanh)
    model.set_submodule(name, nn.Sequential(activation, nn.Tanh()))


def _quantised(model: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, inplace=True)


def _sparse(model: Any) -> None:
    layer = _layer(model)[1]
    layer.weight = nn.Parameter(layer.weight.detach().flatten(1).to_sparse())


def _without_norms(model: Any) -> None:
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.BatchNorm2d | nn.LayerNorm):
            model.set_submodule(name, nn.Identity())


CHANGES: dict[str, Callable[[Any], Any]] = {
    "activation": _activation,
    "eps": _eps,
    "a class of a user": _own_class,
    "adapted": lambda model: model.set_submodule(_layer(model)[0], Adapted(_layer(model)[1])),
    "a layer within another": _wrapped,
    "one more activation": _one_more,
    "a hook": lambda model: _layer(model)[1].register_forward_hook(lambda module, inputs, output: 2 * output),
    "a hook before": lambda model: _layer(model)[1].register_forward_pre_hook(lambda module, inputs: (2 * inputs[0],)),
    "a forward of its own": lambda model: setattr(_layer(model)[1], "forward", lambda x: x),
    "pruned": lambda model: prune.l1_unstructured(_layer(model)[1], "weight", 0.5),
    "parametrised": lambda model: parametrizations.weight_norm(_layer(model)[1]),
    "meta": lambda model: model.to("meta"),
    "sparse": _sparse,
    "types": lambda model: _layer(model)[1].half(),
    "quantised": _quantised,
    "without norms": _without_norms,
    "an inner layer compiled": lambda model: model.set_submodule(_layer(model)[0], torch.compile(_layer(model)[1])),
}
"""Changes after which a network is not what its library makes."""


@pytest.mark.parametrize("name", MADE)
def test_arguments_that_ours_does_not_have(name: str) -> None:
    with pytest.raises(UsageError):
        mereo.convert(MADE[name]())


@pytest.mark.long
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("family", FAMILIES)
def test_networks_that_were_changed_after_they_were_made(family: str, change: str) -> None:
    model = FAMILIES[family]()
    CHANGES[change](model)
    with pytest.raises(UsageError) as caught:
        mereo.convert(model)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_of_timm_is_tried_and_converts(family: str) -> None:
    assert {name for layout in LAYOUTS for name in layout.classes} == {*FAMILIES, "VisionTransformerDistilled"}
    model = FAMILIES[family]().eval()
    ours: Any = mereo.convert(torch.compile(model))
    _vary(model)
    images = torch.randn(1, *ours.image_shape).double()
    torch.testing.assert_close(mereo.convert(model).double()(images), model.double()(images))


@pytest.mark.parametrize("family", ["VisionTransformer", "Cait", "DaVit", "VOLO", "MaxxVit"])
def test_heads_of_a_later_block(family: str) -> None:
    model = FAMILIES[family]()
    _heads(model)
    with pytest.raises(UsageError):
        mereo.convert(model)


def test_another_network_of_the_same_class_is_named() -> None:
    with pytest.raises(UsageError, match="botnet26t_256 do not fit"):
        mereo.convert(timm.create_model("botnet26t_256"))
    changed: Any = vit()
    changed.__class__ = type(
        "VisionTransformer", (type(changed),), {"forward": lambda self, x: self.forward_features(x)}
    )
    with pytest.raises(UsageError, match="no counterparts"):
        mereo.convert(changed)


def test_dropout_before_the_classifier_of_a_vit() -> None:
    model: Any = vit()
    model.head_drop.p = 0.375
    with pytest.raises(UsageError, match=r"0\.375"):
        mereo.convert(model)


def test_the_first_layer_that_differs_is_named() -> None:
    model = vit()
    model.blocks[1].mlp.act = nn.SiLU()
    with pytest.raises(UsageError, match=r"blocks\.1\.mlp\.fc2, a Linear|blocks\.1\.mlp\.fc2"):
        mereo.convert(model)


def test_frozen_parameters_modes_and_wrappers_are_taken_over() -> None:
    model = vit().train()
    model.blocks[1].requires_grad_(False)
    model.blocks[1].norm1.eval()
    ours: Any = mereo.convert(torch.compile(model))
    frozen = {name for name, parameter in ours.named_parameters() if not parameter.requires_grad}
    assert frozen and all(name.startswith("blocks.1.") for name in frozen)
    assert not ours.blocks[1].norm1.training and ours.blocks[0].norm1.training
    there: Any = mereo.convert(mereo.create_model("vit_tiny_patch16_224").requires_grad_(False), to="timm")
    assert not any(parameter.requires_grad for parameter in there.parameters())


@pytest.mark.parametrize("changes", [{"num_heads": 4}, {"qkv_bias": False}, {"depth": 3}])
def test_ours_with_other_arguments_does_not_become_timms_preset(changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        mereo.convert(mereo.create_model("vit_tiny_patch16_224", **changes), to="timm")


def test_ours_after_a_surgery_or_changed_does_not_become_timms() -> None:
    plain = mereo.create_model("vit_tiny_patch16_224")
    with pytest.raises(UsageError, match="moh"):
        mereo.convert(mereo.moh(plain, 0.7), to="timm")
    changed: Any = copy.deepcopy(plain)
    changed.blocks[3].mlp.activation = nn.SiLU()
    with pytest.raises(UsageError, match=r"blocks\.3"):
        mereo.convert(changed, to="timm")
    hooked: Any = copy.deepcopy(plain)
    hooked.blocks[3].register_forward_hook(lambda module, inputs, output: 2 * output)
    for other in (plain.fuse(), hooked):
        with pytest.raises(UsageError):
            mereo.convert(other, to="timm")


def test_momentum_of_batch_norms_is_taken_over() -> None:
    small = {"img_size": 64, "embed_dim": (32, 64), "depths": (1, 1), "block_type": ("M",) * 2, "stem_width": 8}
    source = timm.create_model("maxvit_tiny_tf_224", **small)
    momenta = {m.momentum for m in mereo.convert(source).modules() if isinstance(m, nn.BatchNorm2d)}
    assert momenta == {source.stem.norm1.momentum}
