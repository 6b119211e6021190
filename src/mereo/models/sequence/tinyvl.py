"""TinyVL: a small language model that reads image tokens and names what it sees, or answers yes or no.

Source: ours, the smallest whole of arXiv:2503.03321, arXiv:2501.12206 and arXiv:2412.13949.
Cost: 2 (4 C^2 + 8 C^2) FLOPs a token and layer, and 4 N C for attention to N tokens.
"""

from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mereo.core import Causal, Coupling
from mereo.core.kernels.attention import attend
from mereo.core.kernels.transforms import fallback_reason
from mereo.errors import UsageError, check_count, check_heads, check_positive
from mereo.layers.feed_forward import FeedForward
from mereo.models.layers import layer_depths
from mereo.models.network import Network
from mereo.models.registry import register_model

DEVIATION = 0.02


class CaptionCache:
    """Keys and values of what was read so far; `TinyVL.forward` fills it.

    Attributes:
        position: number of the next token.
        layers: keys and values of each layer, (batch, heads, tokens, dim) each.
    """

    def __init__(self) -> None:
        self.position = 0
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}

    def get_seq_length(self) -> int:
        """The number of tokens read, under the name that caches of `transformers` have."""
        return self.layers[0][0].shape[2] if self.layers else 0

    def join(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values of a layer, with the new ones."""
        if layer in self.layers:
            before = self.layers[layer]
            keys, values = torch.cat((before[0], keys), 2), torch.cat((before[1], values), 2)
        self.layers[layer] = keys, values
        return keys, values


class VisionLanguageBlock(nn.Module):
    """y = x + W_o [softmax(q k^T / sqrt(d)) v, ...],  q, k, v = W norm1(x);   out = y + mlp(norm2(y)).

    Args:
        dim, num_heads: of the attention, without biases.
        causal: whether a token attends to itself and those before it only.

    Shapes: (batch, tokens, dim) -> the same.
    """

    def __init__(self, dim: int, num_heads: int, causal: bool = True) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm1, self.norm2 = nn.RMSNorm(dim, eps=1e-6), nn.RMSNorm(dim, eps=1e-6)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.coupling = Coupling("senders", topology=Causal() if causal else None)
        self.mlp = FeedForward(dim, 4 * dim)

    def forward(self, x: Tensor, cache: CaptionCache | None = None, layer: int = 0) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.num_heads, -1)).transpose(1, 3).unbind(2)
        if cache is not None:
            k, v = cache.join(layer, k, v)
        x = x + self.proj(attend(q, k, v, self.coupling).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class TinyVL(Network):
    """Scores of the next token of a text about an image, whose tokens are read before it.

    x_0 = [E start, W f_1, ..., W f_n, E t_1, ..., E t_m] + p,   x_l = block_l(x_(l-1)),   scores = H norm(x_L)

    Args:
        num_classes: size of the vocabulary; token 0 is the start.
        dim, depth, num_heads: of the decoder.
        features: of an image token.
        visual: number of image tokens.
        context: most tokens with the start, which is the number of learned positions.
        encoder_depth: layers of an encoder with a class token before the decoder, trained with it; 0 for none.

    Shapes: rows (batch, visual + text, features + 1): the features of image tokens and a 0, then rows of zeros that end
        in the number of a token of the text -> scores (batch, visual + text, num_classes), at image tokens too, where
        they mean nothing. With a `cache` that has read something, rows are text alone.

    Attributes:
        visual_tokens: the first image token and the one behind the last, the start being token 0.

    Reference: ours; sizes, norms and learned positions without biases in the attention are from arXiv:2503.03321's
        setting at the smallest scale. 87,264 numbers.
    """

    output_kind: ClassVar[str] = "tokens"
    input_kind: ClassVar[str] = "rows"
    registered_with_timm = False

    def __init__(
        self,
        num_classes: int = 13,
        dim: int = 48,
        depth: int = 3,
        num_heads: int = 4,
        *,
        features: int = 16,
        visual: int = 16,
        context: int = 26,
        encoder_depth: int = 0,
    ) -> None:
        super().__init__()
        check_positive(num_classes=num_classes, depth=depth, features=features, visual=visual)
        check_count(encoder_depth=encoder_depth)
        check_heads(dim, num_heads)
        if context < visual + 2:
            raise UsageError(f"context is {context}; it must hold the start, {visual} image tokens and a text.")
        self.num_classes, self.num_features, self.features = num_classes, dim, features
        self.visual, self.context, self.visual_tokens = visual, context, (1, 1 + visual)
        self.image = nn.Linear(features, dim, bias=False)
        self.embedding = nn.Embedding(num_classes, dim)
        self.positions = nn.Parameter(DEVIATION * torch.randn(context, dim))
        self.encoder = nn.ModuleList(VisionLanguageBlock(dim, num_heads, causal=False) for _ in range(encoder_depth))
        if encoder_depth:
            self.class_token = nn.Parameter(DEVIATION * torch.randn(dim))
            self.encoder_norm = nn.RMSNorm(dim, eps=1e-6)
        self.blocks = nn.ModuleList(VisionLanguageBlock(dim, num_heads) for _ in range(depth))
        self.norm = nn.RMSNorm(dim, eps=1e-6)
        self.head = nn.Linear(dim, num_classes, bias=False)
        nn.init.normal_(self.embedding.weight, std=DEVIATION)

    def _seen(self, features: Tensor) -> Tensor:
        """Image tokens of the decoder: (batch, visual, features) -> (batch, visual, dim)."""
        x: Tensor = self.image(features)
        if not self.encoder:
            return x
        first = self.class_token.expand(x.shape[0], 1, -1)
        x = torch.cat((first, x + self.positions[self.visual_tokens[0] : self.visual_tokens[1]]), 1)
        for block in self.encoder:
            x = block(x)
        encoded: Tensor = self.encoder_norm(x[:, 1:])
        return encoded

    def _embed(self, rows: Tensor, position: int, image: bool) -> Tensor:
        read = 0 if position else self.visual
        self._check(rows, position, read)
        tokens = rows[:, read:, -1].long()
        parts = [self.embedding(tokens)]
        if not position:
            start = self.embedding.weight[0].expand(rows.shape[0], 1, -1)
            parts = [start, self._seen(rows[:, :read, :-1]), *parts] if image else [start, *parts]
        x = torch.cat(parts, 1)
        places = self.positions[position : position + tokens.shape[1] + (0 if position else 1 + read)]
        if not position and not image:  # text keeps its numbers
            places = torch.cat((places[:1], places[1 + read :]))
        return x + places

    def _check(self, rows: Tensor, position: int, read: int) -> None:
        if rows.dim() != 3 or rows.shape[1] <= read or rows.shape[2] != self.features + 1:
            raise UsageError(
                f"rows are {tuple(rows.shape)}; they must be (batch, {read} image tokens and a text, "
                f"{self.features + 1})."
            )
        if not rows.is_floating_point():
            raise UsageError(f"rows are {rows.dtype}; they must be floating point.")
        end = position + rows.shape[1] + (not position)
        if end > self.context:
            raise UsageError(f"rows end at token {end}; this model has context={self.context}, give a shorter text.")
        if torch.compiler.is_compiling() or fallback_reason() is not None or rows.device.type == "meta":
            return
        tokens = rows[:, read:, -1]
        if tokens.numel() and not 0 <= float(tokens.min()) <= float(tokens.max()) < self.num_classes:
            raise UsageError(f"rows hold tokens from {tokens.min()} to {tokens.max()}; there are {self.num_classes}.")

    def forward_features(self, inputs: Tensor, cache: CaptionCache | None = None, image: bool = True) -> Tensor:
        """What the head reads: (batch, rows, dim)."""
        position = 0 if cache is None else cache.position
        x = self._embed(inputs, position, image)
        again = self.grad_checkpointing and self.training
        for layer, block in enumerate(self.blocks):
            x = checkpoint(block, x, use_reentrant=False) if again else block(x, cache, layer)
        if cache is not None:
            cache.position += inputs.shape[1] + (not position)
        return self.norm(x if position else x[:, 1:])

    def forward_head(self, features: Any, pre_logits: bool = False) -> Tensor:
        """Scores of the next token; with `pre_logits` the features."""
        return features if pre_logits else self.head(features)

    def forward(self, inputs: Tensor, cache: CaptionCache | None = None, image: bool = True) -> Tensor:
        """Scores of the next token at each row.

        Args:
            cache: of what was read before, which is extended by these rows; None reads the whole sequence.
            image: whether the image is read; without it, its tokens are absent and the text keeps its positions.
        """
        return self.forward_head(self.forward_features(inputs, cache, image))

    @staticmethod
    def new_cache() -> CaptionCache:
        """A cache that has read nothing."""
        return CaptionCache()

    def without_image(self, inputs: Tensor, **options: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments with which `forward` reads the same text alone."""
        return (inputs,), {**options, "image": False, "cache": None}

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self.context - 1, self.features + 1

    def example_inputs(self, count: int) -> Tensor:
        """Random features and tokens, of the greatest length."""
        like = self.positions
        rows = torch.randn(count, *self.input_shape, device=like.device)
        rows[:, self.visual :] = 0
        tokens = torch.randint(self.num_classes, (count, rows.shape[1] - self.visual), device=like.device)
        rows[:, self.visual :, -1] = tokens.float()
        rows[:, : self.visual, -1] = 0
        return rows.to(like.dtype)

    def layer_depths(self) -> dict[str, int]:
        """The layer of each parameter by name: embeddings with the first block, a layer a block, the head last."""
        stages = [f"{room}.{i}" for room in ("encoder", "blocks") for i in range(len(getattr(self, room)))]
        return layer_depths([name for name, _ in self.named_parameters()], stages, self.classifier_parts)

    def no_weight_decay(self) -> set[str]:
        return {"positions"}


_register = partial(register_model, module=TinyVL, source="arXiv:2503.03321")

_register(
    "tinyvl",
    summary="Decoder of three layers that reads 16 image tokens and names their classes.",
    parameters=87_264,
    tiny={"num_classes": 9, "dim": 12, "depth": 2, "num_heads": 3, "features": 5, "visual": 4, "context": 14},
    variants={"encoder": {"encoder_depth": 2}},
)
_register(
    "tinyvl_encoder",
    summary="The decoder of tinyvl behind an encoder of three layers with a class token.",
    parameters=171_312,
    encoder_depth=3,
)
