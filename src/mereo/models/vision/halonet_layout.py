"""How timm lays out the weights of HaloNet and of its hybrids with convolutions."""

from collections.abc import Iterator
from typing import Any

from torch import nn

from mereo.errors import UsageError
from mereo.layers import ConvNorm
from mereo.models.layout import Pair, register_layout
from mereo.models.vision.halonet import STEMS, HaloNet, HaloNetBlock


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


_ATTENTION = {"HaloAttn": "h", "BottleneckAttn": "b", "LambdaLayer": "l"}
_GATES = {"Identity": "none", "SEModule": "squeeze_excite", "EcaModule": "efficient_channel"}
_STEMS = {form: name for name, form in STEMS.items()}


def _letter(block: Any) -> str:
    return _ATTENTION[type(block.self_attn).__name__] if hasattr(block, "self_attn") else "c"


def _channels(block: Any) -> tuple[int, int, int]:
    """(inputs, inside, outputs) of a block."""
    return block.conv1_1x1.conv.in_channels, block.conv1_1x1.conv.out_channels, block.conv3_1x1.conv.out_channels


def _gate_arguments(gates: list[Any]) -> dict[str, Any]:
    """The gate after the convolutions, and the ratio from which the sizes of all of them follow."""
    kind = _GATES[type(gates[0]).__name__] if gates else "none"
    if kind != "squeeze_excite":
        return {"gate": kind}
    widest = max(gates, key=lambda gate: int(gate.fc1.in_channels))
    return {"gate": kind, "gate_ratio": widest.fc1.out_channels / widest.fc1.in_channels}


def _stem_arguments(source: Any) -> dict[str, Any]:
    parts = {"conv1": source.stem} if hasattr(source.stem, "conv") else dict(source.stem.named_children())
    pooled = parts.pop("pool", None) is not None
    stem = [part.conv for part in parts.values()]
    return {
        "in_chans": stem[0].in_channels,
        "stem": _STEMS[stem[0].kernel_size[0], len(stem)],
        "stem_width": stem[-1].out_channels,
        "stem_pool": pooled,
    }


def _share_of_keys(attention: list[Any]) -> float:
    """Channels of the queries of a stage, as a share of those that come in."""
    for each in attention:
        if isinstance(query := getattr(each, "q", None), nn.Conv2d):
            return query.out_channels / query.in_channels
        if hasattr(each, "dim_qk"):
            return float(each.num_heads * each.dim_qk / each.qkv.in_channels)
    return 1.0


def _stage_arguments(source: Any, inverted: bool) -> dict[str, Any]:
    """Channels inside the blocks, between them, in groups and in heads."""
    ends = [_channels(stage[-1]) for stage in source.stages]
    widths = tuple(inner * outer // inputs if inverted else inner for inputs, inner, outer in ends)
    outputs = tuple(outer for _, _, outer in ends)
    ratios = {outer / width for width, outer in zip(widths, outputs, strict=True)}
    regular = len(ratios) == 1 and not inverted
    attention = [[block.self_attn for block in stage if hasattr(block, "self_attn")] for stage in source.stages]
    halo = next(each for stage in attention for each in stage if hasattr(each, "halo_size"))
    lambdas = [each.conv_lambda for stage in attention for each in stage if hasattr(each, "conv_lambda")]
    convolution = next(b.conv2_kxk.conv for stage in source.stages for b in stage if _letter(b) == "c")
    keys = tuple(map(_share_of_keys, attention))
    return {
        "widths": widths,
        "expansion": ratios.pop() if regular else 1.0,
        "outputs": () if regular else outputs,
        "group_size": 0 if convolution.groups == 1 else convolution.in_channels // convolution.groups,
        "value_ratio": float(halo.dim_out_v / halo.q.in_channels),
        "heads": tuple(stage[0].num_heads if stage else 1 for stage in attention),
        "key_ratios": () if set(keys) == {1.0} else keys,
        "scope": lambdas[0].kernel_size[0] if lambdas else 23,
        "block": halo.block_size,
        "halo": halo.halo_size,
    }


def _timm_arguments(source: Any) -> dict[str, Any]:
    """Ours, where blocks of a kind are alike; whether they are, the comparison of both networks decides."""
    blocks = [block for stage in source.stages for block in stage]
    if not any(_letter(block) == "h" for block in blocks):
        raise UsageError("source is a ByobNet without halo attention; mereo has no counterpart.")
    inverted = isinstance(blocks[0].act, nn.Identity)
    activation = next((m for m in blocks[0].conv1_1x1.bn.children() if not isinstance(m, nn.Identity)), nn.Identity())
    final = source.final_conv
    configuration = getattr(source, "pretrained_cfg", None) or {}
    return {
        "num_classes": source.num_classes,
        "img_size": tuple(configuration.get("input_size", (3, 256, 256))[1:]),
        **_stem_arguments(source),
        "layers": tuple("".join(_letter(block) for block in stage) for stage in source.stages),
        **_stage_arguments(source, inverted),
        **_gate_arguments([block.attn for block in blocks if _letter(block) == "c"]),
        "inverted": inverted,
        "mask_padding": False,
        "final_width": 0 if isinstance(final, nn.Identity) else final.conv.out_channels,
        "activation": type(activation).__name__.lower(),
        "drop_rate": float(source.drop_rate),
        "drop_path_rate": float(getattr(blocks[-1].drop_path, "drop_prob", 0.0) or 0.0),
    }


register_layout("timm", HaloNet, _timm_pairs, classes=("ByobNet",), arguments=_timm_arguments)
