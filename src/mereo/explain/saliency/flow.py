"""Attention flow: the largest flow from the output to each place through a network whose pipes are attention.

Source: Abnar, Zuidema 2020, arXiv:2005.00928, section 3.2.
Cost: a maximum flow for each place of each image; seconds for 64 places.
"""

import numpy as np
import torch
from torch import Tensor

from mereo.core import Grid
from mereo.explain.attention_layers import AttentionLayer
from mereo.explain.observation import Observation
from mereo.explain.rollout import AttentionMap, layers_from_the_input, passed_back, starts_at_token
from mereo.runtime.libraries import require

_WHOLE = 2**24
"""Capacities are whole numbers in units of 1 / this."""


def _pipes(layers: list[AttentionLayer]) -> tuple[list[Tensor], Grid]:
    """For each layer from the last, (batch, outputs, inputs): the class token first, then cells; and the last grid.

    Tokens between the class token and the cells stand behind it.
    """
    pipes, grid, before = [], None, 1
    for layer in reversed(layers):
        wanted = layer.senders if layer.receivers is None else layer.receivers
        grid = wanted if grid is None else grid
        before = max(before, 1 if layer.receivers is None else layer.receivers.prefix)
        count, rows = before + grid.rows * grid.columns, []
        for n in range(count):
            one = torch.zeros(layer.batch, count, device=layer.call.scores.device)
            one[:, n] = 1
            first, cells = passed_back(layer, one[:, :before], one[:, before:], grid)
            rows.append(torch.cat((first, cells), 1))
        pipes.append(torch.stack(rows, 1))
        before = first.shape[1]
        grid = layer.senders
    assert grid is not None
    return pipes, grid


def attention_flow(observation: Observation, layers: list[AttentionLayer] | None = None) -> AttentionMap | None:
    """How much can flow from the class token to each place of the first layer, if attention is all that moves it.

    capacity of the pipe from output r of layer l to input s:   ((I + mean over heads of c_l) / 2)_rs
    flow_s = maximum flow from the class token above layer L to the input s of layer 1

    Without a class token the source feeds all outputs alike. Layers of several sizes and tiles are treated as in
    `attention_rollout`. The flow of a single layer is in proportion to its rollout.

    Args:
        layers: of `attention_layers(observation)`, from the first; all of them by default.

    Returns None where `attention_rollout` does.

    Reference: arXiv:2005.00928, section 3.2.
    """
    require("attention_flow", ("scipy",), "papers")
    layers = layers_from_the_input(observation) if layers is None else layers
    if not layers:
        return None
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_flow

    pipes, grid = _pipes(layers)
    last = layers[-1].receivers or layers[-1].senders
    cells, found = last.rows * last.columns, []
    source = torch.zeros(pipes[0].shape[1])
    if starts_at_token(observation, layers[-1]):
        source[0] = 1
    else:
        source[-cells:] = 1 / cells
    for image in range(layers[0].batch):
        rows, columns, sizes, first = [], [], [], 1
        blocks = [source[None], *(pipe[image].double().cpu() for pipe in pipes)]
        for number, block in enumerate(blocks):
            start = 0 if number == 0 else first
            first = first if number == 0 else first + block.shape[0]
            taken = block.nonzero()
            rows.append(taken[:, 0] + start)
            columns.append(taken[:, 1] + first)
            sizes.append((block[taken[:, 0], taken[:, 1]] * _WHOLE).round())
        count = first + blocks[-1].shape[1]
        edges = (torch.cat(rows).numpy(), torch.cat(columns).numpy())
        graph = csr_array((torch.cat(sizes).numpy().astype(np.int32), edges), shape=(count, count))
        flows = [
            maximum_flow(graph, 0, place).flow_value / _WHOLE
            for place in range(count - grid.rows * grid.columns, count)
        ]
        found.append(torch.tensor(flows))
    shares = torch.stack(found).unflatten(1, (grid.rows, grid.columns))
    return AttentionMap(shares, grid, tuple(layer.name for layer in layers))
