"""The promises of mechanisms, as checks that run on any entry; no check depends on a name or a family.

`CHECKS` holds every check: `applies(entry)` returns whether the entry promises it, `run(entry)` raises if the
promise does not hold.
"""

# ruff: noqa: D103 - the names of the checks say what they check.

import functools
import gc
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from mereo.core.catalogue import MECHANISMS, Depends, Mechanism, mechanism
from mereo.core.coupling import Coupling
from mereo.core.observe import Call
from mereo.core.record import intervene, record
from mereo.core.recurrence import Recurrence, recurrence
from mereo.errors import MereoError, UsageError, first_line

Inputs = tuple[Tensor, ...]

CLOSE = {torch.float16: 0.01, torch.bfloat16: 0.05}
"""How far each type may be from float32 on the same weights and inputs, as a share of the largest output."""

NO_GRADIENT = 1e-10
"""In float64, a gradient below this share of the largest one counts as zero."""

SUM_AXES = {"senders": (-1,), "receivers": (-2,), "both": (-2, -1)}


@dataclass(frozen=True)
class Check:
    """A check with its name and the condition under which it applies."""

    name: str
    run: Callable[[Mechanism], None]
    applies: Callable[[Mechanism], bool]


CHECKS: dict[str, Check] = {}


def check(applies: Callable[[Mechanism], bool]) -> Callable[[Callable[[Mechanism], None]], Callable[[Mechanism], None]]:
    def register(run: Callable[[Mechanism], None]) -> Callable[[Mechanism], None]:
        CHECKS[run.__name__] = Check(run.__name__, run, applies)
        return run

    return register


def promising(*promises: str) -> Callable[[Mechanism], bool]:
    return lambda entry: gives_a_module(entry) and set(promises) <= entry.promises


# What an entry builds.


def example(entry: Mechanism, seed: int = 0) -> tuple[nn.Module, Inputs]:
    torch.manual_seed(seed)
    return entry.example()


def gives_a_module(entry: Mechanism) -> bool:
    """Whether it is a class or a function model -> model, and not one model -> context manager."""
    return inspect.isclass(entry.target) or isinstance(entry.target(example(entry)[0]), nn.Module)


def gives_a_context(entry: Mechanism) -> bool:
    return not gives_a_module(entry)


def is_a_class(entry: Mechanism) -> bool:
    return inspect.isclass(entry.target)


def build(entry: Mechanism, seed: int = 0) -> tuple[nn.Module, Inputs]:
    module, inputs = example(entry, seed)
    if not inspect.isclass(entry.target):
        module = entry.target(module)
    # Biases and priors that start at zero would hide mistakes.
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return module.eval(), inputs


def with_gradients(inputs: Inputs) -> Inputs:
    return tuple(x.detach().clone().requires_grad_(x.is_floating_point()) for x in inputs)


def to(inputs: Inputs, dtype: torch.dtype) -> Inputs:
    return tuple(x.to(dtype) if x.is_floating_point() else x for x in inputs)


def backward(output: Tensor) -> None:
    """Backward from a weighted sum: behind a norm the gradient of a plain sum vanishes."""
    weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(3))
    (output * weights.to(output.dtype)).sum().backward()


def difference(output: Tensor, expected: Tensor) -> float:
    """The largest difference as a share of the largest expected entry."""
    scale = expected.double().abs().max().clamp(min=1e-30)
    return ((output.double() - expected.double()).abs().max() / scale).item()


def close(output: Tensor, expected: Tensor, rtol: float = 1e-5, atol: float = 1e-5) -> None:
    torch.testing.assert_close(output, expected, rtol=rtol, atol=atol)


def is_finite(tensor: Tensor | None) -> bool:
    return tensor is None or bool(tensor.isfinite().all())


# Axes of senders and receivers.


def tied(entry: Mechanism) -> bool:
    """Whether an input's axis counts senders and receivers alike, as in self-attention."""
    return any(entry.sender_axes.get(key) == axis for key, axis in entry.receiver_axes.items() if key.isdigit())


