"""Baselines of gCOG: networks that read a program and a scene, and score 138 answers.

A reader takes the rows of a program (batch, rows, columns), the rows of a scene (batch, 101, columns) and the row that
ends each program, int64 (batch,), and gives what the head reads, (batch, hidden). Its arguments are `widths`, the
columns of both kinds of rows, `dim` of the tokens, `hidden`, `heads` of every attention and `dropout` of embedded rows.

Source: Ito, Dan, Rigotti, Kozloski, Campbell 2024, arXiv:2401.15030; sizes follow IBM/gcog.
"""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mereo.data.questions.world import ANSWERS, ROW, RULE, SCENE, SCENE_ROWS, one_hot, split_rows
from mereo.errors import UsageError, check_choice, check_count, check_heads, check_positive, check_probability
from mereo.layers.feed_forward import FeedForward
from mereo.layers.positions import sinusoids
from mereo.mechanisms.attention.dense.multi_head import MultiHeadAttention
from mereo.models.layers import layer_depths
from mereo.models.network import Network
from mereo.models.registry import register_model

ENCODINGS = {"numbers": (RULE, SCENE), "one_hot": (84, 37)}
"""The forms in which rows are read, each with the columns of a program's row and of a scene's."""
LATENTS = 10
ONE_HOT_SPREAD = 0.5
"""Of weights that embed one-hot rows: the two ones of a cell then have the variance of the sines of its place, 1/2."""


def ends_of(rule: Tensor) -> Tensor:
    """The row that ends each program, whose 8th number is 1; the last row if there is none: int64 (batch,)."""
    places = torch.arange(rule.shape[1], device=rule.device)
    return torch.where(rule[..., RULE - 1] == 1, places, rule.shape[1] - 1).amin(1)


def _layers(*sizes: int) -> nn.Sequential:
    """Linear layers, a ReLU behind each."""
    return nn.Sequential(*(layer for size, to in pairwise(sizes) for layer in (nn.Linear(size, to), nn.ReLU())))


class PostNormBlock(nn.Module):
    """A transformer block whose norms stand behind the residual connections.

    z = embed(rows) + positions;  y = norm(z + attention(z));  out = norm(y + act(second(act(first(y)))))

    Args:
        dim, num_heads: of the attention.
        read: columns of rows that a linear layer embeds first; None for rows of `dim` columns.
        dropout: of z.
        wide: whether the hidden layer has 4 dim units and activations are GELU; otherwise dim units and ReLU.

    Shapes: rows (batch, rows, read or dim), positions (batch or 1, rows), mask bool (batch, rows) or None
        -> (batch, rows, dim).
    """

    def __init__(
        self, dim: int, num_heads: int, read: int | None = None, dropout: float = 0.1, *, wide: bool = False
    ) -> None:
        super().__init__()
        self.embed = None if read is None else nn.Linear(read, dim)
        self.drop = nn.Dropout(dropout)
        self.attention = MultiHeadAttention(dim, num_heads)
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        activation = nn.GELU if wide else nn.ReLU
        self.mlp = nn.Sequential(FeedForward(dim, 4 * dim if wide else dim, activation=activation), activation())

    def forward(self, rows: Tensor, positions: Tensor, mask: Tensor | None = None) -> Tensor:
        x = rows if self.embed is None else self.embed(rows)
        x = self.drop(x + sinusoids(positions, x))
        x = self.norm1(x + self.attention(x, mask=mask))
        out: Tensor = self.norm2(x + self.mlp(x))
        return out


class Recurrent(nn.Module):
    """A ReLU network ("rnn") or a GRU over the rows of the program, with the whole scene beside each row.

    rnn: h <- relu(W x + b + U h + c)
    gru: r, z = sigmoid(W x + b + U h + c);  n = tanh(W_n x + b_n + r (U_n h + c_n));  h <- (1 - z) n + z h
    """

    def __init__(self, kind: str, widths: tuple[int, int], hidden: int) -> None:
        super().__init__()
        self.gated = kind == "gru"
        gates = 3 if self.gated else 1
        self.input = nn.Linear(widths[0] + SCENE_ROWS * widths[1], gates * hidden)
        self.state = nn.Linear(hidden, gates * hidden)
        self.norm = nn.LayerNorm(hidden)
        for parameter in (*self.input.parameters(), *self.state.parameters()):
            nn.init.uniform_(parameter, -(hidden**-0.5), hidden**-0.5)

    def forward(self, rule: Tensor, scene: Tensor, ends: Tensor) -> Tensor:
        whole = scene.flatten(1).unsqueeze(1).expand(-1, rule.shape[1], -1)
        given = self.input(torch.cat((rule, whole), -1))
        state = given.new_zeros(given.shape[0], self.state.in_features)
        for step, x in enumerate(given.unbind(1)):
            moved = self.state(state)
            if self.gated:
                (r, z, n), (r0, z0, n0) = x.chunk(3, -1), moved.chunk(3, -1)
                z = (z + z0).sigmoid()
                new = (1 - z) * (n + (r + r0).sigmoid() * n0).tanh() + z * state
            else:
                new = (x + moved).relu()
            state = torch.where((step <= ends).unsqueeze(-1), new, state)
        out: Tensor = self.norm(state)
        return out


