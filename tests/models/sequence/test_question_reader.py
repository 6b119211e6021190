"""Networks of gCOG against their equations by PyTorch's own layers, padding, and refused sizes."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mereo
from mereo.data.questions.scenes import generate
from mereo.data.questions.world import join_rows, one_hot
from mereo.errors import UsageError
from mereo.models.sequence import question_reader
from mereo.models.sequence.question_reader import READERS, sinusoids

SMALL: dict[str, Any] = {"dim": 8, "hidden": 12, "num_heads": 2, "dropout": 0.0}


def small(reader: str, **more: Any) -> Any:
    torch.manual_seed(0)
    model = mereo.create_model("gcog_rnn", **{**SMALL, "reader": reader, **more}).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


@pytest.fixture(scope="module")
def questions() -> tuple[Tensor, Tensor]:
    made = generate("systematic_trees", 4, 0)
    return made["rule"].double(), made["stim"].double()


def attended(layer: Any, x: Tensor, context: Tensor) -> Tensor:
    weights = layer.query.weight, layer.key.weight, layer.value.weight
    biases = torch.cat((layer.query.bias, layer.key.bias, layer.value.bias))
    out, _ = F.multi_head_attention_forward(
        x.transpose(0, 1), context.transpose(0, 1), context.transpose(0, 1), x.shape[-1], layer.num_heads, None,
        biases, None, None, False, 0.0, layer.proj.weight, layer.proj.bias, need_weights=False,
        use_separate_proj_weight=True, q_proj_weight=weights[0], k_proj_weight=weights[1], v_proj_weight=weights[2],
    )  # fmt: skip
    return out.transpose(0, 1)


def blocked(block: Any, rows: Tensor) -> Tensor:
    x = rows if block.embed is None else block.embed(rows)
    wide, (first, activation) = block.mlp[0], block.mlp
    assert first is wide and type(activation) in (nn.ReLU, nn.GELU)
    table = torch.zeros_like(x[0])
    for place in range(x.shape[1]):
        for channel in range(0, x.shape[2], 2):
            angle = torch.tensor(place / 10000 ** (channel / x.shape[2]), dtype=x.dtype)
            table[place, channel], table[place, channel + 1] = angle.sin(), angle.cos()
    x = x + table
    x = block.norm1(x + attended(block.attention, x, x))
    return block.norm2(x + activation(wide.second(activation(wide.first(x)))))


@pytest.mark.parametrize("kind", ["rnn", "gru"])
def test_recurrent_networks_are_pytorch_s(kind: str, questions: tuple[Tensor, Tensor]) -> None:
    rule, stim = questions
    model = small(kind)
    reader = model.reader
    theirs = (
        nn.RNN(311, 12, nonlinearity="relu", batch_first=True) if kind == "rnn" else nn.GRU(311, 12, batch_first=True)
    )
    names = ("weight_ih_l0", "bias_ih_l0", "weight_hh_l0", "bias_hh_l0")
    ours = (*reader.input.parameters(), *reader.state.parameters())
    theirs.load_state_dict(dict(zip(names, ours, strict=True)))
    given = torch.cat((rule, stim.flatten(1).unsqueeze(1).expand(-1, rule.shape[1], -1)), -1)
    expected = model.head(reader.norm(theirs.double()(given)[0][:, -1])).log_softmax(-1)
    torch.testing.assert_close(model(join_rows(rule, stim)), expected)


@pytest.mark.parametrize("blocks", [1, 2])
def test_one_stream(blocks: int, questions: tuple[Tensor, Tensor]) -> None:
    rule, stim = questions
    model = small("single", blocks=blocks)
    x = join_rows(rule, stim)
    x = x if model.reader.embed is None else model.reader.embed(x)
    for block in model.reader.blocks:
        x = blocked(block, x)
    torch.testing.assert_close(model(join_rows(rule, stim)), model.head(model.reader.mlp(x)[:, -1]).log_softmax(-1))


@pytest.mark.parametrize("kind", ["dual", "cross", "rule_cross", "perceiver"])
def test_two_streams(kind: str, questions: tuple[Tensor, Tensor]) -> None:
    rule, stim = questions
    model = small(kind)
    r = model.reader
    program, scene = blocked(r.rule, rule), blocked(r.scene, stim)
    if kind == "dual":
        out = r.norm2(r.mlp(r.norm1(r.from_rule(program[:, -1]) + r.from_scene(scene[:, -1]))))
    elif kind == "rule_cross":
        out = r.norm2(r.mlp(r.norm1(attended(r.to_scene, program, scene)) + program))[:, -1]
    elif kind == "cross":
        latent = r.norm1(attended(r.to_rule, program.new_zeros(4, 1, 12), program))
        out = r.norm2(attended(r.to_scene, latent, scene) + latent)[:, -1]
    else:
        latents = program.new_zeros(4, 10, 12)
        read = r.rule_norm(attended(r.to_rule, latents, program))
        latents = r.norm(r.rule_mlp(read) + read + latents)
        latents = r.norm(attended(r.to_latents, latents, latents) + latents)
        seen = r.scene_norm(attended(r.to_scene, latents, scene))
        latents = r.norm(r.scene_mlp(seen) + seen + latents)
        latents = r.norm(attended(r.to_latents, latents, latents) + latents)
        assert (latents - latents[:, :1]).abs().max() < 1e-12, "latents that start alike stay alike"
        out = r.mlp(latents)[:, -1]
    torch.testing.assert_close(model(join_rows(rule, stim)), model.head(out).log_softmax(-1))


@pytest.mark.parametrize("encoding", ["numbers", "one_hot"])
@pytest.mark.parametrize("reader", READERS)
def test_padding_behind_the_end_changes_nothing(reader: str, encoding: str) -> None:
    made = generate("productive", 6, 1)
    rule, stim = made["rule"].double(), made["stim"].double()
    model = small(reader, encoding=encoding)
    together = model(join_rows(rule, stim))
    for place, depth in enumerate(made["meta"]["depth"]):
        rows = 2 if depth == 1 else 5
        alone = model(join_rows(rule[place : place + 1, :rows], stim[place : place + 1]))
        torch.testing.assert_close(alone[0], together[place])
    deeper = F.pad(rule, (0, 0, 0, 6))
    torch.testing.assert_close(model(join_rows(deeper, stim)), together)
    assert model(join_rows(0 * rule, 0 * stim)).isfinite().all()


def test_what_latents_of_zeros_cannot_learn_is_not_trained() -> None:
    both = ("weight", "bias")
    for kind, frozen in (
        ("cross", {"to_rule.query.weight"}),
        ("perceiver", {"to_rule.query.weight", *(f"to_latents.{n}.{p}" for n in ("query", "key") for p in both)}),
    ):
        model = small(kind)
        assert {n for n, p in model.reader.named_parameters() if not p.requires_grad} == frozen
        made = generate("distractor", 8, 0)
        rows = join_rows(made["rule"], made["stim"]).double()
        before = model(rows)
        with torch.no_grad():
            for name in frozen:
                model.reader.get_parameter(name).mul_(3)
        torch.testing.assert_close(model(rows), before)


def test_positions_and_one_hot_rows() -> None:
    found = sinusoids(torch.tensor([[0, 3]]), torch.zeros(4, dtype=torch.float64))
    three = torch.tensor([3.0, 0.03], dtype=torch.float64)
    expected = torch.stack((three.sin(), three.cos()), -1).flatten()
    torch.testing.assert_close(found[0], torch.stack((torch.tensor([0.0, 1, 0, 1]).double(), expected)))
    made = generate("distractor", 3, 0)
    rule, stim = one_hot(made["rule"], made["stim"])
    assert (rule.shape[-1], stim.shape[-1]) == question_reader.ENCODINGS["one_hot"]


@pytest.mark.parametrize("reader", [name for name in READERS if name not in ("rnn", "gru")])
def test_one_hot_objects_start_as_large_as_their_places(reader: str) -> None:
    torch.manual_seed(0)
    model = mereo.create_model("gcog_rnn", reader=reader, dim=64, hidden=64, encoding="one_hot")
    made = generate("distractor", 20, 0)
    cells = one_hot(made["rule"], made["stim"])[1]
    objects = cells[cells.sum(-1) == 2]
    embeds = [layer for name, layer in model.named_modules() if name.endswith("embed") and isinstance(layer, nn.Linear)]
    embed = embeds[-1]  # the scene's; a single stream has one for both
    objects = F.pad(objects, (embed.in_features - objects.shape[-1], 0))
    places = sinusoids(torch.arange(100)[None], torch.zeros(64))
    assert 0.5 < embed(objects).square().mean() / places.square().mean() < 2


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"reader": "lstm"}, "'lstm'"), ({"encoding": "words"}, "'words'"),
        ({"blocks": 2, "reader": "dual"}, "blocks is 2"),
        ({"dim": 7, "num_heads": 1}, "dim is 7"), ({"hidden": 13}, "13"), ({"context": 101}, "context"),
        ({"dropout": 1.5}, "dropout"), ({"blocks": 0, "reader": "single"}, "blocks"),
    ],
)  # fmt: skip
def test_impossible_networks_are_refused(arguments: dict[str, Any], error: str) -> None:
    with pytest.raises(UsageError, match=error):
        mereo.create_model("gcog_rnn", **{**SMALL, **arguments})


@pytest.mark.parametrize(
    ("rows", "error"),
    [
        (torch.zeros(2, 101, 11), r"rows are \(2, 101, 11\)"), (torch.zeros(2, 103, 8), r"rows are \(2, 103, 8\)"),
        (torch.zeros(103, 11), r"rows are \(103, 11\)"), (torch.zeros(2, 103, 11, dtype=torch.int64), "int64"),
    ],
)  # fmt: skip
def test_other_rows_are_refused(rows: Tensor, error: str) -> None:
    with pytest.raises(UsageError, match=error):
        mereo.create_model("gcog_rnn", **SMALL)(rows)