def take(entry: Mechanism, module: nn.Module, inputs: Inputs, axes: Mapping[str, int], which: Tensor) -> Inputs:
    """Inputs with the entries `which` along `axes`; the parameters of `module` are changed in place."""
    for name, axis in axes.items():
        if not name.isdigit() and name != "output":
            parameter = module.get_parameter(name)
            parameter.data = parameter.data.index_select(axis, which)
    by_input = {int(key): axis for key, axis in axes.items() if key.isdigit()}
    return tuple(x.index_select(by_input[i], which) if i in by_input else x for i, x in enumerate(inputs))


def count(entry: Mechanism, module: nn.Module, inputs: Inputs, axes: Mapping[str, int]) -> int:
    """Entries along the declared axes, which must agree."""
    tensors = {key: inputs[int(key)] if key.isdigit() else module.get_parameter(key) for key in axes if key != "output"}
    if "output" in axes:
        tensors["output"] = module(*inputs)
    sizes = {key: tensor.shape[axes[key]] for key, tensor in tensors.items()}
    assert len(set(sizes.values())) == 1, f"the declared axes disagree: {sizes}"
    return next(iter(sizes.values()))


def sender_axes(entry: Mechanism) -> dict[str, int]:
    """The axes that move when senders move; if they are receivers too, the output moves with them."""
    return {**entry.sender_axes, **(entry.receiver_axes if tied(entry) else {})}


def receiver_axes(entry: Mechanism) -> dict[str, int]:
    return {**entry.receiver_axes, **(entry.sender_axes if tied(entry) else {})}


def check_order(entry: Mechanism, axes: Mapping[str, int]) -> None:
    module, inputs = build(entry)
    expected = module(*inputs)
    order = torch.arange(count(entry, module, inputs, axes)).roll(1)
    if "output" in axes:
        expected = expected.index_select(axes["output"], order)
    state = {name: p.clone() for name, p in module.named_parameters()}
    moved = take(entry, module, inputs, axes, order)
    changed = any(not torch.equal(x, y) for x, y in zip(inputs, moved, strict=True))
    assert changed or any(not torch.equal(state[name], p) for name, p in module.named_parameters())
    try:
        close(module(*moved), expected)
    except AssertionError as error:
        raise AssertionError(f"the output depends on the order along {dict(axes)}") from error


# Every module.


@check(gives_a_module)
def output_is_finite_and_has_a_batch_axis(entry: Mechanism) -> None:
    module, inputs = build(entry)
    output = module(*inputs)
    assert output.shape[0] == inputs[0].shape[0] and is_finite(output) and output.dtype == torch.float32


@check(gives_a_module)
def every_parameter_and_input_gets_a_gradient(entry: Mechanism) -> None:
    for training in (False, True):
        module, inputs = build(entry)
        inputs = with_gradients(to(inputs, torch.float64))
        backward(module.double().train(training)(*inputs))
        trained = {name: p.grad for name, p in module.named_parameters() if p.requires_grad}
        given = {str(i): x.grad for i, x in enumerate(inputs) if x.is_floating_point()}
        gradients = trained | given
        assert [name for name, g in gradients.items() if g is None or not is_finite(g)] == []
        sizes = {name: cast(Tensor, g).abs().max().item() for name, g in gradients.items()}
        dead = {name for name in trained if sizes[name] <= NO_GRADIENT * max(sizes.values())}
        assert dead <= set(entry.zero_gradients), f"gradients are zero and not declared: {sorted(dead)}"
        assert set(entry.zero_gradients) <= set(trained), "zero_gradients names no parameter"
        assert any(sizes[name] > 0 for name in given)


@check(gives_a_module)
def float64_stays_close_to_float32(entry: Mechanism) -> None:
    module, inputs = build(entry)
    expected = module(*inputs)
    output = module.double()(*to(inputs, torch.float64))
    assert output.dtype == torch.float64 and difference(output, expected) < 1e-5


