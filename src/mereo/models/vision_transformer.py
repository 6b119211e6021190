"""The plain vision transformer: patches and a class token that attend to each other, layer after layer.

Source: Dosovitskiy et al. 2021, arXiv:2010.11929, with the sizes and the start of arXiv:2012.12877 (DeiT).
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from mereo.core import Coupling
from mereo.core.initialise import start_linears
from mereo.core.shapes import image_size
from mereo.core.squash import bounded
from mereo.errors import UsageError, check_heads, check_positive
from mereo.layers import TransformerBlock, linear_rates, resize_positions
from mereo.layers.transformer_block import EPS
from mereo.mechanisms.slots import NO_ARGUMENTS
from mereo.models.base import VisionModel, grid_of_cells
from mereo.models.layout import Pair


class VisionTransformer(VisionModel):
    """Classify by the class token of a transformer over patches; networks of this kind add to it.

    x = [class, patches(image)] + positions;   blocks;   scores = W norm(x)_class + b

    distilled:   x = [class, teacher, patches] + positions;   scores = the mean over both tokens

    Args:
        num_classes, in_chans: number of classes, and of channels of the images.
        img_size: height and width of the images; `resize_tensors` interpolates the positions of trained weights.
        patch_size: side of a patch in pixels; a border narrower than a patch is left out.
        embed_dim, depth, num_heads: size of the tokens, blocks, and heads of attention.
        mlp_ratio: hidden size of the feed-forward networks, as a multiple of `embed_dim`.
        qkv_bias: biases of queries, keys and values.
        distilled: a second token before the patches, with a classifier of its own, as in DeiT.
        drop_path_rate: of stochastic depth in the last block; it rises linearly from 0 in the first.
        mechanism: name of the mechanism in place of self-attention, one of
            `mereo.list_mechanisms(interface="tokens")` or "maps"; None for self-attention.
        mechanism_args: arguments of its constructor that the network does not fill in.

    Shapes: images (batch, in_chans, height, width) -> (batch, num_classes); features (batch, num_prefix_tokens +
        patches, embed_dim), the class token first.

    Reads as: `blocks.I.attn.coupling` (batch, heads, tokens, tokens) is what each token takes from each.

    Deviates: in training, too, a distilled network returns the mean of both scores.

    Reference: arXiv:2010.11929, section 3; arXiv:2012.12877, section 4.

    Attributes:
        grid: rows and columns of patches.
        num_prefix_tokens: tokens before the patches.
        num_tokens: all tokens.
    """

    first_conv = "patch_embed"
    partial_cells = False
    classifier_parts = ("head", "distillation_head")

    distillation_head: nn.Module | None

    def __init__(
        self,
        num_classes: int = 1000,
        in_chans: int = 3,
        img_size: int | tuple[int, int] = 224,
        *,
        patch_size: int = 16,
        embed_dim: int = 384,
        depth: int = 12,
        num_heads: int = 6,
        mlp_ratio: float = 4.0,
        qkv_bias: bool = True,
        distilled: bool = False,
        drop_path_rate: float = 0.0,
        mechanism: str | None = None,
        mechanism_args: dict[str, Any] = NO_ARGUMENTS,
    ) -> None:
        super().__init__()
        check_positive(patch_size=patch_size, depth=depth, mlp_ratio=mlp_ratio)
        check_heads(embed_dim, num_heads)
        height, width = image_size(img_size)
        if min(height, width) < patch_size:
            raise UsageError(f"img_size is {img_size}; its sides must be at least patch_size, {patch_size}.")
        hidden = int(embed_dim * mlp_ratio)
        if hidden < 1:
            raise UsageError(f"mlp_ratio is {mlp_ratio} with embed_dim {embed_dim}; their product must be at least 1.")
        self.image_shape, self.num_features, self.patch_size = (in_chans, height, width), embed_dim, patch_size
        self.grid = (height // patch_size, width // patch_size)
        self.patch_embed = nn.Conv2d(in_chans, embed_dim, patch_size, patch_size)
        self.num_prefix_tokens = 1 + distilled
        self.num_tokens = self.num_prefix_tokens + self.grid[0] * self.grid[1]
        self.class_token = nn.Parameter(torch.zeros(1, 1, embed_dim))
        self.distillation_token = nn.Parameter(torch.zeros(1, 1, embed_dim)) if distilled else None
        self.positions = nn.Parameter(torch.zeros(1, self.num_tokens, embed_dim))
        self.blocks = nn.ModuleList(
            TransformerBlock(embed_dim, num_heads, hidden, qkv_bias, rate)
            for rate in linear_rates(drop_path_rate, depth)
        )
        self.norm = nn.LayerNorm(embed_dim, eps=EPS)
        self.feature_info = [
            {"num_chs": embed_dim, "reduction": patch_size, "module": f"blocks.{i}"} for i in range(depth)
        ]
        self.reset_parameters()
        if mechanism is not None:
            for block in self.blocks:
                assert isinstance(block, TransformerBlock)
                block.use(mechanism, mechanism_args, size=self.grid, prefix=self.num_prefix_tokens)
        self.reset_classifier(num_classes)

    def reset_parameters(self) -> None:
        """Initialise tokens, positions and linear layers: truncated normal of 0.02, biases of zero."""
        for tensor in (*self._prefix(), self.positions):
            nn.init.trunc_normal_(tensor, std=0.02)
        start_linears(self)

    def _prefix(self) -> list[nn.Parameter]:
        """The learned tokens before the patches, (1, 1, embed_dim) each."""
        return [token for token in (self.class_token, self.distillation_token) if token is not None]

    def embed(self, images: Tensor) -> Tensor:
        """All tokens with their positions: (batch, tokens, dim)."""
        patches = self.patch_embed(bounded(images)).flatten(2).transpose(1, 2)
        first = [token.expand(images.shape[0], -1, -1) for token in self._prefix()]
        return torch.cat((*first, patches), 1) + self.positions

    def stage(self, index: int, inputs: Tensor) -> Tensor:
        return self.blocks[index](self.embed(inputs) if index == 0 else inputs)

    def as_map(self, tensor: Tensor, norm: bool) -> Tensor:
        """The patches of tokens (batch, tokens, dim), as (batch, dim, rows, columns)."""
        tokens = self.norm(tensor) if norm else tensor
        return tokens[:, self.num_prefix_tokens :].transpose(1, 2).unflatten(2, self.grid)

    def neck(self, maps: list[Tensor]) -> Tensor:
        """Normalised tokens (batch, tokens, dim)."""
        return self.norm(maps[-1])

    def pool(self, features: Tensor) -> Tensor:
        """The class token, or the mean of both tokens before the patches."""
        return features[:, 0] if self.distillation_token is None else features[:, :2].mean(1)

    def classify(self, features: Tensor) -> Tensor:
        scores: Tensor = self.head(features[:, 0])
        return scores if self.distillation_head is None else (scores + self.distillation_head(features[:, 1])) / 2

    def make_classifier(self) -> nn.Module:
        return start_linears(nn.Linear(self.num_features, self.num_classes))

    def _renew_classifier(self) -> None:
        super()._renew_classifier()
        both = self.distillation_token is not None and self.num_classes > 0
        self.distillation_head = self.make_classifier() if both else None

    def place_couplings(self, height: int, width: int) -> None:
        grid = grid_of_cells(height, width, self.patch_size, prefix=self.num_prefix_tokens, partial=False)
        for info in self.feature_info:
            for module in self.get_submodule(str(info["module"])).modules():
                if isinstance(module, Coupling) and module.of_places:
                    module.senders = module.receivers = grid

    def no_weight_decay(self) -> set[str]:
        return {name for name, _ in self.named_parameters() if name == "positions" or name.endswith("_token")}

    def resize_tensors(self, tensors: dict[str, Tensor], img_size: tuple[int, int]) -> dict[str, Tensor]:
        """With the positions of the patches interpolated from the grid of another image size."""
        old = (img_size[0] // self.patch_size, img_size[1] // self.patch_size)
        table, first = tensors.get("positions"), self.num_prefix_tokens
        if old == self.grid or table is None or table.shape[1] != first + old[0] * old[1]:
            return tensors
        resized = resize_positions(table[:, first:], old, self.grid)
        return {**tensors, "positions": torch.cat((table[:, :first], resized), 1)}

    def layer_depths(self) -> dict[str, int]:
        """A layer for patches and tokens, one a block, the last norm with the last block, and the classifier."""
        last = len(self.blocks)

        def depth(name: str) -> int:
            part, _, rest = name.partition(".")
            if part == "blocks":
                return 1 + int(rest.partition(".")[0])
            return last + 1 if part in (*self.classifier_parts, "dual") else last if part == "norm" else 0

        return {name: depth(name) for name, _ in self.named_parameters()}


BLOCK = {"norm1": "norm1", "attn": "attn", "norm2": "norm2", "mlp.first": "mlp.fc1", "mlp.second": "mlp.fc2"}
"""The parts of a block, and their names in timm and in the authors' code."""


def transformer_pairs(model: VisionTransformer) -> Iterator[Pair]:
    """The tensors of a vision transformer under the names of timm, which DeiT's authors use too."""
    yield from (Pair("patch_embed", "patch_embed.proj"), Pair("positions", "pos_embed"))
    yield from (Pair("class_token", "cls_token"), Pair("norm", "norm"), Pair("head", "head"))
    yield from (Pair("distillation_token", "dist_token"), Pair("distillation_head", "head_dist"))
    for i in range(len(model.blocks)):
        yield from (Pair(f"blocks.{i}.{ours}", f"blocks.{i}.{theirs}") for ours, theirs in BLOCK.items())
