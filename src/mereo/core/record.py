"""Watch or change the couplings and signals of any model, by observers on `Coupling` and `Signal`.

An observer added to a model that is already compiled would be silently ignored, and a compiled model cannot return its
couplings. Both context managers therefore force eager execution while they are open, and fused paths are not used while
their `Coupling` is observed.
"""

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from mereo.core.coupling import Coupling
from mereo.core.kernels.transforms import transformed
from mereo.core.observe import Call, Observable, Observer, observables
from mereo.core.replacements import OF_SIGNALS, WORDS, replacement, stays_in_tiles
from mereo.errors import UsageError, check_choice, type_of, unknown

Change = Callable[..., Tensor]
"""(couplings) or (couplings, call) -> couplings."""
AXES = "(batch, heads, receivers, senders)"
NONE_THERE = (
    "it has no couplings that can be recorded or changed: convolutions make none, and of other libraries only"
    " attention is known that has a softmax or scaled_dot_product_attention in its class or in a function it calls."
    " mereo.explain needs no couplings"
)


class Trace(Mapping[str, Tensor]):
    """The recorded couplings and signals of a model, by the name of the module.

    `trace[name]` is the last value of the module: couplings (batch, heads, receivers, senders) as they acted, or a
    gate, a state, the kept tokens. `trace.steps(name)` has all values in order: an iterated routing has one per pass.
    Couplings inside tiles, such as windows, are placed over the whole image, as a sparse tensor if that has more
    than `mereo.core.topology.base.LARGEST_DENSE` entries; `trace.calls(name)` has them as computed.

    Attributes:
        gradients: whether values stay part of the graph they were computed in.
        nothing: whether the model has nothing that can be recorded.
        kinds: the kind of each name: "couplings", "gates", "states" or "kept tokens".
    """

    def __init__(self, gradients: bool = False, nothing: bool = False) -> None:
        self.gradients, self.nothing = gradients, nothing
        self.kinds: dict[str, str] = {}
        self._values: dict[str, list[Tensor]] = {}
        self._calls: dict[str, list[Call]] = {}

    def add(self, name: str, kind: str, value: Tensor, call: Call | None = None) -> None:
        """Keep one more value of a module."""
        self.kinds[name] = kind
        self._values.setdefault(name, []).append(self.kept(value))
        if call is not None:
            self._calls.setdefault(name, []).append(call)

    def kept(self, value: Tensor) -> Tensor:
        """A value as it is recorded: detached, unless gradients are recorded."""
        return value if self.gradients else value.detach()

    def steps(self, name: str) -> list[Tensor]:
        """Every value of module `name`."""
        if name not in self._values:
            raise self._absent(name)
        return [self._placed(name, number) for number in range(len(self._values[name]))]

    def _absent(self, name: str) -> UsageError:
        if self._values:
            return unknown("coupling or signal", name, self._values)
        why = NONE_THERE if self.nothing else "the model did not run inside the block of mereo.record"
        return UsageError(f"{name!r} is no coupling or signal of the model; {why}.")

    def _placed(self, name: str, number: int) -> Tensor:
        value = self._values[name][number]
        return self._calls[name][number].placed(value) if name in self._calls else value

    def calls(self, name: str) -> list[Call]:
        """Every evaluation of coupling `name`, with its scores, its number, topology and places: see `Call`."""
        if name not in self._calls:
            raise unknown("coupling", name, self._calls) if self._calls else self._absent(name)
        return self._calls[name]

    def scores(self, name: str) -> list[Tensor]:
        """The scores of every evaluation of coupling `name`, placed as the couplings are."""
        return [call.placed(call.scores) for call in self.calls(name)]

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._values:
            # A mapping must raise KeyError, or `in` and `get` would not work.
            raise KeyError(str(self._absent(name)))
        return self._placed(name, -1)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        if self.nothing:
            return f"Trace() without couplings and signals; {NONE_THERE}."
        rows = (f"{name}: {len(values)} x {tuple(values[-1].shape)}" for name, values in self._values.items())
        return f"Trace({'; '.join(rows)})"


class _Watcher:
    """Observes everything and changes nothing."""

    def __init__(self, name: str) -> None:
        self.name, self.step = name, 0

    def scores(self, call: Call) -> Tensor:
        return call.scores

    def couplings(self, call: Call) -> Tensor:
        assert call.couplings is not None
        return call.couplings

    def signal(self, value: Tensor, kind: str) -> Tensor:
        return value


