"""TinyDiff, a diffusion transformer between convolutions that draws what a prompt says, with self- and cross-attention.

Source: ours; blocks as in PixArt-alpha (arXiv:2310.00426) with axial rotary positions, convolutions that halve and
double the side around them as in a U-Net (arXiv:1505.04597), sampling by DDIM
(arXiv:2010.02502) with classifier-free guidance (arXiv:2207.12598), velocities as in arXiv:2202.00512.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mereo.core.squash import accumulation_type
from mereo.data.glyph_scenes.prompts import KINDS, LENGTH, PAD, START, VOCABULARY, encode
from mereo.errors import UsageError, check_heads, check_not_negative, check_positive, check_steps
from mereo.layers.feed_forward import FeedForward
from mereo.layers.positions import sinusoids
from mereo.mechanisms.attention.dense.multi_head import MultiHeadAttention
from mereo.models.layers import layer_depths
from mereo.models.network import Network
from mereo.models.registry import build, register_model

FREQUENCIES, ROTARY_BASE = 32, 10.0
"""Sines of the time (and as many cosines), and the longest wave of positions over 2 pi."""


def schedule(time: Tensor) -> tuple[Tensor, Tensor]:
    """How much of the image and of the noise is in a noisy image: cos and sin of pi t / 2, t in [0, 1]."""
    angle = time * (math.pi / 2)
    return angle.cos(), angle.sin()


def with_noise(images: Tensor, noise: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
    """Noisy images at their times, and their velocities: (batch, 3, height, width) twice, (batch,)."""
    a, s = (part[:, None, None, None] for part in schedule(time))
    return a * images + s * noise, a * noise - s * images


def axial_rotary(x: Tensor, places: Tensor) -> Tensor:
    """Turn pairs of channels by angles that grow with the row (first half of the channels) and the column (second).

    Args:
        x: queries or keys.
        places: row and column of each token.

    Shapes: (batch, heads, tokens, D), D a multiple of 4, (tokens, 2) or (batch, 1, tokens, 2) -> as x.
    """
    pairs = x.shape[-1] // 4
    rates = ROTARY_BASE ** -(torch.arange(pairs, device=x.device, dtype=torch.float32) / pairs)
    angles = (places.to(x.device, torch.float32).unsqueeze(-1) * rates).flatten(-2)  # (tokens, 2 pairs)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x[..., : 2 * pairs], x[..., 2 * pairs :]
    return torch.cat((first * cos - second * sin, first * sin + second * cos), -1)


class GridAttention(MultiHeadAttention):
    """Self-attention of the cells of a square grid with axial rotary positions.

    Shapes: (batch, side^2, dim) -> the same; couplings (batch, heads, side^2, side^2).
    """

    def __init__(self, dim: int, num_heads: int, side: int) -> None:
        super().__init__(dim, num_heads, qkv_bias=False)
        self.side = side

    def turned(self, x: Tensor, places: Tensor) -> Tensor:
        """Queries or keys (batch, heads, n, d) with the positions of cells, int64 (n,) or (batch, n)."""
        grid = torch.stack((places // self.side, places % self.side), -1)
        return axial_rotary(x, grid if places.dim() == 1 else grid.unsqueeze(1))

    def exchange(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        places = torch.arange(self.side**2, device=q.device)
        return super().exchange(self.turned(q, places), self.turned(k, places), v, mask)


class PromptBlock(nn.Module):
    """A block of the reader of prompts: x <- x + attention(norm(x)), x <- x + feed_forward(norm(x))."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = MultiHeadAttention(dim, num_heads, qkv_bias=False)
        self.feed_forward = FeedForward(dim, 2 * dim)

    def forward(self, words: Tensor, mask: Tensor) -> Tensor:
        words = words + self.attention(self.norm1(words), mask=mask)
        return words + self.feed_forward(self.norm2(words))


