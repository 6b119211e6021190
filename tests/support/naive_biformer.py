"""BiFormer in the modules, names and formulation of its authors' first code: index tensors that gather keys and values.

A slow twin for conversion tests, and the contender of timings: `python tests/support/naive_biformer.py` prints them.
"""

import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def cut(maps: Tensor, windows: int) -> Tensor:
    """(batch, rows, columns, channels) -> (batch, windows^2, cells, channels)."""
    batch, rows, columns, channels = maps.shape
    cells = maps.view(batch, windows, rows // windows, windows, columns // windows, channels)
    return cells.permute(0, 1, 3, 2, 4, 5).reshape(batch, windows**2, -1, channels)


class QKV(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)


class RoutedAttention(nn.Module):
    def __init__(self, dim: int, num_heads: int, windows: int, top_k: int) -> None:
        super().__init__()
        self.num_heads, self.windows, self.top_k, self.scale = num_heads, windows, top_k, dim**-0.5
        self.qkv = QKV(dim)
        self.wo = nn.Linear(dim, dim)
        self.lepe = nn.Conv2d(dim, dim, 5, padding=2, groups=dim)

    def forward(self, maps: Tensor) -> Tensor:
        _, rows, columns, dim = maps.shape
        n = self.windows
        maps = F.pad(maps, (0, 0, 0, -columns % n, 0, -rows % n))
        height, width = maps.shape[1:3]
        q, kv = self.qkv.qkv(cut(maps, n)).split([dim, 2 * dim], -1)
        batch, regions, count, _ = q.shape
        v_map = kv[..., dim:].reshape(batch, n, n, height // n, width // n, dim)
        lepe = self.lepe(v_map.permute(0, 5, 1, 3, 2, 4).reshape(batch, dim, height, width).contiguous())
        routing = (q.mean(2).detach() * self.scale) @ kv[..., :dim].mean(2).detach().mT
        index = routing.topk(self.top_k, -1).indices
        gathered = torch.gather(
            kv.view(batch, 1, regions, count, 2 * dim).expand(-1, regions, -1, -1, -1),
            2,
            index.view(batch, regions, self.top_k, 1, 1).expand(-1, -1, -1, count, 2 * dim),
        )
        k, v = gathered.split([dim, dim], -1)

        def heads(x: Tensor) -> Tensor:
            return x.reshape(batch * regions, -1, self.num_heads, dim // self.num_heads).transpose(1, 2)

        scores = (heads(q) * self.scale) @ heads(k).mT
        out = (scores.softmax(-1) @ heads(v)).transpose(1, 2)
        out = out.reshape(batch, n, n, height // n, width // n, dim).permute(0, 1, 3, 2, 4, 5)
        out = out.reshape(batch, height, width, dim) + lepe.permute(0, 2, 3, 1)
        return self.wo(out)[:, :rows, :columns].contiguous()


class FullAttention(nn.Module):
    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads, self.scale = num_heads, (dim // num_heads) ** -0.5
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim)
        self.lepe = nn.Conv2d(dim, dim, 5, padding=2, groups=dim)

    def forward(self, maps: Tensor) -> Tensor:
        batch, rows, columns, dim = maps.shape
        lepe = self.lepe(maps.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        qkv = self.qkv(maps.view(batch, rows * columns, dim))
        q, k, v = qkv.reshape(batch, rows * columns, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        out = ((q @ k.mT) * self.scale).softmax(-1) @ v
        return self.proj(out.transpose(1, 2).reshape(batch, rows, columns, dim) + lepe)


class Block(nn.Module):
    def __init__(self, dim: int, attention: nn.Module, mlp_ratio: float) -> None:
        super().__init__()
        self.pos_embed = nn.Conv2d(dim, dim, 3, padding=1, groups=dim)
        self.norm1, self.norm2 = nn.LayerNorm(dim, eps=1e-6), nn.LayerNorm(dim, eps=1e-6)
        self.attn = attention
        hidden = int(mlp_ratio * dim)
        self.mlp = nn.Sequential(nn.Linear(dim, hidden), nn.Identity(), nn.GELU(), nn.Linear(hidden, dim))

    def forward(self, maps: Tensor) -> Tensor:
        maps = maps + self.pos_embed(maps)
        cells = maps.permute(0, 2, 3, 1)
        cells = cells + self.attn(self.norm1(cells))
        cells = cells + self.mlp(self.norm2(cells))
        return cells.permute(0, 3, 1, 2)


class NaiveBiFormer(nn.Module):
    """Takes the arguments of `mereo`'s `BiFormer` that it has."""

    def __init__(
        self,
        num_classes: int = 1000,
        widths: tuple[int, ...] = (64, 128, 256, 512),
        depths: tuple[int, ...] = (2, 2, 8, 2),
        top_k: tuple[int, ...] = (1, 4, 16, 0),
        regions: int = 7,
        head_dim: int = 32,
        num_heads: int = 8,
    ) -> None:
        super().__init__()
        half = widths[0] // 2
        stem = [nn.Conv2d(3, half, 3, 2, 1), nn.BatchNorm2d(half), nn.GELU(), nn.Conv2d(half, widths[0], 3, 2, 1)]
        self.downsample_layers = nn.ModuleList([nn.Sequential(*stem, nn.BatchNorm2d(widths[0]))])
        for inputs, outputs in pairwise(widths):
            self.downsample_layers.append(nn.Sequential(nn.Conv2d(inputs, outputs, 3, 2, 1), nn.BatchNorm2d(outputs)))
        self.stages = nn.ModuleList()
        for width, depth, k in zip(widths, depths, top_k, strict=True):
            blocks = []
            for _ in range(depth):
                routed = RoutedAttention(width, width // head_dim, regions, k) if k else FullAttention(width, num_heads)
                blocks.append(Block(width, routed, 3.0))
            self.stages.append(nn.Sequential(*blocks))
        self.norm = nn.BatchNorm2d(widths[-1])
        self.head = nn.Linear(widths[-1], num_classes)

    def maps(self, images: Tensor) -> list[Tensor]:
        made = []
        for down, stage in zip(self.downsample_layers, self.stages, strict=True):
            images = stage(down(images))
            made.append(images)
        return made

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.norm(self.maps(images)[-1]).flatten(2).mean(-1))


def main(batch: int = 8, rounds: int = 5) -> None:
    """Times of inference and of a training step, interleaved: naive divided by ours."""
    import mereo

    model = mereo.create_model("biformer_tiny", pad="legacy", drop_path_rate=0.0)
    naive = NaiveBiFormer()
    images = torch.randn(batch, 3, 224, 224)
    fused = model.fuse()

    def infer(network: nn.Module) -> None:
        with torch.inference_mode():
            network.eval()(images)

    def step(network: nn.Module) -> None:
        network.train()(images).square().mean().backward()

    runs: list[tuple[str, Callable[..., Any], nn.Module]] = [
        ("inference, eager", infer, model), ("inference, fused", infer, fused), ("training step", step, model),
    ]  # fmt: skip
    for name, run, ours in runs:
        run(naive), run(ours)
        ratios = []
        for _ in range(rounds):
            times = []
            for network in (naive, ours):
                start = time.process_time()
                run(network)
                times.append(time.process_time() - start)
            ratios.append(times[0] / times[1])
        print(f"{name}: naive / ours = {statistics.median(ratios):.2f} (CPU time, median of {rounds})")


if __name__ == "__main__":
    main()
