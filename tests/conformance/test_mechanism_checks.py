"""The conformance checks themselves: small mechanisms of every family pass, and each broken twin fails its check."""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import example_files
from mereo.core import MECHANISMS, Coupling, Mechanism, depends
from mereo.core.catalogue import COMMON, FAMILIES, PROMISES
from mereo.core.mechanism_checks import CHECKS
from mereo.core.recurrence import Recurrence

EXAMPLES = {path.stem: example_files.load(path) for path in example_files.files()}


@pytest.mark.parametrize(
    ("check", "name"),
    [(check, name) for check in CHECKS for name, entry in EXAMPLES.items() if CHECKS[check].applies(entry)],
)
def test_examples_keep_their_promises(check: str, name: str) -> None:
    CHECKS[check].run(EXAMPLES[name])


def test_there_is_an_example_of_every_family_and_none_stays_in_the_catalogue() -> None:
    assert {entry.family for entry in EXAMPLES.values()} == set(FAMILIES)
    assert {name for name, entry in EXAMPLES.items() if entry.name != name} == set()
    assert not set(EXAMPLES) & set(MECHANISMS)


def test_examples_make_every_promise() -> None:
    assert {promise for entry in EXAMPLES.values() for promise in entry.promises} == set(PROMISES)


def broken(name: str, forward: Callable[..., Tensor] | None = None, **changes: Any) -> Mechanism:
    """The example `name` with another forward pass, other methods, or other facts."""
    entry = EXAMPLES[name]
    facts = {key: changes.pop(key) for key in list(changes) if key in {f.name for f in dataclasses.fields(entry)}}
    methods = changes | ({"forward": forward} if forward else {})
    if methods:
        twin = type("Twin", (entry.target,), methods)
        build = facts.pop("example", entry.example)

        def example() -> tuple[nn.Module, tuple[Tensor, ...]]:
            module, inputs = build()
            module.__class__ = twin
            return module, inputs

        facts |= {"target": twin, "example": example}
    return dataclasses.replace(entry, **facts)


def inner(name: str) -> Callable[..., Tensor]:
    forward: Callable[..., Tensor] = EXAMPLES[name].target.forward
    return forward


def with_parameter(name: str, parameter: Callable[[], Tensor]) -> Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]:
    """The example of `name` with one more parameter, `extra`."""

    def example() -> tuple[nn.Module, tuple[Tensor, ...]]:
        module, inputs = EXAMPLES[name].example()
        module.extra = nn.Parameter(parameter())
        return module, inputs

    return example


def past_the_coupling(module: Any, tokens: Tensor) -> Tensor:
    scores: Tensor = module.query(tokens) @ module.key(tokens).transpose(1, 2)
    result: Tensor = scores.softmax(-1) @ module.value(tokens)
    return result


def over_the_wrong_axis() -> tuple[nn.Module, tuple[Tensor, ...]]:
    module, inputs = EXAMPLES["mean_agreement"].example()
    module.coupling = Coupling("senders")
    return module, inputs


def not_normalised() -> tuple[nn.Module, tuple[Tensor, ...]]:
    module, inputs = EXAMPLES["mean_agreement"].example()
    module.coupling = Coupling("receivers", "sigmoid")
    return module, inputs


def over_both() -> tuple[nn.Module, tuple[Tensor, ...]]:
    module, inputs = EXAMPLES["mean_agreement"].example()
    module.coupling = Coupling("both")
    return module, inputs


def test_couplings_may_sum_to_one_over_both_axes_together() -> None:
    entry = broken("mean_agreement", over="both", example=over_both)
    for check in CHECKS.values():
        if check.applies(entry):
            check.run(entry)


def states_without_a_scan(module: Any, tokens: Tensor) -> Tensor:
    states = module.states(module.key(tokens).unsqueeze(-1) * module.value(tokens).unsqueeze(-2)).sum(1, keepdim=True)
    result: Tensor = torch.einsum("bnd,bnde->bne", module.query(tokens), states.expand(-1, tokens.shape[1], -1, -1))
    return result