class DrawingBlock(nn.Module):
    """Self-attention of the cells, attention to the words, and a feed-forward network.

    x <- x + g self(n(x) (1 + s) + b);   x <- x + cross(norm(x), words);   x <- x + g' feed_forward(n(x) (1 + s') + b')

    b, s, g, b', s', g' = the network's function of the time + numbers of the block

    Shapes: cells (batch, cells, dim), words (batch, length, dim), mask bool (batch, length), time (batch, 6, dim)
        -> (batch, cells, dim).
    """

    def __init__(self, dim: int, num_heads: int, side: int, hidden: int) -> None:
        super().__init__()
        self.norm1, self.norm3 = (nn.LayerNorm(dim, elementwise_affine=False) for _ in range(2))
        self.norm2 = nn.LayerNorm(dim)
        self.self_attention = GridAttention(dim, num_heads, side)
        self.cross_attention = MultiHeadAttention(dim, num_heads, qkv_bias=False)
        self.feed_forward = FeedForward(dim, hidden)
        self.modulation = nn.Parameter(torch.randn(6, dim) * dim**-0.5)

    def forward(self, cells: Tensor, words: Tensor, mask: Tensor, time: Tensor) -> Tensor:
        parts = (time + self.modulation).unsqueeze(2).unbind(1)
        cells = cells + parts[2] * self.self_attention(self.norm1(cells) * (1 + parts[1]) + parts[0])
        cells = cells + self.cross_attention(self.norm2(cells), words, mask=mask)
        return cells + parts[5] * self.feed_forward(self.norm3(cells) * (1 + parts[4]) + parts[3])


class UpBlock(nn.Module):
    """Twice the side: a coarse map joined with the finer one that it was made of.

    x <- silu(n(conv3x3([shuffle(conv1x1(x)); skip])) (1 + s) + b),   b, s = linear(time)

    Shapes: (batch, in_channels, height, width), skip (batch, out_channels, 2 height, 2 width), time (batch, dim)
        -> as skip.
    """

    def __init__(self, in_channels: int, out_channels: int, dim: int) -> None:
        super().__init__()
        self.expand = nn.Conv2d(in_channels, 4 * out_channels, 1)
        self.conv = nn.Conv2d(2 * out_channels, out_channels, 3, padding=1)
        self.norm = nn.GroupNorm(4, out_channels)
        self.modulation = nn.Linear(dim, 2 * out_channels)
        nn.init.zeros_(self.modulation.weight)
        nn.init.zeros_(self.modulation.bias)

    def forward(self, x: Tensor, skip: Tensor, time: Tensor) -> Tensor:
        shift, scale = self.modulation(time)[:, :, None, None].chunk(2, 1)
        x = self.norm(self.conv(torch.cat((F.pixel_shuffle(self.expand(x), 2), skip), 1)))
        return F.silu(x * (1 + scale) + shift)