@check(gives_a_module)
def samples_do_not_see_each_other(entry: Mechanism) -> None:
    module, inputs = build(entry)
    together = module(*inputs)
    for i in range(len(together)):
        alone = module(*(x[i : i + 1] for x in inputs))
        close(alone, together[i : i + 1], atol=1e-6)


@check(gives_a_module)
def eval_is_deterministic(entry: Mechanism) -> None:
    module, inputs = build(entry)
    assert torch.equal(module(*inputs), module(*inputs))


@check(gives_a_module)
def zeros_give_finite_outputs_and_gradients(entry: Mechanism) -> None:
    module, inputs = build(entry)
    inputs = with_gradients(tuple(torch.zeros_like(x) for x in inputs))
    output = module(*inputs)
    assert is_finite(output)
    backward(output)
    assert all(is_finite(x.grad) for x in inputs)
    assert [name for name, p in module.named_parameters() if not is_finite(p.grad)] == []


@check(gives_a_module)
def large_inputs_give_finite_outputs(entry: Mechanism) -> None:
    module, inputs = build(entry)
    real = [number for number, x in enumerate(inputs) if x.is_floating_point()]
    for size in (1e4, entry.largest_input, -entry.largest_input):
        for scaled in {tuple(real), *((number,) for number in real)}:
            given = [x * size if number in scaled else x for number, x in enumerate(inputs)]
            assert is_finite(module(*given)), f"inputs {scaled} of {size}"


@check(gives_a_module)
def state_dict_carries_everything(entry: Mechanism) -> None:
    module, inputs = build(entry)
    other, _ = build(entry, seed=1)
    if any(True for _ in module.parameters()):
        assert not torch.equal(other(*inputs), module(*inputs))
    other.load_state_dict(module.state_dict())
    assert torch.equal(other(*inputs), module(*inputs))


# What each promises.


@check(promising("half precision"))
def half_precision_stays_close(entry: Mechanism) -> None:
    for dtype, limit in CLOSE.items():
        module, inputs = build(entry)
        module, rounded = module.to(dtype), to(inputs, dtype)
        output = module(*rounded)
        assert output.dtype == dtype
        expected = module.float()(*to(rounded, torch.float32))
        assert difference(output, expected) < limit, dtype


def check_compiled(entry: Mechanism, backend: str, tolerance: float = 1e-4) -> None:
    module, inputs = build(entry)
    plain = with_gradients(inputs)
    expected = module(*plain)
    backward(expected)
    torch.compiler.reset()
    inputs = with_gradients(inputs)
    output = torch.compile(module, fullgraph=True, backend=backend)(*inputs)
    backward(output)
    close(output, expected, rtol=tolerance, atol=tolerance / 10)
    for x, twin in zip(inputs, plain, strict=True):
        if x.is_floating_point():
            close(cast(Tensor, x.grad), cast(Tensor, twin.grad), rtol=tolerance, atol=tolerance / 10)


@check(promising("compile"))
def compiles_to_one_graph(entry: Mechanism) -> None:
    check_compiled(entry, "aot_eager")


@check(promising("export"))
def exports_with_a_free_batch_size(entry: Mechanism) -> None:
    module, inputs = build(entry)
    free = {0: torch.export.Dim.DYNAMIC}
    shapes: Any = tuple(free for _ in inputs)
    parameters = inspect.signature(module.forward).parameters.values()
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        shapes = (shapes,)  # torch.export counts *args as one
    program = torch.export.export(module, inputs, dynamic_shapes=shapes).module()
    for batch in (inputs, tuple(torch.cat((x.flip(0), x, x)) for x in inputs)):
        close(program(*batch), module(*batch))


