"""Small networks of attention, for what is drawn of them: with a class token, in windows, with gates."""

from typing import Any

import torch
from torch import Tensor, nn

from mereo.core import Coupling, Grid
from mereo.core.kernels.attention import attend
from mereo.core.topology import Blocks, Spread
from mereo.mechanisms.attention import MultiHeadAttention
from mereo.mechanisms.gate import SqueezeExcite
from mereo.models import VisionModel


class TokenNet(VisionModel):
    """A vision transformer: patches, a class token from the start, blocks of attention."""

    first_conv = "patches"

    def __init__(self, num_classes: int = 4, in_chans: int = 3, img_size: Any = 32, *, depth: int = 3) -> None:
        super().__init__()
        sides = (img_size, img_size) if isinstance(img_size, int) else img_size
        self.image_shape, self.num_features = (in_chans, *sides), 16
        self.patches = nn.Conv2d(in_chans, 16, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, 16))
        self.positions = nn.Parameter(torch.randn(1, sides[0] * sides[1] // 16, 16))
        self.blocks = nn.ModuleList(MultiHeadAttention(16, 2) for _ in range(depth))
        self.norm = nn.LayerNorm(16)
        self.reset_classifier(num_classes)

    def forward_features(self, images: Tensor) -> Tensor:
        self.check_images(images)
        tokens = self.patches(images).flatten(2).mT + self.positions
        tokens = torch.cat((self.token.expand(len(images), -1, -1), tokens), 1)
        for block in self.blocks:
            tokens = tokens + block(self.norm(tokens))
        return tokens

    def pool(self, features: Tensor) -> Tensor:
        return self.norm(features)[:, 0]

    def make_classifier(self) -> nn.Module:
        return nn.Linear(16, self.num_classes)


class Local(nn.Module):
    """Attention in windows or in groups of cells spread evenly: (batch, rows, columns, 16) -> the same."""

    def __init__(self, spread: bool, size: int) -> None:
        super().__init__()
        self.spread, self.size = spread, (size, size)
        self.qkv, self.coupling = nn.Linear(16, 48), Coupling("senders")

    def forward(self, cells: Tensor) -> Tensor:
        topology = (Spread if self.spread else Blocks)((cells.shape[1], cells.shape[2]), self.size)
        q, k, v = self.qkv(topology.cut(cells)).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        out = attend(q, k, v, self.coupling, tiles=topology).transpose(1, 2).flatten(2)
        return cells + topology.join(out)


class WindowNet(VisionModel):
    """Two stages of windows and spread groups, the second with half the cells, and gates of channels between them."""

    first_conv = "patches"

    def __init__(self, num_classes: int = 4, in_chans: int = 3, img_size: Any = 32) -> None:
        super().__init__()
        sides = (img_size, img_size) if isinstance(img_size, int) else img_size
        self.image_shape, self.num_features = (in_chans, *sides), 16
        self.patches = nn.Conv2d(in_chans, 16, 4, 4)
        self.first = nn.Sequential(Local(False, 4), Local(True, 4))
        self.gate = SqueezeExcite(16, 4)
        self.halve = nn.Conv2d(16, 16, 2, 2)
        self.second = nn.Sequential(Local(False, 2), Local(True, 2))
        self.reset_classifier(num_classes)

    def forward_features(self, images: Tensor) -> Tensor:
        self.check_images(images)
        cells = self.first(self.patches(images).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self.second(self.halve(self.gate(cells)).permute(0, 2, 3, 1))

    def pool(self, features: Tensor) -> Tensor:
        return features.mean((1, 2))

    def make_classifier(self) -> nn.Module:
        return nn.Linear(16, self.num_classes)


class LateTokenNet(TokenNet):
    """Patches among themselves first, then a class token that is the only receiver; places are set."""

    def __init__(self, num_classes: int = 4, in_chans: int = 3, img_size: Any = 32, *, depth: int = 3) -> None:
        super().__init__(num_classes, in_chans, img_size, depth=depth)
        rows, columns = self.image_shape[1] // 4, self.image_shape[2] // 4
        grid = Grid(rows, columns, 1, 2.0, 4.0, 0)
        for block in list(self.blocks)[:-1]:
            block.coupling.senders = block.coupling.receivers = grid
        self.blocks[-1].coupling.senders = grid._replace(feeds=None, prefix=1)

    def forward_features(self, images: Tensor) -> Tensor:
        self.check_images(images)
        tokens = self.patches(images).flatten(2).mT + self.positions
        for block in list(self.blocks)[:-1]:
            tokens = tokens + block(self.norm(tokens))
        token = self.token.expand(len(images), -1, -1)
        context = self.norm(torch.cat((token, tokens), 1))
        return token + self.blocks[-1](context[:, :1], context)
