"""How timm lays out the weights of HaloNet and of its hybrids with convolutions."""

from collections.abc import Iterator
from typing import Any

from torch import nn

from mereo.errors import UsageError
from mereo.layers import ConvNorm
from mereo.mechanisms.gate.efficient_channel_gate import kernel_for
from mereo.models.layout import Pair, register_layout
from mereo.models.vision.halonet import ACTIVATIONS, STEMS, HaloNet, HaloNetBlock, squeezed


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


def _one(what: str, values: set[Any]) -> Any:
    """The single value of a set."""
    if len(values) != 1:
        raise UsageError(f"the ByobNet has {what} {sorted(map(str, values))}; HaloNet has one for all its blocks.")
    return values.pop()


def _refuse_unless(condition: bool, what: str) -> None:
    if not condition:
        raise UsageError(
            f"the ByobNet {what}; of timm's ByobNets mereo converts those of bottlenecks and halo attention, such as"
            " halonet26t, halonet50ts, halonet_h1, sehalonet33ts and haloregnetz_b."
        )


def _letter(block: Any) -> str:
    """The kind of a block of timm's; UsageError if it is none of ours."""
    kind = type(block).__name__
    _refuse_unless(kind in ("BottleneckBlock", "SelfAttnBlock"), f"has a {kind}")
    if kind == "SelfAttnBlock":
        attention = type(block.self_attn).__name__
        _refuse_unless(attention in _ATTENTION, f"attends by {attention}")
        _refuse_unless(isinstance(block.conv2_kxk, nn.Identity), "has a convolution before its attention")
        if attention == "LambdaLayer":
            convolves = block.self_attn.conv_lambda is not None and block.self_attn.qkv.bias is None
            _refuse_unless(convolves, "has lambdas of a table of positions or with biases")
        else:
            _refuse_unless(not block.self_attn.scale_pos_embed, "scales its scores of positions")
        return _ATTENTION[attention]
    extra = (block.conv2b_kxk, block.attn_last)
    _refuse_unless(all(isinstance(part, nn.Identity) for part in extra), "has a gate at the end or more convolutions")
    _refuse_unless(type(block.attn).__name__ in _GATES, f"has gates by {type(block.attn).__name__}")
    return "c"


def _channels(block: Any) -> tuple[int, int, int]:
    """(inputs, inside, outputs) of a block."""
    return block.conv1_1x1.conv.in_channels, block.conv1_1x1.conv.out_channels, block.conv3_1x1.conv.out_channels


def _inverted(blocks: list[Any]) -> bool:
    """Whether the blocks are those of RegNet-Z; UsageError if they are neither these nor bottlenecks."""
    ends = {isinstance(block.act, nn.Identity) for block in blocks}
    inverted = _one("blocks with and without a last activation:", ends)
    assert isinstance(inverted, bool)
    cut = [block for block in blocks if block.shortcut is None]
    _refuse_unless(bool(cut) == inverted, "has blocks without a shortcut, or without a last activation")
    kept = [block for block in blocks if block.shortcut is not None]
    _refuse_unless(
        not inverted or all(isinstance(block.shortcut, nn.Identity) for block in kept), "has projected shortcuts"
    )
    return inverted


def _gate_arguments(blocks: list[Any]) -> dict[str, Any]:
    """The gate after the convolutions, and the ratio from which the sizes of all of them follow."""
    gates = [block.attn for block in blocks if _letter(block) == "c"]
    kind = _one("gates", {_GATES[type(gate).__name__] for gate in gates} or {"none"})
    if kind == "efficient_channel":
        plain = all(gate.conv2 is None and kernel_for(_channels(block)[1]) == gate.conv.kernel_size[0]
                    for block, gate in zip([b for b in blocks if _letter(b) == "c"], gates, strict=True))  # fmt: skip
        _refuse_unless(plain, "has channel gates of other kernels")
    if kind != "squeeze_excite":
        return {"gate": kind}
    ordinary = all(isinstance(gate.bn, nn.Identity) and not gate.add_maxpool for gate in gates)
    ordinary &= all(isinstance(gate.act, nn.ReLU) and type(gate.gate).__name__ == "Sigmoid" for gate in gates)
    _refuse_unless(ordinary, "has squeeze and excite with norms, another activation or maxima")
    sizes = {gate.fc1.in_channels: gate.fc1.out_channels for gate in gates}
    ratio = sizes[max(sizes)] / max(sizes)
    fits = all(squeezed(channels, ratio) == hidden for channels, hidden in sizes.items())
    _refuse_unless(fits, f"squeezes {sizes}, which no ratio gives")
    return {"gate": kind, "gate_ratio": ratio}