def recorded(entry: Mechanism) -> dict[str, list[Tensor]]:
    """What `record` shows of the declared kind, by the name of the module."""
    module, inputs = build(entry)
    plain = module(*inputs)
    with record(module) as trace:
        close(module(*inputs), plain, atol=1e-6)
    if not is_a_class(entry) and entry.records == "nothing":
        return {}  # the model it was applied to may have couplings of its own
    kinds = set(trace.kinds.values())
    assert kinds <= {entry.records, *entry.also_records}, f"it records {sorted(kinds)}"
    assert set(entry.also_records) <= kinds, f"also_records has more than {sorted(kinds)}"
    return {name: trace.steps(name) for name in trace if trace.kinds[name] == entry.records}


def shares_of(call: Call) -> Tensor:
    couplings = cast(Tensor, call.couplings)
    couplings = couplings if call.weight is None else couplings / call.weight.clamp(min=1e-9)
    return couplings if call.offset is None else couplings - call.offset


def shares(entry: Mechanism) -> list[Tensor]:
    """The couplings before the mechanism's own offset and weight."""
    module, inputs = build(entry)
    with record(module) as trace:
        module(*inputs)
    return [shares_of(call) for name in trace if trace.kinds[name] == "couplings" for call in trace.calls(name)]


def value_of(fact: Any, module: nn.Module) -> Any:
    """A fact for one instance: the argument it depends on is an attribute of the same name, or has its default."""
    return getattr(module, fact.on, fact.default) if isinstance(fact, Depends) else fact


@check(gives_a_module)
def recording_shows_what_is_declared(entry: Mechanism) -> None:
    module, inputs = build(entry)
    trace = recorded(entry)
    if entry.records == "nothing":
        assert not trace
        return
    made = [value for name in trace for value in trace[name]]
    assert len(made) == value_of(entry.steps, module)
    assert all(len(value) == len(inputs[0]) and is_finite(value.double()) for value in made)
    if entry.records != "couplings":
        return
    over = value_of(entry.over, module)
    assert {cast(Coupling, module.get_submodule(name)).over for name in trace} == {over}
    assert all(value.dim() == 4 for value in made)
    if entry.sender_axes:
        tuples = count(entry, module, inputs, entry.sender_axes) ** entry.tuple_size
        assert {value.shape[-1] for value in made} == {tuples}


@check(promising("normalised"))
def couplings_sum_to_one(entry: Mechanism) -> None:
    module, _ = build(entry)
    made = shares(entry)
    assert made
    for couplings in made:
        total = couplings.sum(SUM_AXES[value_of(entry.over, module)])
        close(total, torch.ones_like(total))


CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "couplings": lambda couplings: couplings * (torch.arange(couplings.shape[-1]) == 0),
    "gates": torch.zeros_like,
    "states": torch.zeros_like,
    "kept tokens": lambda kept: kept.roll(1, -1),
}


@check(lambda entry: gives_a_module(entry) and entry.records != "nothing")
def intervening_changes_the_output(entry: Mechanism) -> None:
    module, inputs = build(entry)
    plain = module(*inputs)
    with intervene(module, dict.fromkeys(recorded(entry), CHANGES[entry.records])):
        changed = module(*inputs)
    assert is_finite(changed) and difference(changed, plain) > 1e-3
    assert torch.equal(module(*inputs), plain)


@check(promising("couplings only"))
def without_couplings_no_input_changes_the_output(entry: Mechanism) -> None:
    module, inputs = build(entry)
    others = tuple(torch.randn_like(x) if x.is_floating_point() else x for x in inputs)
    with intervene(module, dict.fromkeys(recorded(entry), torch.zeros_like)):
        close(module(*inputs), module(*others))


@check(lambda entry: gives_a_module(entry) and entry.records == "couplings")
def equal_scores_give_equal_shares(entry: Mechanism) -> None:
    module, inputs = build(entry)
    over = value_of(entry.over, module)
    with intervene(module, scores=dict.fromkeys(recorded(entry), torch.zeros_like)), record(module) as trace:
        module(*inputs)
    couplings = [name for name in trace if trace.kinds[name] == "couplings"]
    for call in (call for name in couplings for call in trace.calls(name)):
        assert (call.placed(call.scores) == 0).all()
        made = shares_of(call)
        made = made if call.tiles is not None and not call.tiles.exclusive else call.placed(made)
        for lines in made.movedim(SUM_AXES.get(over, (-1,))[0], -1).flatten(0, -2):
            there = lines[lines != 0]
            assert len(there) == 0 or there.max() - there.min() < 1e-6


