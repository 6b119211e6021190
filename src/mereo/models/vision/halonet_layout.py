"""How timm lays out the weights of HaloNet and of its hybrids with convolutions."""

from collections.abc import Iterator
from typing import Any

from torch import nn

from mereo.layers import ConvNorm
from mereo.models.layout import Pair, register_layout
from mereo.models.vision.halonet import HaloNet, HaloNetBlock


def _timm_pairs(model: HaloNet) -> Iterator[Pair]:
    def conv_norm(ours: str, theirs: str) -> Iterator[Pair]:
        yield Pair(f"{ours}.0", f"{theirs}.conv")
        yield Pair(f"{ours}.1", f"{theirs}.bn")

    if len(model.stem) == 1 and isinstance(model.enter, nn.Identity):
        yield from conv_norm("stem.0", "stem")
    else:
        for i in range(len(model.stem)):
            yield from conv_norm(f"stem.{i}", f"stem.conv{i + 1}")
        yield from conv_norm("enter", f"stem.conv{len(model.stem) + 1}")
    for name, block in model.stages.named_modules(prefix="stages"):
        if not isinstance(block, HaloNetBlock):
            continue
        for ours, theirs in (("shortcut", "shortcut"), ("reduce", "conv1_1x1"), ("expand", "conv3_1x1")):
            yield from conv_norm(f"{name}.{ours}", f"{name}.{theirs}")
        if not isinstance(block.mix, ConvNorm):
            names = {"query": "q", "key_value": "kv", "qkv": "qkv"}
            names |= {"rows": "pos_embed.height_rel", "columns": "pos_embed.width_rel"}
            names |= {"query_norm": "norm_q", "value_norm": "norm_v", "positions.bias": "conv_lambda.bias"}
            yield from (Pair(f"{name}.mix.0.{ours}", f"{name}.self_attn.{theirs}") for ours, theirs in names.items())
            kernel = f"{name}.mix.0.positions.weight", f"{name}.self_attn.conv_lambda.weight"
            yield Pair(*kernel, lambda tensor: tensor.squeeze(-1), lambda tensor: tensor.unsqueeze(-1))
            yield Pair(f"{name}.mix.1", f"{name}.post_attn")
        else:
            yield from conv_norm(f"{name}.mix", f"{name}.conv2_kxk")
            names = {"squeeze": "fc1", "excite": "fc2", "neighbours": "conv"}
            yield from (Pair(f"{name}.gate.{ours}", f"{name}.attn.{theirs}") for ours, theirs in names.items())
    yield from conv_norm("final", "final_conv")
    yield Pair("head", "head.fc")


def _timm_arguments(source: Any) -> dict[str, Any]:
    """What may differ from the preset of the same name; other arguments of a network of timm are given to `convert`."""
    configuration = getattr(source, "pretrained_cfg", None) or {}
    last = source.stages[-1][-1].drop_path
    return {
        "num_classes": source.num_classes,
        "in_chans": next(iter(source.state_dict().values())).shape[1],
        "img_size": tuple(configuration.get("input_size", (3, 256, 256))[1:]),
        "drop_rate": float(source.drop_rate),
        "drop_path_rate": float(getattr(last, "drop_prob", 0.0) or 0.0),
    }


register_layout("timm", HaloNet, _timm_pairs, classes=("ByobNet",), arguments=_timm_arguments)