class SingleStream(nn.Module):
    """One sequence: the rows of the program, then the rows of the scene; its last token, the end of the scene, is read.

    Args:
        blocks: 1, or more with a shared embedding and `wide` blocks.
    """

    def __init__(self, widths: tuple[int, int], dim: int, hidden: int, heads: int, dropout: float, blocks: int) -> None:
        super().__init__()
        self.embed = None if blocks == 1 else nn.Linear(sum(widths), dim)
        self.blocks = nn.ModuleList(
            PostNormBlock(dim, heads, sum(widths) if blocks == 1 else None, dropout, wide=blocks > 1)
            for _ in range(blocks)
        )
        self.mlp: nn.Module = nn.Identity()
        if blocks == 1:
            self.mlp = nn.Sequential(_layers(dim, hidden, 2 * hidden, hidden), nn.LayerNorm(hidden))

    def forward(self, rule: Tensor, scene: Tensor, ends: Tensor) -> Tensor:
        rows = torch.cat(
            (nn.functional.pad(rule, (0, scene.shape[-1])), nn.functional.pad(scene, (rule.shape[-1], 0))), 1
        )
        # Places count real rows, so that padding between program and scene changes nothing.
        places, cells = (torch.arange(part.shape[1], device=rule.device) for part in (rule, scene))
        positions = torch.cat((places.expand(rule.shape[0], -1), ends.unsqueeze(1) + 1 + cells), 1)
        mask = torch.cat((places <= ends.unsqueeze(1), torch.ones_like(scene[..., 0], dtype=torch.bool)), 1)
        x = rows if self.embed is None else self.embed(rows)
        for block in self.blocks:
            x = block(x, positions, mask)
        out: Tensor = self.mlp(x[:, -1])
        return out