@check(promising("any sender order"))
def the_order_of_senders_does_not_matter(entry: Mechanism) -> None:
    check_order(entry, sender_axes(entry))


@check(promising("any receiver order"))
def permuting_receivers_permutes_the_output(entry: Mechanism) -> None:
    check_order(entry, receiver_axes(entry))


@check(is_a_class)
def an_order_that_does_not_matter_is_promised(entry: Mechanism) -> None:
    for promise, axes in (("any sender order", sender_axes(entry)), ("any receiver order", receiver_axes(entry))):
        if axes and promise not in entry.promises and any(key.isdigit() for key in axes):
            try:
                check_order(entry, axes)
            except AssertionError:
                continue
            raise AssertionError(f"{promise!r} holds and is not promised")


def takes_a_mask(entry: Mechanism) -> bool:
    return "mask" in inspect.signature(cast(type[nn.Module], entry.target).forward).parameters


@check(is_a_class)
def what_it_can_do_is_promised(entry: Mechanism) -> None:
    assert takes_a_mask(entry) == ("masks" in entry.promises)
    assert hasattr(entry.target, "step") == ("streaming" in entry.promises)
    assert "recurrence" not in entry.promises or hasattr(entry.target, "recurrence")


@check(promising("masks"))
def masking_a_sender_leaves_it_out(entry: Mechanism) -> None:
    module, inputs = build(entry)
    senders = count(entry, module, inputs, entry.sender_axes)
    mask = torch.ones(len(inputs[0]), senders, dtype=torch.bool)
    close(module(*inputs, mask=mask), module(*inputs), atol=1e-6)
    mask[:, 1] = False
    masked = module(*inputs, mask=mask)
    assert difference(masked, module(*inputs)) > 1e-4
    others = torch.tensor([i for i in range(senders) if i != 1])
    axes = sender_axes(entry)
    if "output" in axes:
        masked = masked.index_select(axes["output"], others)
    close(masked, module(*take(entry, module, inputs, axes, others)))


@check(promising("masks"))
def masking_every_sender_gives_finite_outputs_and_gradients(entry: Mechanism) -> None:
    module, inputs = build(entry)
    senders = count(entry, module, inputs, entry.sender_axes)
    inputs = with_gradients(inputs)
    output = module(*inputs, mask=torch.zeros(len(inputs[0]), senders, dtype=torch.bool))
    backward(output)
    assert is_finite(output) and all(is_finite(x.grad) for x in inputs)
    assert all(is_finite(p.grad) for p in module.parameters())


@check(promising("causal"))
def later_senders_do_not_change_earlier_receivers(entry: Mechanism) -> None:
    module, inputs = build(entry)
    plain = module(*inputs)
    length, out = count(entry, module, inputs, entry.sender_axes), entry.receiver_axes["output"]
    by_input = {int(key): axis for key, axis in entry.sender_axes.items() if key.isdigit()}
    for place in range(1, length):
        changed = list(inputs)
        for i, axis in by_input.items():
            later = torch.arange(length).view([-1 if a == axis else 1 for a in range(inputs[i].dim())]) >= place
            changed[i] = torch.where(later, torch.randn_like(inputs[i]), inputs[i])
        output = module(*changed)
        close(output.narrow(out, 0, place), plain.narrow(out, 0, place), atol=1e-6)
        assert difference(output, plain) > 1e-4


