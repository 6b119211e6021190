"""A decoder with softmax attention, or with any causal mechanism by name: TNL, Combiner, Routing Transformer.

Source: arXiv:1706.03762 (attention), arXiv:2104.09864 (rotary positions), arXiv:2108.12409 and arXiv:2410.18441 (biases
by distance); norm and channel mixer are from TNL.
Cost: 2 (4 C^2 + 3 C G) FLOPs a token and layer, and 4 N C for attention to N tokens. Read token by token, the keys and
values of all tokens are kept: 2 N C numbers a layer.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mereo.core import Causal, Coupling
from mereo.core.inputs import check_streamed
from mereo.core.kernels.attention import attend
from mereo.core.modes import modes_kept
from mereo.core.recurrence import DEGREE, Recurrence, softmax_recurrence
from mereo.core.rotary import rotate
from mereo.errors import UsageError, check_choice, check_not_negative, check_positive, check_probability
from mereo.layers import DecoderBlock, SimpleRMSNorm, StaircaseCache, distance_bias
from mereo.layers.positions import DISTANCES
from mereo.mechanisms.scan.lightning import decay_slopes
from mereo.mechanisms.slots import NO_ARGUMENTS
from mereo.models.registry import register_model
from mereo.models.sequence_model import SequenceModel, SequenceState

CHANNELS: dict[str, Callable[[], nn.Module] | None] = {"gated": None, "gelu": nn.GELU, "relu": nn.ReLU}
"""Channel mixers, with the activation of the hidden layer."""
POSITIONS = ("rotary", "distance", "slopes", "factor")


class KeyValueState(NamedTuple):
    """The keys and values of all tokens read so far: (batch, heads, tokens, dim) each."""

    keys: Tensor
    values: Tensor

    def join(self, keys: Tensor, values: Tensor) -> "tuple[Tensor, Tensor, KeyValueState]":
        """All keys and values with some new ones, and the state after them."""
        both = KeyValueState(torch.cat((self.keys, keys), 2), torch.cat((self.values, values), 2))
        return *both, both

    @property
    def position(self) -> int:
        """Tokens read so far."""
        return self.keys.shape[2]


def bias_slopes(num_heads: int, slopes: str, factor: float) -> list[float]:
    """factor m_h for h = 1 .. H: m_h = 2^(-8 h / H) for "alibi", see `decay_slopes`, and 1 / h for "harmonic"."""
    check_choice("slopes", slopes, ("alibi", "harmonic"))
    check_not_negative(factor=factor)
    heads = decay_slopes(num_heads) if slopes == "alibi" else [1 / h for h in range(1, num_heads + 1)]
    return [factor * slope for slope in heads]


class RotaryBlock(DecoderBlock):
    """Causal softmax attention with rotary positions, and a channel mixer, each behind a norm.

    score_hij = (R_i q_i) . (R_j k_j) / sqrt(D) - factor m_h b(i - j),   j <= i

    Args:
        dim: of the tokens.
        num_heads: divides `dim`, into an even number of channels each.
        hidden_dim, dropout, activation: see `DecoderBlock`.
        rotary: whether queries and keys are turned by their positions.
        distance: b, "linear" or "harmonic", see `distance_bias`; None for no bias.
        slopes: m of the heads, "alibi" or "harmonic", see `bias_slopes`.
        factor: at least 0; 0 is no bias either.

    Shapes: (batch, tokens, dim), mask bool (batch, tokens) or None -> (batch, tokens, dim).
    """

    streams = True

    def __init__(
        self,
        dim: int,
        num_heads: int,
        hidden_dim: int,
        dropout: float = 0.0,
        activation: Callable[[], nn.Module] | None = None,
        *,
        rotary: bool = True,
        distance: str | None = None,
        slopes: str = "alibi",
        factor: float = 1.0,
    ) -> None:
        if dim % ((1 + rotary) * num_heads):
            least = "2 num_heads" if rotary else "num_heads"
            raise UsageError(f"dim is {dim} and num_heads {num_heads}; dim must be a multiple of {least}.")
        if distance is not None:
            check_choice("distance", distance, DISTANCES)
        super().__init__(dim, nn.Identity(), hidden_dim, dropout, activation)
        self.num_heads, self.rotary = num_heads, rotary
        self.slopes = bias_slopes(num_heads, slopes, factor)
        self.distance = distance if factor else None
        self.qkv, self.proj = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        for layer in (self.qkv, self.proj):
            nn.init.normal_(layer.weight, std=0.02)
        self.coupling = Coupling("senders", dropout=dropout, topology=Causal())

    def _read(self, x: Tensor, position: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values: (batch, tokens, dim) -> (batch, heads, tokens, channels) each."""
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.num_heads, -1)).transpose(1, 3).unbind(2)
        return (rotate(q, position), rotate(k, position), v) if self.rotary else (q, k, v)

    def _written(self, x: Tensor, mixed: Tensor) -> Tensor:
        """The output of the block: tokens and (batch, heads, tokens, channels) -> (batch, tokens, dim)."""
        return self.add(x, self.proj(mixed.transpose(1, 2).flatten(2)))

    def recurrence(self, x: Tensor, degree: int = DEGREE) -> Recurrence:
        """The attention by the Taylor polynomial of its softmax, with the block's outputs: see `mereo.recurrence`."""
        if self.distance is not None:
            raise UsageError(
                f"distance is {self.distance!r}; a recurrence has no biases by distance, give a block without them."
            )
        if not (self.coupling.is_plain_softmax and isinstance(self.coupling.topology, Causal)):
            raise UsageError(
                f"the coupling is {self.coupling}; only that of causal softmax attention has a recurrence."
            )

        def finish(mixed: Tensor) -> Tensor:
            with modes_kept(self):
                return self.eval()._written(x, mixed)  # without dropout

        return softmax_recurrence(*self._read(x), degree, finish)

    def extend(
        self, x: Tensor, state: KeyValueState | StaircaseCache | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, KeyValueState | StaircaseCache]:
        """The next tokens after `state`, and the keys and values of all tokens."""
        size = (self.num_heads, None, self.proj.in_features // self.num_heads)
        shapes = {} if getattr(state, "keys", None) is None else {"keys": size, "values": size}
        check_streamed(type(self).__name__, x, "(batch, tokens, dim)", state, (KeyValueState, StaircaseCache), **shapes)
        position = 0 if state is None else state.position
        q, k, v = self._read(x, position)
        after: KeyValueState | StaircaseCache
        k, v, after = (k, v, KeyValueState(k, v)) if state is None else state.join(k, v)
        senders = None if mask is None else mask[:, None, None, :]
        bias = None
        if self.distance is not None:
            bias = distance_bias(q.new_tensor(self.slopes), self.distance, q.shape[2], k.shape[2])
        mixed = attend(q, k, v, self.coupling, mask=senders, bias=bias)
        return self._written(x, mixed), after

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.extend(x, None, mask)[0]


class CausalTransformer(SequenceModel):
    """Predict the next token by softmax attention to the tokens before it, or by any other causal mechanism.

    x_0 = sqrt(C) embedding,  y = x + mechanism(norm(x)),  x' = y + channels(norm(y)),  scores = W norm(x_L)

    Args:
        vocab_size: number of tokens; 256 for bytes.
        dim: C, size of the tokens.
        depth: number of layers.
        num_heads: of the mechanism.
        hidden_dim: of the channel mixers.
        mechanism: name of the mechanism in place of softmax attention with rotary positions: one that promises
            causality, such as "lightning".
        mechanism_args: arguments of its constructor that the network does not fill in.
        first_layers: number of layers, counted from the first, whose mechanism has other arguments.
        first_args: these arguments.
        channels: "gated" for gated linear units and norms without parameters, "gelu" or "relu" for a feed-forward
            network and layer norms.
        sines: add positions to the embedding, sines and cosines of wavelengths from 2 pi to 10000 * 2 pi.
        positions: of softmax attention: arguments `rotary`, `distance`, `slopes` and `factor` of `RotaryBlock`, such as
            {"distance": "harmonic"}.
        dropout: of couplings, hidden layers and residual branches.
        tied: whether the head is the embedding, transposed.
        head_bias: whether a head that is not tied has a bias.
        context: tokens of the windows that it is trained on; it reads any number, with softmax attention in time that
            grows with its square.

    Shapes: tokens int64 (batch, tokens) -> scores (batch, tokens, vocab_size).

    `step` takes a token and a state; with "lightning" its size does not depend on how many tokens were read. Softmax
    attention keeps older keys and values in fewer bits after `quantised_state`.

    Deviates: norm, channel mixer and positions of softmax attention are by default TNL's, not its paper's, so that it
    differs from TNL in the mixer of tokens only.

    Reference: arXiv:1706.03762, arXiv:2104.09864. Weights normal of 0.02.
    """

    def __init__(
        self,
        vocab_size: int = 256,
        dim: int = 64,
        depth: int = 4,
        num_heads: int = 4,
        hidden_dim: int = 149,
        *,
        mechanism: str | None = None,
        mechanism_args: dict[str, Any] = NO_ARGUMENTS,
        first_layers: int = 0,
        first_args: dict[str, Any] = NO_ARGUMENTS,
        channels: str = "gated",
        sines: bool = False,
        positions: dict[str, Any] = NO_ARGUMENTS,
        dropout: float = 0.0,
        tied: bool = False,
        head_bias: bool = False,
        context: int = 256,
    ) -> None:
        check_positive(dim=dim, depth=depth, num_heads=num_heads, hidden_dim=hidden_dim)
        check_probability(dropout=dropout)
        check_choice("channels", channels, CHANNELS)
        if not 0 <= first_layers <= depth:
            raise UsageError(f"first_layers is {first_layers}; it must be from 0 to depth, which is {depth}.")
        if sines and dim % 2:
            raise UsageError(f"dim is {dim}; it must be even, because positions are pairs of a sine and a cosine.")
        if mechanism is None and (mechanism_args or first_args):
            raise UsageError("mechanism is None, which takes no mechanism_args and first_args; leave them out.")
        if positions and (mechanism is not None or positions.keys() - POSITIONS):
            raise UsageError(
                f"positions are {positions} with mechanism {mechanism!r}; only softmax attention takes them, with the"
                f" names {', '.join(POSITIONS)}."
            )
        activation = CHANNELS[channels]

        def block(layer: int) -> DecoderBlock:
            if mechanism is None:
                return RotaryBlock(dim, num_heads, hidden_dim, dropout, activation, **positions)
            arguments = {**mechanism_args, **(first_args if layer < first_layers else {})}
            return DecoderBlock(
                dim, mechanism, hidden_dim, dropout, activation,
                num_heads=num_heads, layer=layer, num_layers=depth, mechanism_args=arguments,
            )  # fmt: skip

        blocks = [block(layer) for layer in range(depth)]
        norm = SimpleRMSNorm() if activation is None else nn.LayerNorm(dim)
        scale = dim**0.5
        super().__init__(vocab_size, dim, context, blocks, norm, tied=tied, head_bias=head_bias, scale=scale)
        self.sines = sines
        # Which tokens are in a cluster may depend on later ones.
        self.causal = all(getattr(each.mixer, "is_causal", True) for each in self.blocks)  # type: ignore[misc]

    def quantised_state(
        self, bits: Sequence[int] = (16, 8, 4, 2), *, block: int = 64, group: int = 32
    ) -> SequenceState:
        """The state before the first token whose caches take fewer bits for older tokens, see `StaircaseCache`.

        `extend`, `step` and `generate` take it. The tokens of one call see each other's exact keys and values.
        """
        if any(not isinstance(each, RotaryBlock) for each in self.blocks):
            raise UsageError("quantised_state needs softmax attention; this network has another mechanism.")
        return SequenceState(0, (StaircaseCache(tuple(bits), block, group),) * len(self.blocks))

    def embed(self, tokens: Tensor, position: int = 0) -> Tensor:
        embedded = super().embed(tokens, position)
        if not self.sines:
            return embedded
        half = self.num_features // 2
        at = torch.arange(position, position + tokens.shape[1], device=tokens.device, dtype=torch.float32)
        rates = 10000 ** (-torch.arange(half, device=tokens.device, dtype=torch.float32) / half)
        angles = at.unsqueeze(1) * rates
        return embedded + torch.cat((angles.sin(), angles.cos()), -1).to(embedded.dtype)


_register = partial(
    register_model, module=CausalTransformer, source="arXiv:1706.03762", short={"glu_dim": "hidden_dim"}
)

_register(
    "causal_transformer_tiny",
    summary="Softmax attention with as many parameters as tnl_tiny, to 0.2 %.",
    parameters=212_736,
    tiny={"dim": 12, "depth": 2, "num_heads": 3, "hidden_dim": 20, "context": 16, "vocab_size": 31},
    variants={
        "feed-forward, positions": {"channels": "gelu", "sines": True, "tied": True},
        "harmonic distances": {"positions": {"distance": "harmonic"}},
    },
)
_register(
    "causal_transformer_small",
    summary="Softmax attention with as many parameters as tnl_small, to 0.01 %.",
    parameters=2_973_696,
    dim=192,
    depth=6,
    num_heads=6,
    hidden_dim=576,
    context=512,
)
