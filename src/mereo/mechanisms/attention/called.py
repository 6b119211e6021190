"""Modules of tokens in the place of attention of other libraries: they take its call, and return what it returns."""

import ast
import textwrap
from operator import attrgetter
from typing import Any

from torch import Tensor, nn

from mereo.core.modes import source_of
from mereo.errors import UsageError
from mereo.mechanisms.attention.interfaced import ANSWERS, answer_transformers, called_by_transformers


def is_plain(module: nn.MultiheadAttention) -> bool:
    """Whether `torch.nn.MultiheadAttention` has no learned key and no zero besides its tokens, and its own forward."""
    usual = type(module).forward is nn.MultiheadAttention.forward and "forward" not in vars(module)
    return usual and module.bias_k is None and not module.add_zero_attn


def called_by_pytorch(module: nn.Module) -> bool:
    """Whether a module is `torch.nn.MultiheadAttention`, or stands in the place of one."""
    return isinstance(module, nn.MultiheadAttention) or getattr(module, "of_pytorch", False) is True


def called_by_others(module: nn.Module) -> bool:
    """Whether a module is called as attention of PyTorch or transformers is."""
    return called_by_pytorch(module) or called_by_transformers(module)


def returned_parts(layer: nn.Module) -> int:
    """How many values the forward pass of a layer returns by its source, the first of which is its output."""
    stated: int | None = getattr(layer, "returned_parts", None)
    if stated is not None:
        return stated
    try:
        tree = ast.parse(textwrap.dedent(source_of(type(layer).forward)))
    except SyntaxError:  # lines of a text that begin further left
        return 1
    returns = [each for each in ast.walk(tree) if isinstance(each, ast.Return)]
    last = max(returns, key=attrgetter("lineno")).value if returns else None
    return len(last.elts) if isinstance(last, ast.Tuple) else 1


def stand_in(module: nn.Module, layer: nn.Module) -> None:
    """Let a module of tokens be called as the attention layer in whose place it stands, and return what it does."""
    for each in module.modules():
        _call_by_tokens(each)
    if called_by_transformers(layer):
        answer_transformers(module)
    elif called_by_pytorch(layer):
        # `torch.nn.TransformerEncoder` reads these; False for `_qkv_same_embed_dim` keeps it from its fused kernel.
        module.of_pytorch = True  # type: ignore[assignment]
        for name in ("embed_dim", "num_heads", "batch_first"):
            setattr(module, name, getattr(layer, name))
        module._qkv_same_embed_dim = False  # type: ignore[assignment]
        if not hasattr(module, "in_proj_bias"):
            module.register_parameter("in_proj_bias", None)
        module.register_forward_pre_hook(_read_call, with_kwargs=True)
        module.register_forward_hook(_as_pair)
    elif (parts := returned_parts(layer)) > 1:
        module.returned_parts = parts  # type: ignore[assignment]
        module.register_forward_hook(_with_parts)


def _call_by_tokens(module: nn.Module) -> None:
    """Take back `stand_in`, since another module around it answers now."""
    for name in ("of_pytorch", "of_transformers", "returned_parts"):
        vars(module).pop(name, None)
    for hooks in (module._forward_pre_hooks, module._forward_hooks):
        for number in [
            number for number, hook in hooks.items() if hook in (_read_call, _as_pair, _with_parts, *ANSWERS)
        ]:
            del hooks[number]
            module._forward_pre_hooks_with_kwargs.pop(number, None)


def _read_call(
    module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Tensor], dict[str, Any]]:
    """The tokens, batch first, of a call of `torch.nn.MultiheadAttention` with its queries as keys and values."""
    names = ("query", "key", "value", "key_padding_mask", "need_weights", "attn_mask", "average_attn_weights")
    call = {**dict(zip((*names, "is_causal"), given, strict=False)), **named}
    tokens, kind = call["query"], type(module).__name__
    if any(call.get(name, tokens) is not tokens for name in ("key", "value")):
        raise UsageError(
            f"{kind} stands for self-attention of torch.nn.MultiheadAttention and is given keys or values that are not"
            " its queries; give one tensor as all three, or leave this layer out."
        )
    if masks := [name for name in ("key_padding_mask", "attn_mask") if call.get(name) is not None]:
        raise UsageError(f"{kind} is given {masks[0]} besides its tokens, which it does not take.")
    if call.get("is_causal"):
        raise UsageError(f"{kind} is given is_causal=True, which it does not take.")
    if tokens.dim() != 3:
        raise UsageError(f"{kind} is given tokens {tuple(tokens.shape)}; it takes a batch of them, three axes.")
    return (tokens if module.batch_first else tokens.transpose(0, 1),), {}


def _with_parts(module: nn.Module, given: Any, output: Tensor) -> tuple[Tensor | None, ...]:
    """The output and, in place of couplings and whatever else a layer returns, None."""
    return output, *[None] * (int(module.returned_parts) - 1)  # type: ignore[arg-type]


def _as_pair(module: nn.Module, given: Any, output: Tensor) -> tuple[Tensor, None]:
    return (output if module.batch_first else output.transpose(0, 1)), None