def step_that_forgets(module: Any, token: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
    result: tuple[Tensor, Tensor] = EXAMPLES["linear_attention"].target.step(module, token, None)
    return result


def recurrence_that_decays(module: Any, tokens: Tensor) -> Recurrence:
    made: Recurrence = EXAMPLES["linear_attention"].target.recurrence(module, tokens)
    return dataclasses.replace(made, log_lambda=made.log_lambda - 0.1)


def by_place(module: Any, tokens: Tensor) -> Tensor:
    return inner("external_memory")(module, tokens * torch.arange(1, tokens.shape[1] + 1).view(-1, 1))


def ignoring_the_mask(module: Any, queries: Tensor, context: Tensor, mask: Tensor | None = None) -> Tensor:
    return inner("additive_attention")(module, queries, context)


def nan_without_senders(module: Any, queries: Tensor, context: Tensor, mask: Tensor | None = None) -> Tensor:
    output = inner("additive_attention")(module, queries, context, mask)
    return output if mask is None else output * (mask.sum() / mask.sum())


def mixing_the_batch(module: Any, features: Tensor) -> Tensor:
    return inner("spatial_gate")(module, features) - features.mean(0)


def gates_unseen(module: Any, features: Tensor) -> Tensor:
    gates: Tensor = module.weights(torch.stack([features.mean(1), features.amax(1)], 1)).sigmoid()
    return features * gates


def over_its_length(module: Any, features: Tensor) -> Tensor:
    return features / features.norm(dim=1, keepdim=True) + inner("spatial_gate")(module, features)


def overflowing(module: Any, tokens: Tensor) -> Tensor:
    return inner("external_memory")(module, tokens) + tokens.square() - tokens.square()


def breaking_the_graph(module: Any, tokens: Tensor) -> Tensor:
    return tokens if tokens.sum().item() > 1e9 else inner("external_memory")(module, tokens)


def of_one_size(module: Any, tokens: Tensor) -> Tensor:
    return inner("fourier_mixer")(module, tokens) * torch.ones(6, 1)


def random_in_eval(module: Any, tokens: Tensor) -> Tensor:
    return inner("external_memory")(module, tokens) + 0.01 * torch.randn_like(tokens)


def float32_alone(module: Any, tokens: Tensor) -> Tensor:
    return inner("external_memory")(module.float(), tokens.float())


@contextmanager
def never_undone(model: nn.Module) -> Iterator[None]:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)
    yield


@contextmanager
def not_undone_after_an_error(model: nn.Module) -> Iterator[None]:
    with torch.no_grad():
        parameters = list(model.parameters())
        for parameter in parameters:
            parameter.mul_(0.5)
        yield
        for parameter in parameters:
            parameter.mul_(2)


@contextmanager
def doing_nothing(model: nn.Module) -> Iterator[None]:
    yield


def unchanged(model: nn.Module) -> nn.Module:
    return model


