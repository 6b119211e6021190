"""The base of networks that read tokens: embedding, a stack of blocks, a norm, scores of the next token."""

from collections.abc import Iterable
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mereo.core.inputs import check_streamed
from mereo.core.kernels.transforms import fallback_reason
from mereo.core.modes import modes_kept
from mereo.errors import UsageError, check_count, check_not_negative, check_positive
from mereo.models.layers import layer_depths
from mereo.models.network import Network


class SequenceState(NamedTuple):
    """The state of a model between parts of a sequence.

    Attributes:
        position: number of tokens read so far.
        blocks: the state of each block; empty if the model reads everything again.
        tokens: int64 (batch, position), tokens to read again, at most the `longest` last ones; None for a model that
            streams.
    """

    position: int
    blocks: tuple[Any, ...] = ()
    tokens: Tensor | None = None


class SequenceModel(Network):
    """A network from tokens to the scores of the token that follows each of them.

    x_0 = scale embedding(tokens),   x_i = block_i(x_(i-1)),   scores = head(norm(x_L))

    A subclass makes its blocks and its norm and gives them to this constructor. Its own constructor's arguments are
    plain values: they are the configuration that is saved with the weights.

    A block is a module `block(x, mask) -> x`, residual connections included; `mask` is bool (batch, tokens), True for
    tokens that are not padding, or None. A block that can go on from a state has `extend(x, state) -> (x, state)` as
    well, with the state None before the first token. If every block has it, `step` and `generate` use it; otherwise
    all tokens are read again for each new one.

    Args:
        vocab_size: number of tokens, and of scores.
        dim: size of the embedding.
        context: tokens of the windows that it is trained on by default.
        blocks: in order.
        norm: before the head.
        tied: whether the head is the embedding, transposed.
        head_bias: whether the head has a bias; only if it is not tied.
        scale: factor of the embedding.

    Shapes: tokens int64 (batch, tokens), lengths int64 (batch,) -> scores (batch, tokens, vocab_size).

    Attributes:
        longest: most tokens that it can read at once; None for any number.
        causal: whether a token changes no scores of earlier tokens, in evaluation.
        num_features: size of what `forward_features` gives, `dim`.

    See `Network` for the other attributes.
    """

    output_kind = input_kind = "tokens"
    outputs_argument = "vocab_size"
    registered_with_timm = False
    causal: ClassVar[bool] = True

    longest: int | None = None

    def __init__(
        self,
        vocab_size: int,
        dim: int,
        context: int,
        blocks: Iterable[nn.Module],
        norm: nn.Module,
        *,
        tied: bool = False,
        head_bias: bool = False,
        scale: float = 1.0,
    ) -> None:
        super().__init__()
        check_positive(vocab_size=vocab_size, dim=dim, context=context)
        if tied and head_bias:
            raise UsageError("head_bias is True with tied=True; the embedding has no bias: leave one of them out.")
        self.vocab_size = self.num_classes = vocab_size
        self.num_features, self.context, self.scale = dim, context, scale
        self.embedding = nn.Embedding(vocab_size, dim)
        self.blocks = nn.ModuleList(blocks)
        self.norm = norm
        self.head = None if tied else nn.Linear(dim, vocab_size, bias=head_bias)
        self._initialise()

    def _initialise(self) -> None:
        for module in (self.embedding, self.head):
            if module is not None:
                nn.init.normal_(module.weight, std=0.02)

    # --- what a network may define ----------------------------------------------------------------------------------

    def embed(self, tokens: Tensor, position: int = 0) -> Tensor:
        """The input of the first block.

        Args:
            position: number of the first of these tokens, for networks with absolute positions.

        Shapes: int64 (batch, tokens) -> (batch, tokens, dim).
        """
        embedded: Tensor = self.embedding(tokens)
        return embedded * self.scale

    # --- tokens at once ---------------------------------------------------------------------------------------------

    def forward_features(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """The input of the head: (batch, tokens) -> (batch, tokens, dim)."""
        self.check_tokens(tokens)
        if self.longest is not None and tokens.shape[1] > self.longest:
            raise UsageError(
                f"tokens are {tuple(tokens.shape)}; this model reads at most {self.longest}; give shorter parts."
            )
        mask = None if lengths is None else self._mask(tokens, lengths)
        x = self.embed(tokens)
        again = self.grad_checkpointing and self.training and torch.is_grad_enabled()
        for block in self.blocks:
            x = checkpoint(block, x, mask, use_reentrant=False) if again else block(x, mask)
        return self.norm(x)

    @staticmethod
    def _mask(tokens: Tensor, lengths: Tensor) -> Tensor:
        if lengths.shape != tokens.shape[:1]:
            raise UsageError(
                f"lengths are {tuple(lengths.shape)}; they must be ({len(tokens)},), one for each sequence."
            )
        return torch.arange(tokens.shape[1], device=tokens.device) < lengths.unsqueeze(1)

    def forward_head(self, features: Tensor, pre_logits: bool = False) -> Tensor:
        """Scores of the features: (batch, tokens, dim) -> (batch, tokens, vocab_size)."""
        if pre_logits:
            return features
        if self.head is None:
            return F.linear(features, self.embedding.weight)
        return self.head(features)

    def forward(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Scores of the next token at each place.

        Args:
            lengths: of the sequences, if some are padded at their end; the scores of padding mean nothing.
        """
        return self.forward_head(self.forward_features(tokens, lengths))

    # --- token by token ---------------------------------------------------------------------------------------------

    @property
    def streams(self) -> bool:
        """Whether every block can go on from a state, so that no token is read twice."""
        return all(getattr(block, "streams", hasattr(block, "extend")) for block in self.blocks)

    def extend(self, tokens: Tensor, state: SequenceState | None = None) -> tuple[Tensor, SequenceState]:
        """The next tokens after `state`: their scores, and the state after them.

        Shapes: int64 (batch, tokens) -> (batch, tokens, vocab_size).
        """
        read = {} if getattr(state, "tokens", None) is None else {"tokens": (None,)}
        check_streamed(type(self).__name__, tokens, "(batch, tokens)", state, SequenceState, **read)
        state = SequenceState(0) if state is None else state
        self._check_state(state)
        position = state.position + tokens.shape[1]
        if not self.streams:
            return self._read_again(tokens, state, position)
        self.check_tokens(tokens)
        x, before, behind = self.embed(tokens, state.position), state.blocks or (None,) * len(self.blocks), []
        for block, carried in zip(self.blocks, before, strict=True):
            extend: Any = block.extend
            x, after = extend(x, carried)
            behind.append(after)
        return self.forward_head(self.norm(x)), SequenceState(position, tuple(behind))

    def _check_state(self, state: SequenceState) -> None:
        """UsageError unless this network can go on from a state; its blocks look at their own."""
        fresh = not state.position and not state.blocks
        if self.streams:
            fits = state.tokens is None and (fresh or len(state.blocks) == len(self.blocks))
        else:
            fits = not state.blocks and (fresh or state.tokens is not None)
        if not fits:
            raise UsageError(
                f"{type(self).__name__}: the state is of another network; give what the same one returned."
            )

    def _read_again(self, tokens: Tensor, state: SequenceState, position: int) -> tuple[Tensor, SequenceState]:
        known = tokens if state.tokens is None else torch.cat((state.tokens, tokens), 1)
        if self.longest is not None and tokens.shape[1] <= self.longest:
            known = known[:, -self.longest :]
        return self(known)[:, known.shape[1] - tokens.shape[1] :], SequenceState(position, (), known)

    def step(self, token: Tensor, state: SequenceState | None = None) -> tuple[Tensor, SequenceState]:
        """One token: int64 (batch,) and the state before it -> scores (batch, vocab_size) and the state behind it."""
        scores, state = self.extend(token.unsqueeze(1), state)
        return scores.squeeze(1), state

    @torch.inference_mode()
    def generate(
        self,
        tokens: Tensor,
        count: int,
        *,
        temperature: float = 1.0,
        top: int | None = None,
        generator: torch.Generator | None = None,
        state: SequenceState | None = None,
    ) -> Tensor:
        """Continue sequences by a number of tokens, drawn from softmax(scores / temperature).

        Args:
            tokens: at least one in each sequence.
            count: how many follow.
            temperature: 0 always takes the token of the highest score.
            top: the number of tokens of the highest scores to draw from; all when None.
            generator: of the draws, on the device of the tokens.
            state: what was read before the tokens; nothing by default.

        Shapes: int64 (batch, tokens) -> int64 (batch, count).
        """
        check_count(count=count)
        check_not_negative(temperature=temperature)
        if top is not None:
            check_count(1, top=top)
            if top > self.vocab_size:
                raise UsageError(f"top is {top}; it must be from 1 to {self.vocab_size}.")
        if tokens.dim() != 2 or tokens.shape[1] == 0:
            raise UsageError(f"tokens are {tuple(tokens.shape)}; to be continued, they must be (batch, at least 1).")
        drawn, following = [], tokens
        with modes_kept(self):
            self.eval()
            for _ in range(count):
                scores, state = self.extend(following, state)
                following = _draw(scores[:, -1].float(), temperature, top, generator).unsqueeze(1)
                drawn.append(following)
        return torch.cat(drawn, 1) if drawn else tokens[:, :0]

    # --- what every network has -------------------------------------------------------------------------------------

    def check_tokens(self, tokens: Tensor) -> None:
        """UsageError unless tokens are whole numbers (batch, tokens) below `vocab_size`."""
        if tokens.dim() != 2:
            raise UsageError(f"tokens are {tuple(tokens.shape)}; this model takes (batch, tokens).")
        if tokens.dtype not in (torch.int64, torch.int32):
            raise UsageError(f"tokens are {tokens.dtype}; this model takes whole numbers, such as tokens.long().")
        if torch.compiler.is_compiling() or fallback_reason() is not None or tokens.device.type == "meta":
            return
        if tokens.device != self.embedding.weight.device:
            raise UsageError(f"tokens are on {tokens.device}, the weights on {self.embedding.weight.device}; move one.")
        if tokens.numel():
            low, high = (int(value) for value in tokens.aminmax())
            if low < 0 or high >= self.vocab_size:
                wrong = low if low < 0 else high
                raise UsageError(f"tokens hold {wrong}; this model has the tokens 0 to {self.vocab_size - 1}.")

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (self.context,)

    def example_inputs(self, count: int) -> Tensor:
        """Random tokens, int64 (batch, context), no longer than the model reads at once."""
        length = self.context if self.longest is None else min(self.context, self.longest)
        return torch.randint(self.vocab_size, (count, length), device=self.embedding.weight.device)

    def get_classifier(self) -> nn.Module:
        """The module that makes the scores: the embedding if it is tied."""
        return self.embedding if self.head is None else self.head

    def layer_depths(self) -> dict[str, int]:
        """The layer of each parameter by name: the embedding with the first block, a layer a block, the head last."""
        names = [name for name, _ in self.named_parameters()]
        return layer_depths(names, [f"blocks.{i}" for i in range(len(self.blocks))], self.classifier_parts)


def _draw(scores: Tensor, temperature: float, top: int | None, generator: torch.Generator | None) -> Tensor:
    """One token for each row of scores (batch, vocab_size): int64 (batch,)."""
    if temperature == 0:
        return scores.argmax(-1)
    if top is not None:
        least = scores.topk(top, -1).values[:, -1:]
        scores = scores.masked_fill(scores < least, -torch.inf)
    # The highest score is subtracted first, so that a tiny temperature does not overflow.
    shares = ((scores - scores.amax(-1, keepdim=True)) / temperature).softmax(-1)
    return torch.multinomial(shares, 1, generator=generator).squeeze(1)
