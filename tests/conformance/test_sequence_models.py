"""Every family of sequence models under one protocol: tokens in, scores of the next token out, whole or step by step.

Families are tested on their tiny preset and its variants, all presets by their outline.
"""

import ast
import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from mereo.models.sequence_registry import sequence_families
from torch import Tensor

import mereo
import mereo.models
from mereo.core import Coupling, Signal
from mereo.errors import UsageError
from mereo.models import MODELS, SEQUENCE_MODELS, SequenceModel, get_sequence_entry
from mereo.models.registry import outline, register_model

Case = tuple[str, str]
TINY = [(entry.name, "") for entry in sequence_families().values()]
VARIANTS = [(entry.name, variant) for entry in sequence_families().values() for variant in entry.variants or {}]
every_family = pytest.mark.parametrize("case", TINY, ids=lambda case: case[0])
every_case = pytest.mark.parametrize("case", TINY + VARIANTS, ids=lambda case: " ".join(case).strip())
every_preset = pytest.mark.parametrize("name", sorted(SEQUENCE_MODELS))
LENGTH = 13


def tiny(case: Case, **overrides: Any) -> Any:
    """A tiny network in eval mode, with parameters away from their start."""
    name, variant = case
    entry = get_sequence_entry(name)
    changes = (entry.variants or {})[variant] if variant else {}
    model: Any = mereo.create_model(name, **{**(entry.tiny or {}), **changes, **overrides})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model.eval()


def some_tokens(model: SequenceModel, count: int = 3, length: int = LENGTH) -> Tensor:
    return torch.randint(model.vocab_size, (count, length))


def assert_close(found: Tensor, expected: Tensor, share: float = 1e-5) -> None:
    assert found.shape == expected.shape
    assert (found.double() - expected.double()).abs().max() <= share * expected.double().abs().max()


@every_preset
def test_presets_are_described_and_have_as_many_parameters_as_they_declare(name: str) -> None:
    entry, model = get_sequence_entry(name), outline(name)
    assert isinstance(model, SequenceModel) and entry.summary.endswith(".") and entry.link.startswith("https://")
    assert sum(p.numel() for p in model.parameters()) == entry.parameters
    assert mereo.is_model(name) and name in mereo.list_models() and name not in MODELS
    assert model.pretrained_cfg["input_size"] == (model.context,) and model.config["model"] == name


@pytest.mark.parametrize("family", sorted(sequence_families()))
def test_a_family_has_its_file_and_its_test_and_imports_no_other(family: str) -> None:
    module = sequence_families()[family].module
    assert module.__module__ == f"mereo.models.sequence.{family}"
    assert "def test_" in (Path(__file__).parents[1] / "models" / "sequence" / f"test_{family}.py").read_text()
    homes = {entry.module.__module__ for entry in (*MODELS.values(), *SEQUENCE_MODELS.values())}
    imported: set[str] = set()
    for node in ast.walk(ast.parse(Path(inspect.getfile(module)).read_text())):
        if isinstance(node, ast.ImportFrom):
            imported |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
    assert not imported & ((homes | {"mereo.models"}) - {module.__module__})


@every_case
def test_scores_are_the_head_of_the_features(case: Case) -> None:
    model = tiny(case)
    tokens = some_tokens(model)
    scores, features = model(tokens), model.forward_features(tokens)
    assert scores.shape == (3, LENGTH, model.vocab_size) and scores.dtype == torch.float32 and scores.isfinite().all()
    assert features.shape == (3, LENGTH, model.num_features)
    assert torch.equal(model(tokens), scores), "eval is deterministic"
    with_terms, term = model.forward_with_terms(tokens)
    assert torch.equal(with_terms, scores) and term.shape == () and term.isfinite()
    assert (scores[0] - scores[1]).abs().max() > 1e-4, "two sequences have two predictions"
    assert model.get_classifier().weight.shape == (model.vocab_size, model.num_features)


