"""Every mechanism of the catalogue, held to what it declares and to what the library promises of all of them."""

import inspect
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from mereo.core import Coupling, intervene, record
from mereo.core.normalisers import SUM_TO_ONE
from mereo.mechanisms import MECHANISMS, Mechanism

ENTRIES = [pytest.param(entry, id=name) for name, entry in sorted(MECHANISMS.items())]
every_mechanism = pytest.mark.parametrize("entry", ENTRIES)

CLOSE = {torch.float64: 1e-5, torch.float16: 0.01, torch.bfloat16: 0.05}
"""How far each type may be from float32 on the same weights and inputs, as a share of the largest output."""

LARGEST = {"routing": 1e30, "attention": 1e15, "memory": 1e15}
"""Inputs up to here give finite outputs. Attention multiplies two unbounded inputs, and 1e15 ** 2 still fits float32;
poses are bounded before they are multiplied."""

AXIS = {"senders": -1, "receivers": -2}


def build(entry: Mechanism, seed: int = 0) -> tuple[nn.Module, tuple[Tensor, ...]]:
    torch.manual_seed(seed)
    module, inputs = entry.example()
    # Biases and priors that start at zero would hide mistakes.
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return module.eval(), inputs


def asking_for_gradients(inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(x.detach().clone().requires_grad_(x.is_floating_point()) for x in inputs)


def backward(output: Tensor) -> None:
    """From a weighted sum: a plain sum would miss what a norm takes out."""
    weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(3))
    (output * weights.to(output.dtype)).sum().backward()


def difference(output: Tensor, expected: Tensor) -> float:
    """The largest difference as a share of the largest expected entry."""
    return ((output.double() - expected.double()).abs().max() / expected.double().abs().max()).item()


@every_mechanism
def test_output_is_finite_and_has_a_batch_axis(entry: Mechanism) -> None:
    module, inputs = build(entry)
    output = module(*inputs)
    assert output.shape[0] == inputs[0].shape[0] and output.isfinite().all()
    assert output.dtype == torch.float32


@every_mechanism
@pytest.mark.parametrize("training", [False, True])
def test_every_parameter_and_input_gets_a_finite_gradient(entry: Mechanism, training: bool) -> None:
    module, inputs = build(entry)
    inputs = asking_for_gradients(inputs)
    backward(module.train(training)(*inputs))
    gradients = {name: p.grad for name, p in module.named_parameters()}
    gradients |= {str(i): x.grad for i, x in enumerate(inputs) if x.is_floating_point()}
    assert [name for name, g in gradients.items() if g is None or not g.isfinite().all()] == []
    assert any(bool((g != 0).any()) for g in gradients.values())


@every_mechanism
@pytest.mark.parametrize("dtype", CLOSE, ids=str)
def test_other_types_stay_close_to_float32(entry: Mechanism, dtype: torch.dtype) -> None:
    module, inputs = build(entry)
    module = module.to(dtype)
    rounded = [x.to(dtype) if x.is_floating_point() else x for x in inputs]
    output = module(*rounded)
    assert output.dtype == dtype
    expected = module.float()(*[x.float() if x.is_floating_point() else x for x in rounded])
    assert difference(output, expected) < CLOSE[dtype]


@every_mechanism
def test_samples_do_not_see_each_other(entry: Mechanism) -> None:
    module, inputs = build(entry)
    together = module(*inputs)
    for i in range(len(together)):
        alone = module(*(x[i : i + 1] for x in inputs))
        assert alone.shape == together[i : i + 1].shape
        torch.testing.assert_close(alone, together[i : i + 1], rtol=1e-5, atol=1e-6)


@every_mechanism
def test_eval_is_deterministic(entry: Mechanism) -> None:
    module, inputs = build(entry)
    assert torch.equal(module(*inputs), module(*inputs))


