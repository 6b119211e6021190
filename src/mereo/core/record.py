"""Watch or change the couplings of any model: built on forward hooks of `Coupling` alone.

A hook added to a model that is already compiled is ignored without a word, and a compiled model cannot hand couplings
out. Both context managers therefore force eager execution while they are open, and fused paths step aside because
their `Coupling` is watched.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from mereo.core.coupling import Coupling
from mereo.core.observed import Observed
from mereo.errors import unknown


class Trace(Mapping[str, Tensor]):
    """Couplings by the name of the module that made them.

    `trace[name]` is what the module made last, (batch, heads, receivers, senders); `trace.steps(name)` is all it made,
    in order: an iterated routing couples once a pass.
    """

    def __init__(self) -> None:
        self._steps: dict[str, list[Tensor]] = {}

    def steps(self, name: str) -> list[Tensor]:
        """Every coupling that module `name` made while the recording ran."""
        if name not in self._steps:
            raise unknown("coupling", name, self._steps)
        return self._steps[name]

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._steps:
            # A mapping raises this one, or `in` and `get` would not work.
            raise KeyError(str(unknown("coupling", name, self._steps)))
        return self._steps[name][-1]

    def __iter__(self) -> Iterator[str]:
        return iter(self._steps)

    def __len__(self) -> int:
        return len(self._steps)

    def __repr__(self) -> str:
        rows = (f"{n}: {len(s)} x {tuple(s[-1].shape)}" for n, s in self._steps.items())
        return f"Trace({'; '.join(rows)})"


def _couplings(model: nn.Module) -> dict[str, nn.Module]:
    model = getattr(model, "_orig_mod", model)
    return {name: m for name, m in model.named_modules() if isinstance(m, Coupling | Observed)}


@contextmanager
def record(model: nn.Module) -> Iterator[Trace]:
    """Record the couplings that `model` makes inside the block.

    with mereo.record(model) as trace:
        model(images)
    trace["routing.coupling"]      # (batch, heads, receivers, senders)
    """
    trace = Trace()

    def keep(name: str) -> Callable[[nn.Module, Any, Tensor], None]:
        def hook(module: nn.Module, inputs: Any, couplings: Tensor) -> None:
            trace._steps.setdefault(name, []).append(couplings.detach())

        return hook

    handles = [c.register_forward_hook(keep(name)) for name, c in _couplings(model).items()]
    try:
        with torch.compiler.set_stance("force_eager"):
            yield trace
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def intervene(model: nn.Module, changes: Mapping[str, Callable[[Tensor], Tensor]]) -> Iterator[None]:
    """Change couplings inside the block: `changes` maps a name to a function couplings -> couplings.

    The names are those of a `Trace`:

    with mereo.intervene(model, {"head.coupling": torch.zeros_like}):
        model(images)
    """
    found = _couplings(model)
    for name in changes:
        if name not in found:
            raise unknown("coupling", name, found)

    def replace(change: Callable[[Tensor], Tensor]) -> Callable[[nn.Module, Any, Tensor], Tensor]:
        return lambda module, inputs, couplings: change(couplings)

    handles = [found[name].register_forward_hook(replace(change)) for name, change in changes.items()]
    try:
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        for handle in handles:
            handle.remove()