@every_case
def test_later_tokens_and_other_sequences_change_nothing(case: Case) -> None:
    model = tiny(case)
    tokens = some_tokens(model)
    scores = model(tokens)
    assert_close(model(tokens[1:2]), scores[1:2])
    if not model.causal:
        return
    for t in range(1, LENGTH):
        changed = tokens.clone()
        changed[:, t:] = some_tokens(model, 3, LENGTH - t)
        assert_close(model(changed)[:, :t], scores[:, :t])
        assert_close(model(tokens[:, :t]), scores[:, :t])
    before = tokens.clone()
    before[:, 0] = (before[:, 0] + 1) % model.vocab_size
    assert (model(before)[:, -1] - scores[:, -1]).abs().max() > 0, "earlier tokens are seen"


@every_case
def test_padding_changes_nothing(case: Case) -> None:
    model = tiny(case)
    tokens, lengths = some_tokens(model), torch.tensor([LENGTH, 1, LENGTH - 4])
    scores = model(tokens, lengths)
    for i, length in enumerate(lengths.tolist()):
        assert_close(scores[i, :length], model(tokens[i : i + 1, :length])[0])
    with pytest.raises(UsageError, match=r"lengths are .*\(3,\)"):
        model(tokens, lengths[:2])


@every_case
def test_parts_and_steps_are_the_whole(case: Case) -> None:
    model = tiny(case)
    tokens = some_tokens(model, 2)
    with torch.no_grad():
        whole, parts, state = model(tokens), [], None
        for here in (slice(0, 5), slice(5, 6), slice(6, LENGTH)):
            scores, state = model.extend(tokens[:, here], state)
            parts.append(scores)
        assert state.position == LENGTH
        assert_close(torch.cat(parts, 1), whole)
        rows, state = [], None
        for t in range(LENGTH):
            row, state = model.step(tokens[:, t], state)
            rows.append(row)
        assert_close(torch.stack(rows, 1), whole)