@check(promising("streaming"))
def steps_equal_the_whole(entry: Mechanism) -> None:
    module, inputs = build(entry)
    expected, state = module(*inputs), None
    parts = []
    for position in inputs[0].unbind(entry.receiver_axes["0"]):
        output, state = cast(Any, module).step(position, state)
        parts.append(output)
    close(torch.stack(parts, entry.receiver_axes["output"]), expected)


@check(promising("recurrence"))
def its_recurrence_and_kernel_equal_forward(entry: Mechanism) -> None:
    module, inputs = build(entry)
    made = recurrence(module.double(), to(inputs, torch.float64))
    assert isinstance(made, Recurrence)
    expected = module(*to(inputs, torch.float64))
    scale = expected.abs().max().item()
    assert difference(made.run("recurrent"), expected) < 1e-6 and cast(float, made.error) < 1e-6 * scale
    mixed = made.kernel() @ made.u
    mixed = mixed if made.D is None else mixed + made.D * made.u
    assert difference(made.outputs(mixed), expected) < 1e-6


@check(promising("any length"))
def takes_more_and_fewer_senders(entry: Mechanism) -> None:
    module, inputs = build(entry)
    axes = sender_axes(entry)
    assert all(key.isdigit() or key == "output" for key in axes), "parameters have a fixed number of senders"
    senders = count(entry, module, inputs, axes)
    for length in (senders - 2, senders + 3):
        output = module(*take(entry, module, inputs, axes, torch.arange(length) % senders))
        assert is_finite(output)
        assert "output" not in axes or output.shape[axes["output"]] == length


@check(is_a_class)
def facts_that_depend_on_an_argument_name_it(entry: Mechanism) -> None:
    parameters = inspect.signature(entry.target).parameters
    for fact in (entry.over, entry.steps):
        if isinstance(fact, Depends):
            assert fact.on in parameters and parameters[fact.on].default == fact.default, fact


# Functions model -> model and model -> context manager.


@check(lambda entry: gives_a_module(entry) and not is_a_class(entry))
def a_technique_changes_the_model(entry: Mechanism) -> None:
    plain, inputs = example(entry)
    before = {name: p.clone() for name, p in plain.named_parameters()}
    expected = plain.eval()(*inputs)
    changed = entry.target(plain).eval()
    after = dict(changed.named_parameters())
    same = before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    output = changed(*inputs)
    assert not same or output.shape != expected.shape or difference(output, expected) > 1e-3


@check(gives_a_context)
def an_intervention_acts_and_is_undone(entry: Mechanism) -> None:
    model, inputs = example(entry)
    plain = model.eval()(*inputs)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    with applied(entry, model):
        changed = model(*inputs)
        for i in range(len(changed)):
            close(model(*(x[i : i + 1] for x in inputs)), changed[i : i + 1], atol=1e-6)
    assert is_finite(changed) and difference(changed, plain) > 1e-3
    try:
        with applied(entry, model):
            raise InterruptedError
    except InterruptedError:
        pass
    assert torch.equal(model(*inputs), plain)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


@check(gives_a_context)
def gradients_pass_through_an_intervention(entry: Mechanism) -> None:
    model, inputs = example(entry)
    inputs = with_gradients(inputs)
    with applied(entry, model):
        backward(model(*inputs))
    assert all(is_finite(x.grad) and bool(cast(Tensor, x.grad).any()) for x in inputs if x.is_floating_point())


def applied(entry: Mechanism, model: nn.Module) -> AbstractContextManager[Any]:
    return cast(AbstractContextManager[Any], entry.target(model))


# Inference first, then training, as in a program that predicts and goes on learning.


@check(gives_a_module)
def trains_after_inference(entry: Mechanism) -> None:
    forget_kept_tensors()
    module, inputs = build(entry)
    with torch.inference_mode():
        module(*inputs)
    inputs = with_gradients(inputs)
    backward(module(*inputs))


def forget_kept_tensors() -> None:
    """Empty the caches of the library, which other tests have filled."""
    for each in gc.get_objects():
        if type(each) is functools._lru_cache_wrapper and each.__module__.startswith("mereo"):
            each.cache_clear()