@every_mechanism
def test_zeros_give_finite_outputs_and_gradients(entry: Mechanism) -> None:
    module, inputs = build(entry)
    inputs = asking_for_gradients(tuple(torch.zeros_like(x) for x in inputs))
    output = module(*inputs)
    backward(output)
    assert output.isfinite().all()
    assert all(x.grad.isfinite().all() for x in inputs if x.is_floating_point())
    assert [name for name, p in module.named_parameters() if p.grad is None or not p.grad.isfinite().all()] == []


@every_mechanism
def test_huge_inputs_give_finite_outputs(entry: Mechanism) -> None:
    module, inputs = build(entry)
    for size in (1e4, LARGEST[entry.kind]):
        assert module(*(x * size if x.is_floating_point() else x for x in inputs)).isfinite().all(), size


@every_mechanism
def test_state_dict_carries_everything(entry: Mechanism) -> None:
    module, inputs = build(entry)
    other, _ = build(entry, seed=1)
    assert not torch.equal(other(*inputs), module(*inputs))
    other.load_state_dict(module.state_dict())
    assert torch.equal(other(*inputs), module(*inputs))


def check_compiled(entry: Mechanism, backend: str) -> None:
    module, inputs = build(entry)
    plain = asking_for_gradients(inputs)
    expected = module(*plain)
    backward(expected)
    torch.compiler.reset()
    inputs = asking_for_gradients(inputs)
    output = torch.compile(module, fullgraph=True, backend=backend)(*inputs)
    backward(output)
    torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-5)
    for x, twin in zip(inputs, plain, strict=True):
        torch.testing.assert_close(x.grad, twin.grad, rtol=1e-4, atol=1e-5)


@every_mechanism
def test_compiles_to_one_graph(entry: Mechanism) -> None:
    check_compiled(entry, "aot_eager")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dynamic", "multi_head"])
def test_compiles_with_the_default_backend(name: str) -> None:
    check_compiled(MECHANISMS[name], "inductor")


@every_mechanism
def test_exports_with_a_free_batch_size(entry: Mechanism) -> None:
    module, inputs = build(entry)
    free = tuple({0: torch.export.Dim.DYNAMIC} for _ in inputs)
    program = torch.export.export(module, inputs, dynamic_shapes=free).module()
    for batch in (inputs, tuple(torch.cat((x.flip(0), x, x)) for x in inputs)):
        torch.testing.assert_close(program(*batch), module(*batch), rtol=1e-5, atol=1e-6)


@every_mechanism
def test_recording_sees_the_declared_couplings(entry: Mechanism) -> None:
    module, inputs = build(entry)
    plain = module(*inputs)
    with record(module) as trace:
        torch.testing.assert_close(module(*inputs), plain, rtol=1e-5, atol=1e-6)
    assert sum(len(trace.steps(name)) for name in trace) == entry.steps
    for name in trace:
        coupling = module.get_submodule(name)
        assert isinstance(coupling, Coupling) and coupling.over == entry.over
        for call in trace.calls(name):
            shares = call.couplings
            assert shares.dim() == 4 and shares.shape[0] == plain.shape[0] and shares.isfinite().all()
            if coupling.normaliser in SUM_TO_ONE:
                if call.weight is not None:
                    shares = shares / call.weight
                if call.offset is not None:
                    shares = shares - call.offset
                total = shares.sum(AXIS[entry.over])
                torch.testing.assert_close(total, torch.ones_like(total))


@every_mechanism
def test_intervening_changes_the_output(entry: Mechanism) -> None:
    module, inputs = build(entry)
    plain = module(*inputs)
    with record(module) as trace:
        module(*inputs)

    def first_sender_alone(couplings: Tensor) -> Tensor:
        return couplings * (torch.arange(couplings.shape[-1]) == 0)

    with intervene(module, dict.fromkeys(trace, first_sender_alone)):
        changed = module(*inputs)
    assert changed.isfinite().all() and difference(changed, plain) > 1e-3
    assert torch.equal(module(*inputs), plain)