def _stem_arguments(source: Any) -> dict[str, Any]:
    single = hasattr(source.stem, "conv")
    parts = {"conv1": source.stem} if single else dict(source.stem.named_children())
    pool = parts.pop("pool", None)
    _refuse_unless(all(hasattr(part, "conv") for part in parts.values()), "has a stem without norms")
    stem = [part.conv for part in parts.values()]
    kernel, strides = stem[0].kernel_size[0], [conv.stride[0] for conv in stem]
    _refuse_unless((kernel, len(stem)) in STEMS.values(), f"has a stem of {len(stem)} {kernel}x{kernel} convolutions")
    entry = source.stages[0][0]
    mixing = entry.conv2_kxk.conv.stride[0] if hasattr(entry.conv2_kxk, "conv") else 1
    pooled = isinstance(pool, nn.MaxPool2d) and pool.kernel_size == 3 and strides[1:] == [1] * (len(stem) - 1)
    plain = pool is None and (strides == [2, 1, 2] or (single and strides == [2]))
    _refuse_unless((pooled or plain) and mixing == 1 + single, "has a stem with other strides or pooling")
    return {
        "in_chans": stem[0].in_channels,
        "stem": next(name for name, value in STEMS.items() if value == (kernel, len(stem))),
        "stem_width": stem[-1].out_channels,
        "stem_pool": pooled,
    }


def _stage_arguments(source: Any, blocks: list[Any], inverted: bool) -> dict[str, Any]:
    """Channels inside the blocks, between them, in groups and in heads."""
    ends = [_channels(stage[-1]) for stage in source.stages]
    widths = tuple(inner * outer // inputs if inverted else inner for inputs, inner, outer in ends)
    outputs = tuple(outer for _, _, outer in ends)
    for stage, width, outer in zip(source.stages, widths, outputs, strict=True):
        for inputs, inner, out in map(_channels, stage):
            expected = inputs * width // outer if inverted else width
            _refuse_unless((inner, out) == (expected, outer), f"has a block of {inner} channels in a stage of {width}")
    ratios = {outer / width for width, outer in zip(widths, outputs, strict=True)}
    regular = len(ratios) == 1 and not inverted
    halo, lambdas = (
        [[block.self_attn for block in stage if _letter(block) == letter] for stage in source.stages]
        for letter in ("h", "l")
    )
    heads = [
        _one("numbers of heads", {b.self_attn.num_heads for b in stage if hasattr(b, "self_attn")} or {1})
        for stage in source.stages
    ]
    shares = [{m.q.out_channels / m.q.in_channels for m in stage} for stage in halo]
    for share, stage in zip(shares, lambdas, strict=True):
        share |= {m.num_heads * m.dim_qk / m.qkv.in_channels for m in stage}
    keys = tuple(_one("shares of queries", share or {1.0}) for share in shares)
    convolutions = [block.conv2_kxk.conv for block in blocks if _letter(block) == "c"]
    sizes = {0 if conv.groups == 1 else conv.in_channels // conv.groups for conv in convolutions}
    attention = [m for stage in halo for m in stage]
    return {
        "widths": widths,
        "expansion": ratios.pop() if regular else 1.0,
        "outputs": () if regular else outputs,
        "group_size": _one("sizes of groups", sizes or {0}),
        "value_ratio": float(_one("ratios of values", {m.dim_out_v / m.q.in_channels for m in attention})),
        "heads": tuple(heads),
        "key_ratios": () if set(keys) == {1.0} else keys,
        "scope": _one("scopes of", {m.conv_lambda.kernel_size[0] for stage in lambdas for m in stage} or {23}),
        "block": _one("blocks of", {m.block_size for m in attention}),
        "halo": _one("halos of", {m.halo_size for m in attention}),
    }


def _timm_arguments(source: Any) -> dict[str, Any]:
    layers = tuple("".join(_letter(block) for block in stage) for stage in source.stages)
    _refuse_unless(any("h" in kinds for kinds in layers), "has no halo attention")
    blocks = [block for stage in source.stages for block in stage]
    inverted = _inverted(blocks)
    activation = next((m for m in blocks[0].conv1_1x1.bn.children() if not isinstance(m, nn.Identity)), nn.Identity())
    act = type(activation).__name__.lower()
    _refuse_unless(act in ACTIVATIONS, f"has the activation {act}")
    final = source.final_conv
    configuration = getattr(source, "pretrained_cfg", None) or {}
    return {
        "num_classes": source.num_classes,
        "img_size": tuple(configuration.get("input_size", (3, 256, 256))[1:]),
        **_stem_arguments(source),
        "layers": layers,
        **_stage_arguments(source, blocks, inverted),
        **_gate_arguments(blocks),
        "inverted": inverted,
        "mask_padding": False,
        "final_width": 0 if isinstance(final, nn.Identity) else final.conv.out_channels,
        "activation": act,
        "drop_rate": float(source.drop_rate),
        "drop_path_rate": float(getattr(blocks[-1].drop_path, "drop_prob", 0.0) or 0.0),
    }


register_layout("timm", HaloNet, _timm_pairs, classes=("ByobNet",), arguments=_timm_arguments)
