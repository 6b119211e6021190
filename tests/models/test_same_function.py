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


class Doubling(nn.Linear):
    """A linear layer of a user."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def _heads(model: Any) -> None:
    attention = model.blocks[2].attn
    attention.num_heads, attention.head_dim, attention.scale = 2, 6, 6**-0.5


def _own_linear(model: Any) -> None:
    model.blocks[1].attn.proj = Doubling(12, 12)


def _sparse(model: Any) -> None:
    model.head.weight = nn.Parameter(model.head.weight.detach().to_sparse())


def _half_of_it(model: Any) -> None:
    model.head.half()


class Adapted(nn.Module):
    """A linear layer with an addition of rank one, as of LoRA."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base, self.down, self.up = base, nn.Linear(base.in_features, 1), nn.Linear(1, base.out_features)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


def _quantised(model: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, inplace=True)


LATER: dict[str, Callable[[Any], Any]] = {
    "heads of a later block": _heads,
    "eps of a later block": lambda model: setattr(model.blocks[2].norm2, "eps", 1e-3),
    "activation of a later block": lambda model: setattr(model.blocks[2].mlp, "act", nn.SiLU()),
    "dropout before the classifier": lambda model: setattr(model.head_drop, "p", 0.375),
    "a class of a user": _own_linear,
    "a hook": lambda model: model.blocks[0].register_forward_hook(lambda module, inputs, output: 2 * output),
    "a forward of its own": lambda model: setattr(model.blocks[0], "forward", lambda x, attn_mask=None: x),
    "pruned": lambda model: prune.l1_unstructured(model.head, "weight", 0.5),
    "parametrised": lambda model: parametrizations.weight_norm(model.head),
    "meta": lambda model: model.to("meta"),
    "sparse": _sparse,
    "types": _half_of_it,
    "adapted": lambda model: setattr(model.blocks[1].attn, "proj", Adapted(model.blocks[1].attn.proj)),
    "quantised": _quantised,
    "a block exchanged": lambda model: model.blocks.__setitem__(1, nn.Sequential(model.blocks[1])),
    "an inner layer compiled": lambda model: setattr(model, "head", torch.compile(model.head)),
}


PLACES = {
    "dropout before the classifier": "0.375", "pruned": "head", "parametrised": "head", "meta": "meta",
    "sparse": "head.weight", "types": "float16", "an inner layer compiled": "head",
}  # fmt: skip
"""What the message names, where it is no block."""


@pytest.mark.parametrize("name", MADE)
def test_arguments_that_ours_does_not_have(name: str) -> None:
    with pytest.raises(UsageError):
        mereo.convert(MADE[name]())


@pytest.mark.parametrize("name", LATER)
def test_networks_that_were_changed_after_they_were_made(name: str) -> None:
    model = vit()
    LATER[name](model)
    with pytest.raises(UsageError) as caught:
        mereo.convert(model)
    assert "\n" not in str(caught.value) and (where := PLACES.get(name, "blocks.")) in str(caught.value), where


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
