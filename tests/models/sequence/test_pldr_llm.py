"""PLDR-LLM: its equations, published numbers of parameters, and what depends on the prompt."""

from typing import Any

import torch
import torch.nn.functional as F

import mereo
from mereo.core import added_losses
from mereo.models.registry import outline
from mereo.models.sequence import PLDRLLM


def made(**arguments: Any) -> PLDRLLM:
    sizes = {"dim": 12, "num_heads": 3, "hidden_dim": 20, "units": 1, "metric_hidden": 5, "vocab_size": 31}
    model: Any = mereo.create_model("pldr_llm_tiny", **{**sizes, **arguments}).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def test_it_equals_its_equations() -> None:
    model, tokens = made(), torch.randint(31, (2, 11))

    def norm(x: torch.Tensor, layer: Any) -> torch.Tensor:
        return F.layer_norm(x, (12,), layer.weight, layer.bias, 1e-6)

    x = norm(model.embedding(tokens) * 12**0.5, model.embedding_norm)
    for block in model.blocks:
        y = norm(x + block.mixer(x), block.norm1)
        unit = block.channels
        x = norm(y + unit.second(F.silu(unit.gate(y)) * unit.first(y)), block.norm2)
    torch.testing.assert_close(model(tokens), F.linear(x, model.head.weight, model.head.bias))


def test_published_numbers_of_parameters() -> None:
    small = PLDRLLM(50, 32, 2, 4, 85, units=3, gates=2, metric_hidden=12)
    assert sum(p.numel() for p in small.parameters()) == 35_270
    for name, count in (("pldr_llm_110m", 109_689_362), ("pldr_llm_110m_given", 105_606_482)):
        model = outline(name)
        assert sum(p.numel() for p in model.parameters()) == count and model.context == 1024
    assert "blocks.0.mixer.given_graph" in model.state_dict()


def test_kept_graphs_equal_a_pass_over_everything_only_if_they_do_not_depend_on_it() -> None:
    tokens = torch.randint(31, (2, 12))
    for arguments, exact in (({}, False), ({"metric_scope": "prefix"}, True), ({"graph": "given"}, True)):
        model = made(**arguments)
        assert model.causal == exact
        _, state = model.extend(tokens[:, :8])
        rest, _ = model.extend(tokens[:, 8:], state)
        apart = (rest - model(tokens)[:, 8:]).abs().max()
        assert apart < 1e-10 if exact else apart > 1e-3


def test_a_later_token_changes_earlier_scores_with_the_scope_of_all_alone() -> None:
    tokens = torch.randint(31, (2, 9))
    changed = tokens.clone()
    changed[:, -1] = (changed[:, -1] + 1) % 31
    for scope in ("all", "prefix"):
        model = made(metric_scope=scope)
        apart = (model(tokens) - model(changed)).abs().amax((0, 2))
        assert apart[0] == 0 and (apart[1:8] > 1e-3).all() == (scope == "all")
        if scope == "prefix":
            assert apart[:8].max() < 1e-12


def test_losses_of_cycles_are_means_over_layers() -> None:
    model, tokens = made(dag=(0.05, 0.05, 0.05)).train(), torch.randint(31, (2, 9))
    model(tokens)
    whole, each = added_losses(model), []
    for block in model.blocks:
        block.register_forward_hook(lambda module, inputs, output: each.append(added_losses(module)))
    model(tokens)
    assert whole.keys() == {"dag_A_LM", "dag_A_P", "dag_G_LM"}
    for name, value in whole.items():
        torch.testing.assert_close(value, (each[0][name] + each[1][name]) / 2)