TWINS: dict[str, tuple[str, Callable[[], Mechanism]]] = {
    "wrong axis": (
        "recording_shows_what_is_declared",
        lambda: broken("mean_agreement", example=over_the_wrong_axis),
    ),
    "wrong axis declared": ("couplings_sum_to_one", lambda: broken("mean_agreement", over="senders")),
    "not normalised": ("couplings_sum_to_one", lambda: broken("mean_agreement", example=not_normalised)),
    "both axes": ("couplings_sum_to_one", lambda: broken("mean_agreement", over="both")),
    "wrong number of steps": ("recording_shows_what_is_declared", lambda: broken("mean_agreement", steps=3)),
    "wrong sender axes": (
        "the_order_of_senders_does_not_matter",
        lambda: broken("mean_agreement", sender_axes={"0": 1}),
    ),
    "couplings made elsewhere": (
        "recording_shows_what_is_declared",
        lambda: broken("top_k_attention", past_the_coupling),
    ),
    "gates not observed": ("recording_shows_what_is_declared", lambda: broken("spatial_gate", gates_unseen)),
    "couplings declared as none": (
        "recording_shows_what_is_declared",
        lambda: broken("external_memory", records="nothing"),
    ),
    "no effect of couplings": (
        "intervening_changes_the_output",
        lambda: broken("top_k_attention", lambda m, x: inner("top_k_attention")(m, x) * 0 + past_the_coupling(m, x)),
    ),
    "dead parameter": (
        "every_parameter_and_input_gets_a_gradient",
        lambda: broken("external_memory", example=with_parameter("external_memory", partial(torch.ones, 2))),
    ),
    "parameter whose gradient is zero": (
        "every_parameter_and_input_gets_a_gradient",
        lambda: broken(
            "external_memory",
            lambda m, x: inner("external_memory")(m, x) + (m.extra - m.extra),
            example=with_parameter("external_memory", partial(torch.ones, 6)),
        ),
    ),
    "parameter behind a constant of the softmax": (
        "every_parameter_and_input_gets_a_gradient",
        lambda: broken(
            "external_memory",
            lambda m, x: m.coupling((x @ m.keys.T + x @ m.extra.unsqueeze(1)).unsqueeze(1)).squeeze(1) @ m.values,
            example=with_parameter("external_memory", partial(torch.ones, 6)),
        ),
    ),
    "undeclared order of receivers": (
        "permuting_receivers_permutes_the_output",
        lambda: broken("external_memory", by_place),
    ),
    "order of senders": (
        "the_order_of_senders_does_not_matter",
        lambda: broken("band_attention", promises=EXAMPLES["band_attention"].promises | {"any sender order"}),
    ),
    "order that does not matter": (
        "an_order_that_does_not_matter_is_promised",
        lambda: broken("additive_attention", promises=EXAMPLES["additive_attention"].promises - {"any sender order"}),
    ),
    "undeclared mask": (
        "what_it_can_do_is_promised",
        lambda: broken("additive_attention", promises=EXAMPLES["additive_attention"].promises - {"masks"}),
    ),
    "undeclared step": (
        "what_it_can_do_is_promised",
        lambda: broken("linear_attention", promises=frozenset(COMMON)),
    ),
    "ignored mask": ("masking_a_sender_leaves_it_out", lambda: broken("additive_attention", ignoring_the_mask)),
    "NaN with every sender masked": (
        "masking_every_sender_gives_finite_outputs_and_gradients",
        lambda: broken("additive_attention", nan_without_senders),
    ),
    "leaking future": (
        "later_senders_do_not_change_earlier_receivers",
        lambda: broken("linear_attention", states_without_a_scan),
    ),
    "leaking next position": (
        "later_senders_do_not_change_earlier_receivers",
        lambda: broken("linear_attention", lambda m, x: inner("linear_attention")(m, x) + 0.1 * x.roll(-1, 1)),
    ),
    "recurrence with another decay": (
        "its_recurrence_and_kernel_equal_forward",
        lambda: broken("linear_attention", recurrence=recurrence_that_decays),
    ),
    "forgetful step": ("steps_equal_the_whole", lambda: broken("linear_attention", step=step_that_forgets)),
    "batch mixed": ("samples_do_not_see_each_other", lambda: broken("spatial_gate", mixing_the_batch)),
    "division by a length of zero": (
        "zeros_give_finite_outputs_and_gradients",
        lambda: broken("spatial_gate", over_its_length),
    ),
    "overflow": ("large_inputs_give_finite_outputs", lambda: broken("external_memory", overflowing)),
    "graph break": ("compiles_to_one_graph", lambda: broken("external_memory", breaking_the_graph)),
    "no export": ("exports_with_a_free_batch_size", lambda: broken("external_memory", breaking_the_graph)),
    "one length": ("takes_more_and_fewer_senders", lambda: broken("fourier_mixer", of_one_size)),
    "parameters of one length": (
        "takes_more_and_fewer_senders",
        lambda: broken("mean_agreement", promises=EXAMPLES["mean_agreement"].promises | {"any length"}),
    ),
    "random in eval": ("eval_is_deterministic", lambda: broken("external_memory", random_in_eval)),
    "only float32": ("half_precision_stays_close", lambda: broken("external_memory", float32_alone)),
    "wrong argument of a fact": (
        "facts_that_depend_on_an_argument_name_it",
        lambda: broken("mean_agreement", steps=depends("passes", 1)),
    ),
    "technique without effect": ("a_technique_changes_the_model", lambda: broken("rezero", target=unchanged)),
    "intervention without effect": (
        "an_intervention_acts_and_is_undone",
        lambda: broken("uniform_couplings", target=doing_nothing),
    ),
    "intervention left behind": (
        "an_intervention_acts_and_is_undone",
        lambda: broken("uniform_couplings", target=never_undone),
    ),
    "intervention left behind by an error": (
        "an_intervention_acts_and_is_undone",
        lambda: broken("uniform_couplings", target=not_undone_after_an_error),
    ),
    "no docstring": (
        "docstrings_state_source_shapes_and_cost",
        lambda: broken("rezero", target=unchanged),
    ),
}


@pytest.mark.parametrize("twin", TWINS)
def test_a_broken_twin_is_caught(twin: str) -> None:
    check, make = TWINS[twin]
    entry = make()
    assert CHECKS[check].applies(entry)
    with pytest.raises(Exception) as caught:  # PyTorch raises its own for graphs and exports
        CHECKS[check].run(entry)
    assert not isinstance(caught.value, AttributeError | NameError | TypeError), caught.value