def take_senders(
    entry: Mechanism, module: nn.Module, inputs: tuple[Tensor, ...], which: Tensor
) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The module and inputs with the senders of these numbers, in that order."""
    axes = {int(key): axis for key, axis in entry.sender_axes.items() if key.isdigit()}
    for name, axis in entry.sender_axes.items():
        if not name.isdigit():
            parameter = module.get_parameter(name)
            parameter.data = parameter.data.index_select(axis, which)
    return module, tuple(x.index_select(axes[i], which) if i in axes else x for i, x in enumerate(inputs))


def number_of_senders(entry: Mechanism, module: nn.Module, inputs: tuple[Tensor, ...]) -> int:
    """By the couplings, after checking that every declared axis has as many entries."""
    with record(module) as trace:
        module(*inputs)
    (senders,) = {couplings.shape[-1] for name in trace for couplings in trace.steps(name)}
    for key, axis in entry.sender_axes.items():
        tensor = inputs[int(key)] if key.isdigit() else module.get_parameter(key)
        assert tensor.shape[axis] == senders, key
    return senders


@pytest.mark.parametrize("entry", [p for p in ENTRIES if not p.values[0].positional])
def test_the_order_of_senders_does_not_matter(entry: Mechanism) -> None:
    module, inputs = build(entry)
    senders = number_of_senders(entry, module, inputs)
    assert entry.sender_axes, "an unordered mechanism says which axes count its senders"
    expected = module(*inputs)
    module, permuted = take_senders(entry, module, inputs, torch.arange(senders).roll(1))
    assert not all(torch.equal(x, y) for x, y in zip(inputs, permuted, strict=True))
    torch.testing.assert_close(module(*permuted), expected, rtol=1e-5, atol=1e-5)


def has_mask(entry: Mechanism) -> bool:
    return "mask" in inspect.signature(entry.module.forward).parameters


@pytest.mark.parametrize("entry", [p for p in ENTRIES if has_mask(p.values[0]) and not p.values[0].positional])
def test_masking_a_sender_leaves_it_out(entry: Mechanism) -> None:
    module, inputs = build(entry)
    senders = number_of_senders(entry, module, inputs)
    mask = torch.ones(len(inputs[0]), senders, dtype=torch.bool)
    torch.testing.assert_close(module(*inputs, mask=mask), module(*inputs), rtol=1e-5, atol=1e-6)
    mask[:, 1] = False
    masked = module(*inputs, mask=mask)
    assert difference(masked, module(*inputs)) > 1e-4
    module, rest = take_senders(entry, module, inputs, torch.tensor([i for i in range(senders) if i != 1]))
    torch.testing.assert_close(masked, module(*rest), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("entry", [p for p in ENTRIES if has_mask(p.values[0])])
def test_masking_every_sender_gives_finite_outputs_and_gradients(entry: Mechanism) -> None:
    module, inputs = build(entry)
    senders = number_of_senders(entry, module, inputs)
    inputs = asking_for_gradients(inputs)
    output = module(*inputs, mask=torch.zeros(len(inputs[0]), senders, dtype=torch.bool))
    backward(output)
    assert output.isfinite().all()
    assert all(x.grad is None or x.grad.isfinite().all() for x in inputs)
    assert all(p.grad is None or p.grad.isfinite().all() for p in module.parameters())


@every_mechanism
def test_docstrings_say_what_a_reader_needs(entry: Mechanism) -> None:
    own = inspect.getdoc(entry.module)
    about = inspect.getdoc(inspect.getmodule(entry.module))
    assert own is not None and about is not None
    first, second, *_ = [*own.splitlines(), ""]
    assert first.endswith(".") and ". " not in first and not second, "one sentence, then an empty line"
    assert entry.summary == first
    assert "Shapes:" in own
    source = re.search(r"^Source:.*arXiv:\d{4}\.\d{4,5}", about, re.MULTILINE | re.DOTALL)
    assert "Reference:" in own or source
    assert entry.paper in about and "Cost:" in about


@every_mechanism
def test_a_mechanism_has_one_home(entry: Mechanism) -> None:
    _, room, *_, file = entry.module.__module__.split(".")
    assert file == entry.name
    assert room == ("routing" if entry.kind == "routing" else "attention")
    assert (Path(__file__).parents[1] / room / f"test_{entry.name}.py").is_file()