# Docstrings.


@check(lambda entry: True)
def docstrings_state_source_shapes_and_cost(entry: Mechanism) -> None:
    own, about = inspect.getdoc(entry.target), inspect.getdoc(sys.modules[entry.target.__module__])
    assert own is not None and about is not None, "the class and its module need docstrings"
    first, second, *_ = [*own.splitlines(), ""]
    assert first.endswith(".") and ". " not in first and not second, "one sentence, then an empty line"
    assert "Shapes:" in own, "the docstring of the class lacks Shapes:"
    stated = re.search(r"^Source:", about, re.MULTILINE) and "Cost:" in about and str(entry.source) in about
    assert stated, f"the docstring of the module lacks Source: {entry.source}, or Cost:"


# For users, on a mechanism of their own.


@dataclass(frozen=True)
class Report:
    """What the checks of a mechanism found.

    Attributes:
        mechanism: its name.
        held: names of the checks that hold.
        failed: names of the checks that do not, each with the reason.
    """

    mechanism: str
    held: tuple[str, ...]
    failed: Mapping[str, str]

    def __str__(self) -> str:
        rows = [f"{self.mechanism}: {len(self.held)} checks hold, {len(self.failed)} fail"]
        return "\n".join([*rows, *(f"  {name}: {reason}" for name, reason in self.failed.items())])


def entry_of(
    target: Any, example: Callable[[], tuple[nn.Module, Inputs]] | None, facts: Mapping[str, Any]
) -> Mechanism:
    """The entry of a registered mechanism, or one made for a class that is not registered."""
    known = [entry for entry in MECHANISMS.values() if entry.target is target]
    if known:
        return known[0]
    if example is None:
        raise UsageError(
            f"example is None, and {getattr(target, '__name__', target)!r} is not in the catalogue; give a function"
            " that returns a small module and its inputs."
        )
    facts = {"family": "dense attention", "source": "https://example.org", **facts}
    before = dict(MECHANISMS)
    forward = getattr(target, "forward", None)
    try:
        mechanism(target.__name__, example=example, **facts)(target)
        return MECHANISMS[target.__name__]
    finally:
        MECHANISMS.clear()
        MECHANISMS.update(before)
        if forward is not None:
            target.forward = forward


def check_mechanism(
    target: Callable[..., Any],
    example: Callable[[], tuple[nn.Module, Inputs]] | None = None,
    *,
    raises: bool = False,
    **facts: Any,
) -> Report:
    """Run the conformance checks of mechanisms on a class of your own.

    Args:
        target: the class; or a technique or intervention, a function of a model.
        example: makes a small instance and its inputs, such as `lambda: (MyAttention(8), (torch.randn(2, 5, 8),))`. For
            a class with the decorator `mereo.core.mechanism` leave it out.
        raises: raise an error with the first check that fails.
        facts: arguments of the decorator: `promises`, `records`, `over`, `sender_axes`, ... By default it
            records couplings and promises everything in `COMMON`.

    Returns:
        Which checks hold and which fail; print it.

    Raises:
        UsageError: for a class that is not in the catalogue without `example`, and for facts that do not exist.
        MereoError: with `raises`, for the first promise that does not hold.

    Docstrings must state source and cost for registered mechanisms only.
    """
    registered = any(entry.target is target for entry in MECHANISMS.values())
    entry = entry_of(target, example, facts)
    held, failed = [], {}
    for each in CHECKS.values():
        if not each.applies(entry) or (not registered and each.name == "docstrings_state_source_shapes_and_cost"):
            continue
        try:
            each.run(entry)
        except Exception as error:  # a check may fail by any error of the mechanism
            failed[each.name] = first_line(error) or type(error).__name__
            if raises:
                raise MereoError(f"{entry.name}: {each.name} does not hold: {failed[each.name]}") from error
        else:
            held.append(each.name)
    return Report(entry.name, tuple(held), failed)
