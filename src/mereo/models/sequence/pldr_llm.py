"""PLDR-LLM: a decoder of power law graph attention, whose matrices G are made of the prompt and kept.

x_0 = LN(sqrt(C) embedding),  y = LN(x + PLGA(x)),  x' = LN(y + GLU(y)),  scores = W x_L + b

Source: arXiv:2502.13502 (keys, values and G kept), arXiv:2410.16703 (the network); the released code.
Cost: see `mereo.mechanisms.attention.PowerLawGraphAttention`; 6 C F FLOPs a token and layer for the channels.
Deviates: tokens of number 0 count in the loss of mereo's language task, as bytes; in the released code 0 is padding.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn

from mereo.mechanisms.attention.dense.power_law_graph import (
    EPSILON,
    GatedUnit,
    GraphState,
    PowerLawGraphAttention,
    start_xavier,
)
from mereo.models.registry import register_model
from mereo.models.sequence_model import SequenceModel


class PowerLawBlock(nn.Module):
    """y = LN(x + mixer(x)),  out = LN(y + channels(y)).

    Args:
        dim: of the tokens.
        mixer: of tokens.
        hidden_dim: of the channel mixer, a `GatedUnit`.

    Shapes: (batch, tokens, dim), mask bool (batch, tokens), True for tokens that are not padding, or None -> the same.
    """

    def __init__(self, dim: int, mixer: PowerLawGraphAttention, hidden_dim: int) -> None:
        super().__init__()
        self.mixer, self.channels = mixer, GatedUnit(dim, hidden_dim)
        self.norm1, self.norm2 = (nn.LayerNorm(dim, eps=EPSILON) for _ in range(2))

    def extend(
        self, x: Tensor, state: GraphState | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, GraphState]:
        """The next tokens after `state`, and the state after them."""
        mixed, state = self.mixer.extend(x, state, mask)
        y = self.norm1(x + mixed)
        return self.norm2(y + self.channels(y)), state

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.extend(x, None, mask)[0]


class PLDRLLM(SequenceModel):
    """Predict the next token by power law graph attention to the tokens before it.

    x_0 = LN(sqrt(C) embedding),  y = LN(x + PLGA(x)),  x' = LN(y + GLU(y)),  scores = W x_L + b

    Args:
        vocab_size: number of tokens; 256 for bytes.
        dim: C, size of the tokens.
        depth: number of layers.
        num_heads: of the attention.
        hidden_dim: of the channel mixers; 2 / 3 of 4 C in the paper.
        units, gates, metric_hidden: of the networks that make G, see `PowerLawGraphAttention`.
        metric_scope: "all" or "prefix". With "all", in one pass over a sequence, such as training, scores depend on
            later tokens, so their loss is none of prediction; `extend` and `generate` make G of the first part alone.
        graph: "learned", "identity" or "given".
        dag: weights of the losses of A_LM, A_P and G_LM; 0.05 each in the released training with them.
        context: tokens of the windows that it is trained on.

    Shapes: tokens int64 (batch, tokens) -> scores (batch, tokens, vocab_size).

    Deviates: the embedding starts normal of 0.02, in place of 1, before a norm.

    Reference: arXiv:2502.13502, arXiv:2410.16703.
    """

    def __init__(
        self,
        vocab_size: int = 256,
        dim: int = 64,
        depth: int = 2,
        num_heads: int = 4,
        hidden_dim: int = 170,
        *,
        units: int = 2,
        gates: int = 2,
        metric_hidden: int = 32,
        metric_scope: str = "all",
        graph: str = "learned",
        dag: Sequence[float] = (0.0, 0.0, 0.0),
        context: int = 64,
    ) -> None:
        make = partial(
            PowerLawGraphAttention, dim, num_heads, units=units, gates=gates, hidden=metric_hidden,
            metric_scope=metric_scope, graph=graph, dag=dag,
        )  # fmt: skip
        blocks = [PowerLawBlock(dim, make(), hidden_dim) for _ in range(depth)]
        super().__init__(vocab_size, dim, context, blocks, nn.Identity(), head_bias=True, scale=dim**0.5)
        self.embedding_norm = nn.LayerNorm(dim, eps=EPSILON)
        assert isinstance(self.head, nn.Linear)
        start_xavier(self.head)
        self.causal = all(block.mixer.is_causal for block in blocks)  # type: ignore[misc]

    def embed(self, tokens: Tensor, position: int = 0) -> Tensor:
        return self.embedding_norm(super().embed(tokens, position))


_register = partial(register_model, module=PLDRLLM, source="arXiv:2502.13502", family="pldr_llm")

_register(
    "pldr_llm_tiny",
    summary="Two layers of 64 for text as bytes, trained in minutes on a CPU.",
    parameters=156_392,
    tiny={
        "dim": 12, "depth": 1, "num_heads": 3, "hidden_dim": 20, "units": 1, "metric_hidden": 5, "context": 16,
        "vocab_size": 31, "metric_scope": "prefix",
    },
    variants={"plain attention": {"graph": "identity"}, "fixed graphs": {"graph": "given"}},
)  # fmt: skip
_110M: dict[str, Any] = {
    "vocab_size": 32_000, "dim": 896, "depth": 5, "num_heads": 14, "hidden_dim": 2389, "units": 8, "metric_hidden": 170,
    "context": 1024,
}  # fmt: skip
_register(
    "pldr_llm_110m",
    summary="Five layers of 896 for 32,000 pieces of words.",
    parameters=109_689_362,
    **_110M,
)
_register(
    "pldr_llm_110m_given",
    summary="The same with fixed matrices G in place of the networks that make them.",
    parameters=105_606_482,
    graph="given",
    **_110M,
)