class Judge(nn.Module):
    """Scores for what is in each quarter of an image, by default every colour and shape, and no glyph.

    Shapes: images (batch, 3, side, side) in [0, 1] -> (batch, 4, kinds); quarters row by row, no glyph last.
    """

    def __init__(self, side: int, kinds: int = KINDS + 1) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(),
            nn.Conv2d(32, 32, 3, 2, 1), nn.ReLU(),
        )  # fmt: skip
        self.score = nn.Linear(32 * (-(-side // 8)) ** 2, kinds)

    def forward(self, images: Tensor) -> Tensor:
        half = images.shape[-1] // 2
        quarters = images.unflatten(3, (2, half)).unflatten(2, (2, half)).permute(0, 2, 4, 1, 3, 5).flatten(1, 2)
        scores: Tensor = self.score(self.convolutions(2 * quarters.flatten(0, 1) - 1).flatten(1))
        return scores.unflatten(0, (-1, 4))


class TinyDiff(Network):
    """Draw images from prompts; given noisy images and a time, predict the velocity.

    x_t = a x + s n,   v = a n - s x,   a, s = cos(pi t / 2), sin(pi t / 2);   x in [-1, 1], n normal noise

    Convolutions make a cell of each patch, to which a learned vector of its place is added, which starts as the
    sines of its row and column; after the blocks the maps that the cells were made of are joined with them again.

    Args:
        dim: of cells and words.
        depth: blocks of the cells; the second half of them is called the decoder.
        text_depth: blocks of the words.
        num_heads: of every attention; dim / num_heads is a multiple of 4.
        hidden: of the feed-forward networks of the cells, in units of dim.
        canvas, patch_size: pixels of a side of the image, and of a cell, which is a power of two.
        channels: of the map with the side of the image; twice as many after each halving.
        steps: of the sampler in `forward` without noisy images.
        guidance: w of classifier-free guidance there, v = v_empty + w (v_prompt - v_empty).
        concepts: words beyond the vocabulary, such as "new1".

    Shapes: prompts int64 (batch, LENGTH) -> images (batch, 3, canvas, canvas) in [0, 1], all from the same noise.
        With noisy images (batch, 3, canvas, canvas) and times (batch,) in [0, 1] -> velocities.

    Attributes:
        start: the noise, (3, canvas, canvas).
        judge: names the glyphs of finished images; it is trained on true scenes and takes no part in drawing.
    """

    output_kind: ClassVar[str] = "images"
    input_kind: ClassVar[str] = "prompts"
    outputs_argument: ClassVar[str | None] = None
    unscored_parts: ClassVar[tuple[str, ...]] = ("judge",)
    registered_with_timm = False

    start: Tensor

    def __init__(
        self,
        dim: int = 96,
        *,
        depth: int = 6,
        text_depth: int = 2,
        num_heads: int = 4,
        hidden: int = 2,
        canvas: int = 32,
        patch_size: int = 4,
        channels: int = 16,
        steps: int = 20,
        guidance: float = 2.0,
        concepts: Sequence[str] = (),
    ) -> None:
        super().__init__()
        check_positive(dim=dim, depth=depth, text_depth=text_depth, hidden=hidden)
        check_positive(patch_size=patch_size, channels=channels)
        check_heads(dim, num_heads)
        check_steps(1, steps=steps)
        check_not_negative(guidance=guidance)
        levels = patch_size.bit_length() - 1
        if dim // num_heads % 4 or canvas < 4 or patch_size != 2**levels or canvas % (2 * patch_size) or channels % 4:
            raise UsageError(
                f"dim is {dim}, num_heads {num_heads}, canvas {canvas}, patch_size {patch_size} and channels"
                f" {channels}; dim / num_heads and channels must be multiples of 4, patch_size a power of two, and"
                " canvas a multiple of 2 patch_size."
            )
        self.num_features, self.concepts, self.steps, self.guidance = dim, tuple(concepts), steps, guidance
        self.patch_size, self.side = patch_size, canvas // patch_size
        self.words = nn.Embedding(len(VOCABULARY) + len(self.concepts), dim)
        self.order = nn.Parameter(0.5 * torch.randn(LENGTH, dim))
        self.reader = nn.ModuleList(PromptBlock(dim, num_heads) for _ in range(text_depth))
        self.read_norm = nn.LayerNorm(dim)
        widths = [*(channels * 2**level for level in range(levels)), dim]
        self.stem = nn.ModuleList([nn.Conv2d(3, widths[0], 3, padding=1)])
        self.stem.extend(nn.Conv2d(fine, coarse, 3, 2, 1) for fine, coarse in pairwise(widths))
        rows, columns = torch.meshgrid(torch.arange(self.side), torch.arange(self.side), indexing="ij")
        like = torch.zeros(self.side, self.side, dim // 2)
        self.places = nn.Parameter(torch.cat((sinusoids(rows, like), sinusoids(columns, like)), -1).flatten(0, 1))
        self.time = nn.Sequential(nn.Linear(2 * FREQUENCIES, dim), nn.SiLU(), nn.Linear(dim, dim), nn.SiLU())
        self.modulation = nn.Linear(dim, 8 * dim)
        self.blocks = nn.ModuleList(DrawingBlock(dim, num_heads, self.side, hidden * dim) for _ in range(depth))
        self.norm = nn.LayerNorm(dim, elementwise_affine=False)
        self.judge = Judge(canvas)
        self.up = nn.ModuleList(UpBlock(coarse, fine, dim) for fine, coarse in reversed([*pairwise(widths)]))
        self.head = nn.Conv2d(widths[0], 3, 3, padding=1)
        nn.init.normal_(self.words.weight, std=0.5)
        for parameter in (*self.modulation.parameters(), *self.head.parameters()):
            nn.init.zeros_(parameter)
        noise = torch.randn(3, canvas, canvas, generator=torch.Generator().manual_seed(0))
        self.register_buffer("start", noise, persistent=False)

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (LENGTH,)

    @property
    def image_shape(self) -> tuple[int, ...]:
        """The shape of the images that it draws."""
        return tuple(self.start.shape)

    def example_inputs(self, count: int) -> Tensor:
        """Random words behind the start."""
        shape, device = (count, LENGTH), self.start.device
        tokens = torch.randint(START + 1, len(VOCABULARY), shape, device=device)
        tokens[:, 0] = START
        return tokens

    def layer_depths(self) -> dict[str, int]:
        """The layer of each parameter by name: the reader of prompts, the blocks, the head."""
        names = [name for name, _ in self.named_parameters()]
        blocks = [f"blocks.{block}" for block in range(len(self.blocks))]
        return layer_depths(names, ["read_norm", *blocks], self.classifier_parts)

    # --- one pass ---------------------------------------------------------------------------------------------------

    def forward_features(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """The words of prompts as cells read them, (batch, LENGTH, dim), and which are there, bool (batch, LENGTH)."""
        if inputs.dim() != 2 or inputs.shape[1] != LENGTH or inputs.is_floating_point():
            raise UsageError(
                f"prompts are {inputs.dtype} of shape {tuple(inputs.shape)}; they must be int64 (batch, {LENGTH}), as"
                " mereo.data.glyph_scenes.prompts.encode makes them."
            )
        mask, words = inputs != PAD, self.words(inputs) + self.order
        for block in self.reader:
            words = self._run(block, words, mask)
        return self.read_norm(words), mask

    def _run(self, block: nn.Module, *inputs: Tensor) -> Tensor:
        if self.grad_checkpointing and self.training:
            out: Tensor = checkpoint(block, *inputs, use_reentrant=False)
            return out
        return block(*inputs)

    def _encode(self, noisy: Tensor, time: Tensor, words: Tensor, mask: Tensor) -> tuple[Tensor, list[Tensor], Tensor]:
        """The cells after the blocks, the maps that they were made of, fine ones first, and the time, (batch, dim)."""
        if noisy.dim() != 4 or noisy.shape[1:] != self.start.shape or time.shape != noisy.shape[:1]:
            raise UsageError(
                f"noisy is {tuple(noisy.shape)} and time {tuple(time.shape)}; they must be (batch,"
                f" {', '.join(map(str, self.start.shape))}) and (batch,)."
            )
        dtype = self.head.weight.dtype
        rates = 1000 ** (torch.arange(FREQUENCIES, device=time.device, dtype=torch.float32) / FREQUENCIES)
        angles = time.float().unsqueeze(1) * rates
        moment = self.time(torch.cat((angles.sin(), angles.cos()), 1).to(dtype))
        condition = self.modulation(moment).unflatten(1, (8, -1))
        first, *others = self.stem
        maps = [first(noisy.to(dtype))]
        for convolution in others:
            maps.append(convolution(F.silu(maps[-1])))
        cells = maps.pop().flatten(2).transpose(1, 2) + self.places
        for block in self.blocks:
            cells = self._run(block, cells, words, mask, condition[:, :6])
        return self.norm(cells) * (1 + condition[:, 6:7]) + condition[:, 7:8], maps, moment

    def cells(self, noisy: Tensor, time: Tensor, words: Tensor, mask: Tensor) -> Tensor:
        """The cells behind the blocks: (batch, 3, canvas, canvas), (batch,), words, mask -> (batch, cells, dim)."""
        return self._encode(noisy, time, words, mask)[0]

    def velocity(self, noisy: Tensor, time: Tensor, words: Tensor, mask: Tensor) -> Tensor:
        """The velocity, (batch, 3, canvas, canvas); takes the arguments of `cells`."""
        cells, maps, moment = self._encode(noisy, time, words, mask)
        x = cells.transpose(1, 2).unflatten(2, (self.side, self.side))
        for block, skip in zip(self.up, reversed(maps), strict=True):
            x = self._run(block, x, skip, moment)
        found: Tensor = self.head(x)
        return found

    def forward(self, inputs: Tensor, noisy: Tensor | None = None, time: Tensor | None = None) -> Tensor:
        features = self.forward_features(inputs)
        if noisy is None or time is None:
            return self.forward_head(features)
        return self.velocity(noisy, time, *features)

    def with_concepts(self, words: Mapping[str, str]) -> "TinyDiff":
        """A copy that knows further words, each with the embedding of a word that it knows.

        Args:
            words: new word -> known word, such as {"new1": "square"}.

        Raises:
            UsageError: for a new word that is known, and a known one that is not; without `config`.
        """
        known = (*VOCABULARY, *self.concepts)
        for new, like in words.items():
            if new in known or like not in known:
                raise UsageError(f"words has {new!r} with {like!r}; a new word takes the embedding of a known one.")
        args = {**self.config["args"], "concepts": [*self.concepts, *words]}
        made = cast(TinyDiff, build(self.config["model"], **args))
        state = self.state_dict()
        like_rows = state["words.weight"][[known.index(word) for word in words.values()]]
        made.load_state_dict({**state, "words.weight": torch.cat((state["words.weight"], like_rows))})
        return made.to(self.start.device).train(self.training)

    # --- drawing ----------------------------------------------------------------------------------------------------

    def forward_head(self, features: tuple[Tensor, Tensor], pre_logits: bool = False) -> Tensor:
        """Images in [0, 1]; with `pre_logits` what the last layer reads in the first step."""
        words, mask = features
        noise = self.start.to(words.dtype).expand(words.shape[0], -1, -1, -1)
        if pre_logits:
            return self.cells(noise, noise.new_ones(words.shape[0]), words, mask)
        return self.sample(words, mask, noise, self.steps, self.guidance)

    def sample(
        self,
        words: Tensor,
        mask: Tensor,
        noise: Tensor,
        steps: int,
        guidance: float,
        progress: Callable[[int], Any] | None = None,
    ) -> Tensor:
        """DDIM without added noise: images in [0, 1] from noise.

        Passes have twice the batch: the empty prompt for all images, then their prompts.

        Args:
            words, mask: of `forward_features`.
            noise: (batch, 3, canvas, canvas).
            progress: called with the number of finished steps after each.
        """
        empty = torch.full((1, LENGTH), PAD, device=words.device)
        empty[:, 0] = START
        nothing, no_mask = self.forward_features(empty)
        both = torch.cat((nothing.expand(words.shape[0], -1, -1), words))
        masks = torch.cat((no_mask.expand(words.shape[0], -1), mask))
        images, wide = noise, accumulation_type(noise)
        for step in range(steps):
            time = torch.full((words.shape[0],), 1 - step / steps, device=noise.device, dtype=wide)
            a, s = (part[:, None, None, None] for part in schedule(time))
            b, r = (part[:, None, None, None] for part in schedule(time - 1 / steps))
            plain, prompted = self.velocity(torch.cat((images, images)), torch.cat((time, time)), both, masks).chunk(2)
            velocity = plain + guidance * (prompted - plain)
            clean = (a * images - s * velocity).clamp(-1, 1)
            images = (b * clean + r * (images - a * clean) / s).to(noise.dtype)
            if progress is not None:
                progress(step + 1)
        return ((images + 1) / 2).clamp(0, 1)

    def draw(
        self,
        prompts: Sequence[str],
        *,
        seed: int = 0,
        steps: int | None = None,
        guidance: float | None = None,
        noise: Tensor | None = None,
        progress: Callable[[int], Any] | None = None,
    ) -> Tensor:
        """Draw a picture for each prompt: (prompts, 3, canvas, canvas) in [0, 1].

        Args:
            prompts: such as "a red square left of a blue star".
            seed: of the noise.
            steps, guidance: of the sampler; the network's own when None.
            noise: (prompts, 3, canvas, canvas) in place of the seed.
            progress: called with the number of finished steps after each.

        Raises:
            UsageError: for a prompt with an unknown word, and noise of another shape.
        """
        steps, guidance = self.steps if steps is None else steps, self.guidance if guidance is None else guidance
        check_steps(1, steps=steps)
        check_not_negative(guidance=guidance)
        shape = (len(prompts), *self.start.shape)
        if noise is None:
            noise = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        if noise.shape != shape:
            raise UsageError(f"noise is {tuple(noise.shape)}; it must be {shape} for {len(prompts)} prompts.")
        like = self.head.weight
        words, mask = self.forward_features(encode(prompts, self.concepts).to(like.device))
        with torch.no_grad():
            return self.sample(words, mask, noise.to(like), steps, guidance, progress)


register_model(
    "tinydiff",
    TinyDiff,
    "Diffusion transformer that draws up to three coloured glyphs at 32x32 from a prompt.",
    source="arXiv:2310.00426",
    parameters=1033768,
    tiny={"dim": 16, "depth": 2, "text_depth": 1, "num_heads": 2, "canvas": 8, "channels": 8, "steps": 2},
)