@every_case
def test_it_continues_sequences(case: Case) -> None:
    model = tiny(case)
    tokens = some_tokens(model, 2, 3)
    greedy = model.generate(tokens, 4, temperature=0)
    for t in range(4):
        read = torch.cat((tokens, greedy[:, :t]), 1)
        assert torch.equal(model(read)[:, -1].argmax(-1), greedy[:, t])
    drawn = [model.generate(tokens, 4, generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
    assert torch.equal(drawn[0], drawn[1]) and drawn[0].shape == (2, 4) and int(drawn[0].max()) < model.vocab_size
    assert torch.equal(model.generate(tokens, 4, top=1), greedy)
    assert torch.equal(model.generate(tokens, 2, temperature=1e-30), greedy[:, :2])
    assert model.generate(tokens, 0).shape == (2, 0) and not model.training
    wrong: list[dict[str, Any]] = [
        *({"count": value} for value in (-1, "3", 1.5, True, float("nan"), None)),
        *({"count": 1, "temperature": value} for value in (-1.0, "1", float("nan"))),
        *({"count": 1, "top": value} for value in (0, 2.5, "3", 10**9)),
    ]
    for arguments in wrong:
        with pytest.raises(UsageError, match=rf"{list(arguments)[-1]} is"):
            model.generate(tokens, **arguments)
    with pytest.raises(UsageError, match="at least 1"):
        model.generate(tokens[:, :0], 2)


@every_case
def test_tokens_that_it_does_not_take(case: Case) -> None:
    model = tiny(case)
    tokens = some_tokens(model)
    for wrong, message in (
        (tokens[0], r"\(batch, tokens\)"),
        (tokens.float(), "whole numbers"),
        (tokens.clone().fill_(model.vocab_size), f"tokens hold {model.vocab_size}; .* 0 to {model.vocab_size - 1}"),
        (tokens.clone().fill_(-1), "tokens hold -1"),
    ):
        with pytest.raises(UsageError, match=message):
            model(wrong)
    assert model(tokens[:0]).shape == (0, LENGTH, model.vocab_size)


@every_case
def test_every_parameter_has_a_gradient_in_training(case: Case) -> None:
    model = tiny(case).train()
    scores, term = model.forward_with_terms(some_tokens(model))
    ((scores * torch.rand_like(scores)).sum() + term).backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    assert [name for name, g in gradients.items() if g is None or not g.any() or not g.isfinite().all()] == []


@every_case
def test_half_precision(case: Case) -> None:
    model = tiny(case)
    tokens = some_tokens(model)
    expected = model(tokens).detach()
    with torch.autocast("cpu", torch.bfloat16):
        assert_close(model(tokens), expected, 0.1)
    scores = model.to(torch.bfloat16)(tokens)
    assert scores.dtype == torch.bfloat16
    assert_close(scores, expected, 0.15)


@every_case
def test_recording_sees_the_couplings_and_signals_that_there_are(case: Case) -> None:
    model = tiny(case)
    watched = {name for name, m in model.named_modules() if isinstance(m, Coupling | Signal)}
    tokens = some_tokens(model)
    scores = model(tokens)
    with mereo.record(model) as trace:
        assert_close(model(tokens), scores)
    assert set(trace) == watched


@every_case
def test_checkpointing_changes_nothing(case: Case) -> None:
    models = [tiny(case).train() for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    models[1].set_grad_checkpointing()
    tokens = some_tokens(models[0])
    for model in models:
        torch.manual_seed(1)
        model(tokens).square().sum().backward()
    for (name, kept), again in zip(models[0].named_parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(again.grad, kept.grad, msg=name)


@every_family
def test_parameters_are_grouped_by_layer(case: Case) -> None:
    model = tiny(case)
    depths = model.layer_depths()
    assert depths.keys() == {name for name, _ in model.named_parameters()} and depths["embedding.weight"] == 0
    assert sorted(set(depths.values())) == list(range(max(depths.values()) + 1))
    learned_norm = any(True for _ in model.norm.parameters())
    assert max(depths.values()) == len(model.blocks) + learned_norm - (model.head is None)
    groups = model.parameter_groups(0.05, 0.5)
    assert sorted(name for group in groups for name in group["names"]) == sorted(depths)
    assert model.no_weight_decay() <= depths.keys()


@every_family
def test_compiles_to_one_graph_and_exports(case: Case) -> None:
    model = tiny(case)
    tokens = some_tokens(model)
    torch.compiler.reset()
    with torch.no_grad():
        expected = model(tokens)
        assert_close(torch.compile(model, fullgraph=True, backend="aot_eager")(tokens), expected)
        program = torch.export.export(model, (tokens,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
        assert_close(program.module()(tokens[:2]), expected[:2])


@every_case
def test_a_file_of_weights_needs_nothing_else(case: Case, tmp_path: Path) -> None:
    model = tiny(case)
    tokens = some_tokens(model)
    mereo.save_weights(tmp_path / "model.safetensors", model)
    loaded: Any = mereo.load(tmp_path / "model.safetensors")
    assert type(loaded) is type(model) and loaded.config == model.config and torch.equal(loaded(tokens), model(tokens))
    again: Any = mereo.create_model(case[0], checkpoint_path=tmp_path / "model.safetensors", **model.config["args"])
    assert torch.equal(again.eval()(tokens), model(tokens))
    assert_close(model.fuse()(tokens), model(tokens))


@every_family
def test_arguments_that_it_does_not_take(case: Case) -> None:
    for arguments, message in (
        ({"img_size": 32}, "img_size is 32, and .* reads tokens"),
        ({"num_classes": 3}, "num_classes is 3"),
        ({"pretrained": True}, "pretrained is True"),
        ({"dimm": 3}, "unknown argument of .*'dimm'"),
        ({"vocab_size": 0}, "vocab_size is 0"),
        ({"context": "long"}, "context .*'long'"),
    ):
        with pytest.raises(UsageError, match=message):
            mereo.create_model(case[0], **arguments)
    with pytest.raises(UsageError, match="registered twice"):
        register_model(case[0], SequenceModel, "Again.", source="arXiv:2405.17381", parameters=0, family="tnl")
    with pytest.raises(UsageError, match="reads tokens"):
        mereo.models.get_model_entry(case[0])


@every_case
def test_a_state_of_other_samples_is_refused(case: Case) -> None:
    model = tiny(case)
    tokens = some_tokens(model)
    with torch.no_grad():
        _, state = model.step(tokens[:, 0])
        with pytest.raises(UsageError, match=f"1 samples, and the state of {len(tokens)}"):
            model.step(tokens[:1, 1], state)