class _Recorder(_Watcher):
    """Keeps every call of one module in a trace."""

    def __init__(self, name: str, trace: Trace) -> None:
        super().__init__(name)
        self.trace = trace

    def couplings(self, call: Call) -> Tensor:
        assert call.couplings is not None
        number = sum(map(len, self.trace._calls.values()))
        acted, scores = self.trace.kept(call.couplings), self.trace.kept(call.scores)
        kept = replace(call, name=self.name, step=self.step, number=number, scores=scores, couplings=acted)
        self.trace.add(self.name, "couplings", acted, kept)
        self.step += 1
        return call.couplings

    def signal(self, value: Tensor, kind: str) -> Tensor:
        self.trace.add(self.name, kind, value)
        return value


def _takes_call(change: Change) -> bool:
    """Whether a function has a second positional parameter without a default, for the call."""
    try:
        parameters = inspect.signature(change).parameters.values()
    except ValueError:  # a function in C, such as torch.zeros_like
        return False
    needed = [p for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return len(needed) > 1


class _Changer(_Watcher):
    """Replaces scores, couplings or signals of one module."""

    def __init__(
        self, name: str, scores: Change | None, couplings: Change | None, context: Mapping[str, Any], count: list[int]
    ) -> None:
        super().__init__(name)
        self.change_scores, self.change, self.context, self.count = scores, couplings, context, count

    def _apply(self, change: Change | None, value: Tensor, call: Call, what: str) -> Tensor:
        if change is None:
            return value
        if not _takes_call(change):
            return self._checked(change(value), value, what)
        context = {**self.context, **call.context}
        given = replace(call, name=self.name, step=self.step, number=self.count[0], context=context)
        return self._checked(change(value, given), value, what)

    def _apply_placed(self, change: Change | None, value: Tensor, call: Call, what: str) -> Tensor:
        """Couplings inside exclusive tiles are changed as they are recorded: over the whole image."""
        tiles = call.tiles
        whole = tiles is not None and tiles.exclusive and tiles.dense(value)
        if change is None or tiles is None or not whole or stays_in_tiles(change, call):
            return self._apply(change, value, call, what)
        return tiles.pick(self._apply(change, tiles.place(value), call, what), value)

    def _checked(self, changed: Any, before: Tensor, what: str) -> Tensor:
        """The value that a function returned; UsageError unless it can replace the value before."""
        kind = type(changed).__name__
        if not isinstance(changed, Tensor):
            raise UsageError(f"the function for the {what} of {self.name!r} returned {kind}; it must return a tensor.")
        for fact in ("shape", "dtype", "device", "layout"):
            now, needed = getattr(changed, fact), getattr(before, fact)
            if now != needed:
                now, needed = (tuple(x) if fact == "shape" else x for x in (now, needed))
                named = f"shape {AXES}" if fact == "shape" and what in ("scores", "couplings") else fact
                raise UsageError(
                    f"the function for the {what} of {self.name!r} returned the {named} {now}; it must be {needed}."
                )
        if changed.is_floating_point() and not transformed():
            # Scores of minus infinity are a way to mask.
            wrong = changed.isnan() if what == "scores" else ~changed.isfinite()
            if wrong.any():
                raise UsageError(
                    f"the function for the {what} of {self.name!r} returned {int(wrong.sum())} values that are not"
                    " finite; they would spread to every output."
                )
        return changed

    def scores(self, call: Call) -> Tensor:
        return self._apply_placed(self.change_scores, call.scores, call, "scores")

    def couplings(self, call: Call) -> Tensor:
        assert call.couplings is not None
        if self.change_scores is not None and not transformed() and not call.couplings.isfinite().all():
            raise UsageError(
                f"the function for the scores of {self.name!r} left couplings that are not finite, such as of an"
                " entry with no finite score along the axis that is normalised; keep one, or mask with a large negative"
                " number."
            )
        changed = self._apply_placed(self.change, call.couplings, call, "couplings")
        self.step, self.count[0] = self.step + 1, self.count[0] + 1
        return changed

    def signal(self, value: Tensor, kind: str) -> Tensor:
        return value if self.change is None else self._checked(self.change(value), value, kind)


@contextmanager
def watching(watched: Mapping[str, tuple[Observable, Observer]]) -> Iterator[None]:
    """Observers on their modules, and everything eager, while the block runs."""
    for module, observer in watched.values():
        module.watch(observer)
        # Recorders come last, whichever block was opened first, so that they see the values in use.
        module.observers.sort(key=lambda each: isinstance(each, _Recorder))
    try:
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        for module, observer in watched.values():
            module.unwatch(observer)


def _not_there(model: nn.Module, name: str, there: Collection[str], kind: str = "coupling or signal") -> UsageError:
    """The error for a name that is not among the couplings and signals of a model."""
    if there:
        return unknown(kind, name, there)
    return UsageError(f"{name!r} is no {kind} of {type(model).__name__}; {NONE_THERE}.")


@contextmanager
def record(model: nn.Module, names: Collection[str] | None = None, *, gradients: bool = False) -> Iterator[Trace]:
    """Record the couplings and signals that `model` makes inside the block; a model without any gives an empty trace.

    Args:
        names: of the modules to record; all by default.
        gradients: keep values in the graph they were computed in, for a loss on them.

    with mereo.record(model) as trace:
        model(images)
    trace["routing.coupling"]            # what acted last: (batch, heads, receivers, senders)
    trace.calls("routing.coupling")      # every pass, with scores, mask, topology and places
    """
    there = observables(model)
    trace = Trace(gradients, nothing=not there)
    if names is not None and (isinstance(names, str) or not isinstance(names, Collection)):
        raise UsageError(f"names is {type_of(names)}; give a list of names, or None for all.")
    for name in names or []:
        if name not in there:
            raise _not_there(model, name, there)
    wanted = there if names is None else {name: there[name] for name in names}
    with watching({name: (m, _Recorder(name, trace)) for name, m in wanted.items()}):
        yield trace


def _change(name: str, given: Change | str, module: Observable) -> Change:
    """A change as a function."""
    if not isinstance(given, str):
        return given
    words = WORDS if isinstance(module, Coupling) else tuple(OF_SIGNALS)
    check_choice(f"the change of {name!r}", given, words)
    return replacement(name, given) if isinstance(module, Coupling) else OF_SIGNALS[given]


@contextmanager
def intervene(
    model: nn.Module,
    changes: Mapping[str, Change | str] | None = None,
    *,
    scores: Mapping[str, Change] | None = None,
    context: Mapping[str, Any] | None = None,
) -> Iterator[None]:
    """Change couplings, signals or scores inside the block.

    Args:
        changes: for each name of a `Trace`, a function couplings -> couplings (of a signal value -> value), whose
            result acts; or a word. For couplings: "uniform", the mean along the normalised axis; "identity", all from
            the sender of the same number; "shuffled" senders; "strongest", all to the largest; "zero". For signals:
            "zero" and "one".
        scores: a function scores -> scores for each name, applied before they are normalised.
        context: passed to the functions, together with the mechanism's own context.

    Raises:
        UsageError: for an unknown name; inside the block, for a function that returns anything but a tensor of the
            same shape, type and device, or values that are not finite (scores may be minus infinity).

    A function with two positional parameters gets the `Call` as well: its number, step, mask, topology, the positions
    of senders and receivers, and the context. Couplings inside tiles are changed over the whole image, as they are
    recorded; if that map would be sparse, or a receiver is in several tiles, the function gets (batch * tiles, heads,
    receivers of a tile, senders of a tile), and `call.tiles` states which these are.

    with mereo.intervene(model, {"head.coupling": "uniform"}):
        model(images)
    """
    there, given, scores = observables(model), changes or {}, scores or {}
    for argument, value in (("changes", given), ("scores", scores)):
        if not isinstance(value, Mapping):
            raise UsageError(f"{argument} is {type_of(value)}; give a table of changes by their names.")
    for name in given:
        if name not in there:
            raise _not_there(model, name, there)
    functions = {name: _change(name, change, there[name]) for name, change in given.items()}
    couplings = [name for name, module in there.items() if isinstance(module, Coupling)]
    for name in scores:
        if name not in couplings:
            raise _not_there(model, name, couplings, "coupling")
    for name, change in (*functions.items(), *scores.items()):
        if not callable(change):
            raise UsageError(f"the change of {name!r} is {type_of(change)}; give a word or a function of a tensor.")
    count = [0]
    observers: dict[str, tuple[Observable, Observer]] = {
        name: (module, _Changer(name, scores.get(name), functions.get(name), context or {}, count))
        for name, module in there.items()
        if name in functions or name in scores
    }
    with watching(observers):
        yield
