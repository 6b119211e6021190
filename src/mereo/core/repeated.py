"""A pass of a network repeated with other scores, at the price of what follows the scores.

Cost: modules that were finished before the first of the scores return what they returned before, with its graph, so
that one backward pass serves all passes. Only the rest is computed again.
"""

import sys
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from mereo.core.added_loss import AddedLoss
from mereo.core.coupling import Coupling
from mereo.core.modes import kept
from mereo.core.observe import Call, Observable

T = TypeVar("T")


def _versions(output: Any) -> list[int]:
    """How often each tensor of an output was changed in place."""
    return [tensor._version for tensor in tree_leaves(output) if isinstance(tensor, Tensor)]


class RepeatedPass(Generic[T]):
    """A computation whose scores are recorded once, and to which something is added in repetitions.

    A repetition draws the same random numbers, so that dropout drops the same; buffers, such as the statistics of batch
    norms, and added losses stay as the first pass left them.

    Args:
        root: holds every module that the computation calls.
        couplings: whose scores are recorded and changed.
        run: the computation.

    Attributes:
        calls: of the couplings in the first pass, in order; their scores take gradients.
    """

    def __init__(self, root: nn.Module, couplings: Collection[Coupling], run: Callable[[], T]) -> None:
        self.root, self.couplings, self.run = root, couplings, run
        self.calls: list[Call] = []
        self._finished: list[tuple[nn.Module, Any, list[int], list[Tensor]]] = []
        self._added: deque[Tensor] | None = None
        device = next((p.device for p in root.parameters()), torch.device("cpu"))
        self._devices = [device] if device.type == "cuda" else []
        self._start: list[Tensor] = []

    def first(self) -> T:
        """The result without a change."""
        with self._watched(), _calling(self._note):
            self._start = self._random()
            return self.run()

    def again(self, added: Sequence[Tensor]) -> T:
        """The result with these tensors added to the scores of `calls`, one each, of their shapes."""
        self._added = deque(added)
        # What was changed in place after it was returned cannot be returned again.
        usable = all(_versions(output) == versions for _, output, versions, _ in self._finished)
        finished = deque(self._finished if usable else ())

        def finished_or(module: nn.Module, call: Callable[[], Any]) -> Any:
            if not finished or finished[0][0] is not module:
                return call()
            _, output, _, random = finished.popleft()
            self._draw_from(random)
            return output

        with ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng(self._devices))
            stack.enter_context(self._watched())
            stack.enter_context(kept(self.root.modules(), "_buffers"))
            losses = [module for module in self.root.modules() if isinstance(module, AddedLoss)]
            stack.enter_context(kept(losses, "recorded"))
            for module in self.root.modules():
                own = module._buffers.items()
                module._buffers = {name: None if buffer is None else buffer.clone() for name, buffer in own}
            stack.enter_context(_calling(finished_or))
            self._draw_from(self._start)
            return self.run()

    # --- what the couplings call ------------------------------------------------------------------------------------

    def scores(self, call: Call) -> Tensor:
        if self._added is not None:
            return call.scores + self._added.popleft()
        # Constant scores, such as those that routing starts with, take gradients too.
        scores = call.scores if call.scores.requires_grad else call.scores.detach().requires_grad_()
        self.calls.append(replace(call, scores=scores))
        return scores

    # --- random numbers, observers, hooks ---------------------------------------------------------------------------

    def _random(self) -> list[Tensor]:
        """The states of the random generators."""
        return [torch.get_rng_state(), *(torch.cuda.get_rng_state(each) for each in self._devices)]

    def _draw_from(self, states: list[Tensor]) -> None:
        torch.set_rng_state(states[0])
        for device, state in zip(self._devices, states[1:], strict=True):
            torch.cuda.set_rng_state(state, device)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        observer = _Observer(self)
        for coupling in self.couplings:
            coupling.watch(observer)
            coupling.observers.sort(key=lambda each: each is not observer)  # recorders see the scores in use
        try:
            # Nothing is compiled before this module is imported, which takes seconds.
            compiles = "torch._dynamo" in sys.modules
            with torch.compiler.set_stance("force_eager") if compiles else nullcontext():
                yield
        finally:
            for coupling in self.couplings:
                coupling.unwatch(observer)

    def _note(self, module: nn.Module, call: Callable[[], Any]) -> Any:
        """Call a module, and note it if it is finished before the first scores, in place of the modules inside it."""
        begun = len(self._finished)
        output = call()
        if not self.calls and not isinstance(module, Observable | AddedLoss):
            self._finished[begun:] = [(module, output, _versions(output), self._random())]
        return output


class _Observer:
    """Passes what the couplings compute to a repeated pass."""

    def __init__(self, owner: RepeatedPass[Any]) -> None:
        self.scores = owner.scores

    def couplings(self, call: Call) -> Tensor:
        assert call.couplings is not None
        return call.couplings

    def signal(self, value: Tensor, kind: str) -> Tensor:
        return value


@contextmanager
def _calling(handle: Callable[[nn.Module, Callable[[], Any]], Any]) -> Iterator[None]:
    """Every call of a module goes through `handle(module, call)`.

    Hooks, or a forward function of its own, would make a module take another path than usual.
    """
    usual = nn.Module.__call__
    called: Any = nn.Module
    called.__call__ = lambda module, *args, **kwargs: handle(module, partial(usual, module, *args, **kwargs))
    try:
        yield
    finally:
        called.__call__ = usual