class TwoStreams(nn.Module):
    """A block for the program and a block for the scene, whose outputs a subclass joins."""

    def __init__(self, widths: tuple[int, int], dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.rule, self.scene = (PostNormBlock(dim, heads, width, dropout) for width in widths)

    def streams(self, rule: Tensor, scene: Tensor, ends: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The outputs of both blocks, and which rows of the programs are no padding."""
        places, cells = (torch.arange(part.shape[1], device=rule.device).unsqueeze(0) for part in (rule, scene))
        mask = places <= ends.unsqueeze(1)
        return self.rule(rule, places, mask), self.scene(scene, cells), mask


def at_end(rows: Tensor, ends: Tensor) -> Tensor:
    """The row that ends each program: (batch, rows, dim) -> (batch, dim)."""
    return rows.gather(1, ends.view(-1, 1, 1).expand(-1, 1, rows.shape[-1])).squeeze(1)


class DualStream(TwoStreams):
    """The last tokens of both streams, r and s, are added behind a layer each.

    out = norm(mlp(norm(relu(A r) + relu(B s))))
    """

    def __init__(self, widths: tuple[int, int], dim: int, hidden: int, heads: int, dropout: float) -> None:
        super().__init__(widths, dim, heads, dropout)
        self.from_rule, self.from_scene = _layers(dim, hidden), _layers(dim, hidden)
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.mlp = _layers(hidden, 2 * hidden, 2 * hidden, hidden)

    def forward(self, rule: Tensor, scene: Tensor, ends: Tensor) -> Tensor:
        program, cells, _ = self.streams(rule, scene, ends)
        joint = self.from_rule(at_end(program, ends)) + self.from_scene(cells[:, -1])
        out: Tensor = self.norm2(self.mlp(self.norm1(joint)))
        return out


class CrossAttention(TwoStreams):
    """A latent of zeros attends to the program, and what it reads attends to the scene.

    y = norm(attend(0, program));   out = norm(attend(y, scene) + y)

    Deviates: a norm for each step; IBM/gcog uses one for both and has one that it never uses. The queries of zeros do
    not depend on their weight, which is not trained.
    """

    def __init__(self, widths: tuple[int, int], dim: int, hidden: int, heads: int, dropout: float) -> None:
        super().__init__(widths, dim, heads, dropout)
        self.to_rule, self.to_scene = (MultiHeadAttention(hidden, heads, context_dim=dim) for _ in range(2))
        self.to_rule.query.weight.requires_grad_(False)
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)

    def forward(self, rule: Tensor, scene: Tensor, ends: Tensor) -> Tensor:
        program, cells, mask = self.streams(rule, scene, ends)
        zeros = program.new_zeros(program.shape[0], 1, self.to_rule.query.in_features)
        latent = self.norm1(self.to_rule(zeros, program, mask))
        out: Tensor = self.norm2(self.to_scene(latent, cells) + latent).squeeze(1)
        return out


class RuleCrossAttention(TwoStreams):
    """The program queries the scene, and the row that ends it is read.

    y = norm(attend(program, scene)) + program;   out = norm(mlp(y))
    """

    def __init__(self, widths: tuple[int, int], dim: int, hidden: int, heads: int, dropout: float) -> None:
        super().__init__(widths, dim, heads, dropout)
        self.to_scene = MultiHeadAttention(dim, heads)
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(hidden)
        self.mlp = _layers(dim, hidden, hidden)

    def forward(self, rule: Tensor, scene: Tensor, ends: Tensor) -> Tensor:
        program, cells, _ = self.streams(rule, scene, ends)
        joint = self.norm1(self.to_scene(program, cells)) + program
        out: Tensor = self.norm2(self.mlp(at_end(joint, ends)))
        return out


class Perceiver(TwoStreams):
    """Latents of zeros attend to the program, to themselves, to the scene and to themselves; the last one is read.

    Deviates: latents that start alike stay alike, so their attention to themselves is a mean of equal values whatever
    its queries and keys. These, and the queries of zeros, do not change an output and are not trained.
    """

    def __init__(self, widths: tuple[int, int], dim: int, hidden: int, heads: int, dropout: float) -> None:
        super().__init__(widths, dim, heads, dropout)
        self.to_rule, self.to_scene = (MultiHeadAttention(hidden, heads, context_dim=dim) for _ in range(2))
        self.rule_norm, self.scene_norm, self.norm = (nn.LayerNorm(hidden) for _ in range(3))
        self.rule_mlp, self.scene_mlp, self.mlp = (_layers(hidden, hidden) for _ in range(3))
        self.to_latents = MultiHeadAttention(hidden, heads)
        self.to_rule.query.weight.requires_grad_(False)
        for layer in (self.to_latents.query, self.to_latents.key):
            layer.requires_grad_(False)

    def forward(self, rule: Tensor, scene: Tensor, ends: Tensor) -> Tensor:
        program, cells, mask = self.streams(rule, scene, ends)
        latents = program.new_zeros(program.shape[0], LATENTS, self.to_rule.query.in_features)
        for attend, norm, mlp, context, there in (
            (self.to_rule, self.rule_norm, self.rule_mlp, program, mask),
            (self.to_scene, self.scene_norm, self.scene_mlp, cells, None),
        ):
            found = norm(attend(latents, context, there))
            latents = self.norm(mlp(found) + found + latents)
            latents = self.norm(self.to_latents(latents) + latents)
        out: Tensor = self.mlp(latents[:, -1])
        return out


STREAMS: dict[str, Callable[..., nn.Module]] = {
    "dual": DualStream, "cross": CrossAttention, "rule_cross": RuleCrossAttention, "perceiver": Perceiver,
}  # fmt: skip
READERS = ("rnn", "gru", "single", *STREAMS)


class QuestionReader(Network):
    """Score the answers to a question from the rows of its program and the rows of its scene.

    log p(answer) = log_softmax(head(reader(program, scene)))

    Args:
        num_classes: number of answers.
        reader: "rnn", "gru", "single" (one stream), "dual" (two streams), "cross" and "perceiver" (latents), or
            "rule_cross" (the program queries the scene).
        dim: of the tokens.
        hidden: of the recurrent state, the latents and what the head reads.
        num_heads: of every attention.
        blocks: of "single".
        dropout: of embedded rows.
        encoding: "numbers", as the rows are, or "one_hot".
        context: rows of a question that it is made for; it reads any number.

    Shapes: (batch, rows, 11), as `mereo.data.questions.world.join_rows` makes them: rows of the program, its end and
        rows of zeros, then 101 rows of the scene -> log probabilities (batch, num_classes).

    Deviates: rows behind the end of a program take no part, where IBM/gcog reads them as its last tokens; its GRU fails
    at its sizes and here reads the same rows as the ReLU network; projections start from Xavier's distribution, and
    embeddings of one-hot rows as large as the sines of their places, or else their sum says little but the place.

    Reference: arXiv:2401.15030, section 2.4.
    """

    output_kind: ClassVar[str] = "scores"
    input_kind: ClassVar[str] = "rows"
    registered_with_timm = False
    usual_rate: ClassVar[float] = 1e-4

    def __init__(
        self,
        num_classes: int = len(ANSWERS),
        reader: str = "rnn",
        dim: int = 256,
        *,
        hidden: int = 512,
        num_heads: int = 1,
        blocks: int = 1,
        dropout: float = 0.1,
        encoding: str = "numbers",
        context: int = 2 + SCENE_ROWS,
    ) -> None:
        super().__init__()
        check_choice("reader", reader, READERS)
        check_choice("encoding", encoding, ENCODINGS)
        check_positive(num_classes=num_classes, hidden=hidden, blocks=blocks)
        check_heads(dim, num_heads)
        check_heads(hidden, num_heads)
        check_probability(dropout=dropout)
        check_count(SCENE_ROWS + 1, context=context)
        if dim % 2:
            raise UsageError(f"dim is {dim}; positions are sines and cosines, so it must be even.")
        if blocks > 1 and reader != "single":
            raise UsageError(f"blocks is {blocks} and reader {reader!r}; only 'single' has several blocks.")
        self.num_classes, self.encoding, self.context = num_classes, encoding, context
        widths = ENCODINGS[encoding]
        self.num_features = dim if blocks > 1 else hidden
        self.reader: nn.Module
        if reader in ("rnn", "gru"):
            self.reader = Recurrent(reader, widths, hidden)
        elif reader == "single":
            self.reader = SingleStream(widths, dim, hidden, num_heads, dropout, blocks)
        else:
            self.reader = STREAMS[reader](widths, dim, hidden, num_heads, dropout)
        if encoding == "one_hot":
            for name, layer in self.reader.named_modules():
                if isinstance(layer, nn.Linear) and name.endswith("embed"):
                    nn.init.normal_(layer.weight, std=ONE_HOT_SPREAD)
        self.head = nn.Linear(self.num_features, num_classes)

    def forward_features(self, inputs: Tensor) -> Tensor:
        """What the head reads: (batch, num_features)."""
        if inputs.dim() != 3 or inputs.shape[1] <= SCENE_ROWS or inputs.shape[2] != ROW:
            raise UsageError(
                f"rows are {tuple(inputs.shape)}; they must be (batch, program + {SCENE_ROWS}, {ROW}), with at least"
                " one row of a program."
            )
        if not inputs.is_floating_point():
            raise UsageError(f"rows are {inputs.dtype}; they must be floating point.")
        rule, scene = split_rows(inputs)
        ends = ends_of(rule)
        if self.encoding == "one_hot":
            rule, scene = one_hot(rule, scene)
        if self.grad_checkpointing and self.training:
            found: Tensor = checkpoint(self.reader, rule, scene, ends, use_reentrant=False)
            return found
        return self.reader(rule, scene, ends)

    def forward_head(self, features: Any, pre_logits: bool = False) -> Tensor:
        """Log probabilities of the answers; with `pre_logits` the features."""
        if pre_logits:
            return features
        scores: Tensor = self.head(features)
        return scores.log_softmax(-1)

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self.context, ROW

    def layer_depths(self) -> dict[str, int]:
        """The layer of each parameter by name: the reader, the head."""
        return layer_depths([name for name, _ in self.named_parameters()], ["reader"], self.classifier_parts)


_register = partial(register_model, module=QuestionReader, source="arXiv:2401.15030")

_register(
    "gcog_rnn",
    summary="ReLU network of 512 units for questions about a scene.",
    parameters=494_218,
    tiny={"reader": "dual", "dim": 8, "hidden": 12, "num_heads": 2, "num_classes": 5, "context": 104},
    variants={
        "rnn": {"reader": "rnn"},
        "gru in one-hot rows": {"reader": "gru"},
        "one stream": {"reader": "single"},
        "one deep stream": {"reader": "single", "blocks": 2},
        "latent": {"reader": "cross"},
        "program queries scene": {"reader": "rule_cross"},
        "latents": {"reader": "perceiver"},
    },
    reader="rnn",
)
_register("gcog_gru", summary="GRU of 512 units for questions about a scene.", parameters=1_339_018, reader="gru")
_register(
    "gcog_single_stream",
    summary="Transformer of one block over program and scene in one sequence.",
    parameters=1_652_362,
    reader="single",
)
_register(
    "gcog_single_stream_deep",
    summary="Transformer of four blocks with four heads over program and scene in one sequence.",
    parameters=3_197_578,
    reader="single",
    blocks=4,
    num_heads=4,
)
_register(
    "gcog_dual_stream",
    summary="A transformer block for the program and one for the scene, their last tokens added.",
    parameters=3_230_602,
    reader="dual",
)
_register(
    "gcog_cross_attention",
    summary="A latent that attends to the program, then to the scene.",
    parameters=2_444_682,
    reader="cross",
)
_register(
    "gcog_rule_cross_attention",
    summary="The program attends to the scene; 256 units.",
    parameters=1_226_122,
    reader="rule_cross",
    hidden=256,
)
_register(
    "gcog_perceiver",
    summary="Ten latents that attend to the program, the scene and themselves.",
    parameters=4_284_298,
    reader="perceiver",
)
