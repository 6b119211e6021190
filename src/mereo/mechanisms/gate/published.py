"""Weights of a gate from the block of timm or of the authors that computes the same, whose tensors have other names."""

import re
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from mereo.errors import UsageError

Names = Sequence[Mapping[str, str]]
"""For each published block, our names with theirs, of a module or a tensor; `*` is a number, and the tensors of all
numbers are concatenated."""


def _found(state: Mapping[str, Tensor], pattern: str) -> list[str]:
    """The names that match, in the order of the number that `*` stands for."""
    expression = re.compile(re.escape(pattern).replace(r"\*", r"(\d+)"))
    matches = [match for name in state if (match := expression.fullmatch(name)) is not None]
    return [match[0] for match in sorted(matches, key=lambda match: [int(number) for number in match.groups()])]


def _theirs(own: str, names: Mapping[str, str]) -> str | None:
    """The published name of one of our tensors."""
    for ours, theirs in names.items():
        if own == ours or own.startswith(f"{ours}."):
            return theirs + own[len(ours) :]
    return None


def load_published(gate: nn.Module, state: Mapping[str, Tensor]) -> nn.Module:
    """Fill a gate with the weights of the published block that computes the same, in place.

    Args:
        gate: with the arguments that the block has.
        state: the `state_dict()` of the block, of timm or of the authors' code.

    Returns:
        The gate.

    Raises:
        UsageError: for a gate without published names, and for weights that do not fit it.

    load_published(mereo.create_mechanism("eca", 64), timm.layers.EcaModule(64).state_dict())
    """
    blocks: Names = getattr(gate, "published_names", ())
    if not blocks:
        raise UsageError(f"gate is {type(gate).__name__}, for which no names of published weights are known.")
    own = gate.state_dict()
    best: tuple[list[str], dict[str, list[str]]] = (["everything"], {})
    for names in blocks:
        patterns = {name: _theirs(name, names) for name in own}
        found = {name: _found(state, pattern) for name, pattern in patterns.items() if pattern is not None}
        missing = [name for name in own if not found.get(name)]
        if len(missing) < len(best[0]) or not best[1]:
            best = missing, found
    missing, found = best
    left = sorted(set(state) - {name for each in found.values() for name in each})
    if missing or left:
        raise UsageError(
            f"state has no weights for {', '.join(missing[:3]) or 'nothing'} of {type(gate).__name__}, and more in"
            f" {', '.join(left[:3]) or 'nothing'}; give the published block with the same arguments."
        )
    filled = {}
    for name, sources in found.items():
        parts = [state[each] for each in sources]
        value = torch.cat([part.flatten() for part in parts]) if parts[0].dim() else parts[0]
        if value.numel() != own[name].numel():
            raise UsageError(
                f"{sources[0]} has {value.numel():,} numbers, {name} of {type(gate).__name__} {own[name].numel():,};"
                " give the published block with the same arguments."
            )
        filled[name] = value.reshape(own[name].shape)
    gate.load_state_dict(filled)
    return gate
