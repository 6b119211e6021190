"""DiT, a transformer that predicts the noise in images, plain or with mixtures of heads (MoH-DiT).

Source: Peebles, Xie 2023, arXiv:2212.09748; mixtures of heads: arXiv:2410.11842, section 4.2 and appendix A; and the
authors' code of both.
"""

import torch
from torch import Tensor, nn

from mereo.errors import UsageError, check_heads, check_positive, check_probability, unknown
from mereo.layers import FeedForward
from mereo.layers.self_attention import SelfAttention
from mereo.mechanisms.attention.sparse import MoHAttention
from mereo.mechanisms.attention.sparse.head_schedules import SCHEDULES, HeadSchedule, get_schedule

FREQUENCIES = 256
"""Number of sines and cosines of the time."""
STEPS = 10_000.0
"""The longest wave of positions and of the time, over the shortest."""


def _waves(places: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Sines and cosines of `count` waves: (n,) -> two of (n, count)."""
    places = places.to(torch.promote_types(places.dtype, torch.float32))
    angles = places.unsqueeze(1) * STEPS ** -(torch.arange(count, device=places.device, dtype=places.dtype) / count)
    return angles.sin(), angles.cos()


def _positions(side: int, dim: int) -> Tensor:
    """Fixed positions of a square image: a quarter of the channels each for sines and cosines of column and row."""
    numbers = torch.arange(side)
    along = torch.cat(_waves(numbers, dim // 4), 1)
    rows, columns = along.repeat_interleave(side, 0), along.repeat(side, 1)
    return torch.cat((columns, rows), 1)


def _modulated(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


class DiffusionBlock(nn.Module):
    """Attention and a feed-forward network, each shifted, scaled and gated by functions of time and class.

    x <- x + g attention((1 + s) norm(x) + b),   likewise for the feed-forward network;   b, s, g, ... = W silu(c)

    Shapes: tokens (batch, tokens, dim), condition (batch, dim) -> (batch, tokens, dim).
    """

    def __init__(self, dim: int, attention: nn.Module) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(dim, eps=1e-6, elementwise_affine=False) for _ in range(2))
        self.attention = attention
        self.feed_forward = FeedForward(dim, 4 * dim, activation=lambda: nn.GELU("tanh"))
        self.modulation = nn.Linear(dim, 6 * dim)

    def forward(self, tokens: Tensor, condition: Tensor) -> Tensor:
        parts = self.modulation(nn.functional.silu(condition)).chunk(6, -1)
        attended = self.attention(_modulated(self.norm1(tokens), parts[0], parts[1]))
        tokens = tokens + parts[2].unsqueeze(1) * attended
        fed = self.feed_forward(_modulated(self.norm2(tokens), parts[3], parts[4]))
        return tokens + parts[5].unsqueeze(1) * fed


class DiffusionTransformer(nn.Module):
    """Predict the noise in a noisy image, and a second image for its variance, from the time and the class.

    c = time(t) + class(y),   out = patches of head((1 + s) norm(x_L) + b),   b, s = W silu(c)

    Args:
        num_classes: of the condition; one more stands for no class.
        in_chans, img_size, patch_size: of the noisy images, such as the latents of an autoencoder.
        dim: size of the tokens, a multiple of four.
        depth: number of blocks.
        num_heads: of each block; divides `dim`.
        schedule: mixtures of heads in place of `dim`, `depth` and `num_heads`: a published schedule such as "dit_s_90",
            or a `HeadSchedule`.
        head_dim: size of a head of such a schedule; dim / heads of the first part by default.
        class_drop: fraction of the labels that training replaces by no class.

    Shapes: images (batch, in_chans, side, side), time (batch,) from 0 to 1000, labels int64 (batch,) -> (batch, 2
        in_chans, side, side).

    With mixtures of heads it adds the loss "balance" in training: take it from `mereo.added_losses(model)`.

    Reference: arXiv:2212.09748, section 3.2 (adaLN-Zero); every block starts as the identity and the output as zero.
    """

    def __init__(
        self,
        num_classes: int = 1000,
        in_chans: int = 4,
        img_size: int = 32,
        *,
        patch_size: int = 2,
        dim: int = 384,
        depth: int = 12,
        num_heads: int = 6,
        schedule: str | HeadSchedule | None = None,
        head_dim: int | None = None,
        class_drop: float = 0.1,
    ) -> None:
        super().__init__()
        if isinstance(schedule, str):
            schedule = get_schedule(schedule)
        if schedule is not None:
            if len(set(schedule.dims)) > 1:
                raise UsageError(f"schedule has tokens of {schedule.dims}; all parts must have one size.")
            dim = schedule.dims[0]
            head_dim = head_dim or dim // schedule.heads[0]
        check_positive(num_classes=num_classes, in_chans=in_chans, patch_size=patch_size, dim=dim, depth=depth)
        check_heads(dim, num_heads if schedule is None else 1)
        check_probability(class_drop=class_drop)
        if dim % 4 or img_size < patch_size or img_size % patch_size:
            raise UsageError(
                f"dim is {dim}, img_size {img_size} and patch_size {patch_size}; dim must be a multiple of 4, and"
                " img_size one of patch_size."
            )
        self.num_classes, self.class_drop, self.patch_size = num_classes, class_drop, patch_size
        self.image_shape, self.side = (in_chans, img_size, img_size), img_size // patch_size
        self.patches = nn.Conv2d(in_chans, dim, patch_size, patch_size)
        self.positions = nn.Parameter(_positions(self.side, dim), requires_grad=False)
        self.time = nn.Sequential(nn.Linear(FREQUENCIES, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.classes = nn.Embedding(num_classes + 1, dim)
        if schedule is None:
            made: list[nn.Module] = [SelfAttention(dim, num_heads) for _ in range(depth)]
        else:
            made = [
                MoHAttention(dim, heads, shared=shared, active=active, head_dim=head_dim)
                for layers, heads, shared, active in zip(
                    schedule.layers, schedule.heads, schedule.shared, schedule.active, strict=True
                )
                for _ in range(layers)
            ]
        self.blocks = nn.ModuleList(DiffusionBlock(dim, attention) for attention in made)
        self.norm = nn.LayerNorm(dim, eps=1e-6, elementwise_affine=False)
        self.modulation, self.head = nn.Linear(dim, 2 * dim), nn.Linear(dim, patch_size**2 * 2 * in_chans)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise: Xavier's uniform for linear layers and patches, 0.02 for embeddings, zero for modulations."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        nn.init.xavier_uniform_(self.patches.weight.view(len(self.patches.weight), -1))
        assert self.patches.bias is not None
        nn.init.zeros_(self.patches.bias)
        for module in (self.classes, self.time[0], self.time[2]):
            nn.init.normal_(module.weight, std=0.02)  # type: ignore[arg-type]
        for block in self.blocks:
            assert isinstance(block, DiffusionBlock)
            nn.init.zeros_(block.modulation.weight)
        nn.init.zeros_(self.modulation.weight)
        nn.init.zeros_(self.head.weight)

    def condition(self, time: Tensor, labels: Tensor) -> Tensor:
        """The embedding of time and class. Shapes: (batch,), int64 (batch,) -> (batch, dim)."""
        sines, cosines = _waves(time.to(torch.promote_types(self.positions.dtype, torch.float32)), FREQUENCIES // 2)
        if self.training and self.class_drop:
            dropped = torch.rand(labels.shape, device=labels.device) < self.class_drop
            labels = labels.masked_fill(dropped, self.num_classes)
        waves = torch.cat((cosines, sines), 1).to(self.positions.dtype)
        return self.time(waves) + self.classes(labels)

    def forward(self, images: Tensor, time: Tensor, labels: Tensor) -> Tensor:
        if images.dim() != 4 or tuple(images.shape[1:]) != self.image_shape:
            raise UsageError(f"images are {tuple(images.shape)}; they must be (batch, *{self.image_shape}).")
        if time.shape != images.shape[:1] or labels.shape != images.shape[:1]:
            raise UsageError(
                f"time is {tuple(time.shape)} and labels are {tuple(labels.shape)} for {len(images)} images; give one"
                " number and one label for each."
            )
        tokens = self.patches(images).flatten(2).transpose(1, 2) + self.positions
        condition = self.condition(time, labels)
        for block in self.blocks:
            tokens = block(tokens, condition)
        shift, scale = self.modulation(nn.functional.silu(condition)).chunk(2, -1)
        cells = self.head(_modulated(self.norm(tokens), shift, scale))
        cells = cells.unflatten(-1, (self.patch_size, self.patch_size, -1)).unflatten(1, (self.side, self.side))
        return cells.permute(0, 5, 1, 3, 2, 4).flatten(4, 5).flatten(2, 3)


SIZES = {"s": (384, 12, 6), "b": (768, 12, 12), "l": (1024, 24, 16), "xl": (1152, 28, 16)}
"""dim, depth and heads of the published plain networks."""


def diffusion_transformer(name: str, **changes: object) -> DiffusionTransformer:
    """A published network: "dit_s", "dit_b", "dit_l", "dit_xl", or with mixtures of heads "dit_s_90", "dit_xl_75", ...

    Args:
        changes: other arguments of `DiffusionTransformer`.

    Raises:
        UsageError: for an unknown name.
    """
    size = name.removeprefix("dit_")
    if size in SIZES and name != size:
        dim, depth, heads = SIZES[size]
        return DiffusionTransformer(**{"dim": dim, "depth": depth, "num_heads": heads, **changes})  # type: ignore[arg-type]
    if not name.startswith("dit_") or name not in SCHEDULES:
        raise unknown(
            "diffusion transformer",
            name,
            [*(f"dit_{x}" for x in SIZES), *(x for x in SCHEDULES if x.startswith("dit_"))],
        )
    dim, _, heads = SIZES[size.partition("_")[0]]
    return DiffusionTransformer(**{"schedule": name, "head_dim": dim // heads, **changes})  # type: ignore[arg-type]
