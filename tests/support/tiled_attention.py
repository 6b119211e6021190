"""Attention inside groups of cells, cell by cell from its equations."""

import math

import torch
from torch import Tensor, nn

from mereo.mechanisms.attention import BlockAttention, GridAttention


def perturbed(module: nn.Module) -> nn.Module:
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.4)
    return module.double().eval()


def by_loops(attention: BlockAttention | GridAttention, maps: Tensor, groups: Tensor) -> Tensor:
    """The equations, cell by cell: groups[g] lists the cells of a group row by row."""
    batch, rows, columns, dim = maps.shape
    out = torch.zeros_like(maps)
    cells, result = maps.reshape(batch, rows * columns, dim), out.view(batch, rows * columns, dim)
    heads, bias = attention.heads, attention.positions()[0]
    for image in range(batch):
        for group in groups.tolist():
            q, k, v = (attention.qkv(cells[image, group])).chunk(3, -1)
            size = q.shape[-1] // heads
            for i, receiver in enumerate(group):
                parts = []
                for h in range(heads):
                    piece = slice(h * size, (h + 1) * size)
                    scores = [
                        (q[i, piece] @ k[j, piece] / math.sqrt(size) + bias[h, i, j]).item() for j in range(len(group))
                    ]
                    shares = [math.exp(score) / sum(math.exp(s) for s in scores) for score in scores]
                    parts.append(sum(share * v[j, piece] for j, share in enumerate(shares)))
                result[image, receiver] = attention.proj(torch.cat(parts))
    return out
