"""CLEAR over several processes, each of which has a horizontal band of the image: for inference.

Source: arXiv:2412.16112, section 3.3; there text tokens average over the patches, here their attention is exact.
Cost: as `clear_attention` on the band and the rows of a circle above and below it. A process receives the keys and
values of at most 2 (ceil(radius) - 1) rows, and of every other process one output and one number for each text token.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from mereo.core import Circle, Coupling
from mereo.core.kernels.exchange import Exchange, exchange
from mereo.errors import UsageError


def band_of(rows: int, rank: int, ranks: int) -> tuple[int, int]:
    """First row of a process's band and the one behind its last; bands differ by one row at most."""
    if ranks > rows:
        raise UsageError(f"there are {ranks} processes for an image of {rows} rows; give at most one for each row.")
    return rows * rank // ranks, rows * (rank + 1) // ranks


def joined(outputs: Tensor, logs: Tensor) -> Tensor:
    """Softmax attention over all keys, merged from parts of the keys: sum_p exp(l_p - l) out_p, l = log sum_p exp(l_p).

    Shapes: outputs (parts, ..., pose), logs (parts, ...), log sum exp of the scores of each part -> (..., pose).
    """
    return (logs.softmax(0).unsqueeze(-1) * outputs).sum(0)


def _agree(q: Tensor, k: Tensor, v: Tensor, circle: Circle, group: dist.ProcessGroup | None) -> None:
    """UsageError on every process if one has other sizes than the first, or other tokens than its band's."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    first, last = band_of(circle.grid[0], rank, ranks)
    needed = circle.text + (last - first) * circle.grid[1]
    counts = {x.shape[2] for x in (q, k, v)}
    sizes = (q.shape[:2], q.shape[3], k.shape[3], v.shape[3], str(q.dtype), circle)
    everyone: list[tuple[object, bool]] = [((), False)] * ranks
    dist.all_gather_object(everyone, (sizes, counts == {needed}), group)
    for other, (theirs, complete) in enumerate(everyone):
        if theirs != everyone[0][0]:
            raise UsageError(f"process {other} has {theirs} and process 0 {everyone[0][0]}; they must agree.")
        if not complete:
            begin, end = band_of(circle.grid[0], other, ranks)
            raise UsageError(
                f"process {other} has not the {circle.text} text tokens and rows {begin} to {end - 1} of the image,"
                f" which are {circle.text + (end - begin) * circle.grid[1]} tokens."
            )


def _with_halo(x: Tensor, circle: Circle, group: dist.ProcessGroup | None) -> tuple[Tensor, int]:
    """The rows of a band and the rows that its circles reach, and how many of these come before it.

    Shapes: (batch, heads, own rows * columns, dim) -> (batch, heads, more rows * columns, dim).
    """
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    (rows, columns), reach = circle.grid, circle.reach
    bands = [band_of(rows, other, ranks) for other in range(ranks)]

    def shared(owner: int, reader: int) -> tuple[int, int]:
        """Rows of one process that another one reads."""
        begin, end = max(bands[reader][0] - reach, 0), min(bands[reader][1] + reach, rows)
        return max(begin, bands[owner][0]), min(end, bands[owner][1])

    mine, pieces, work = bands[rank][0], {rank: x}, []
    for other in range(ranks):
        if other == rank:
            continue
        there = other if group is None else dist.get_global_rank(group, other)
        begin, end = shared(rank, other)
        if begin < end:
            rows_sent = x[:, :, (begin - mine) * columns : (end - mine) * columns].contiguous()
            work.append(dist.P2POp(dist.isend, rows_sent, there, group))
        begin, end = shared(other, rank)
        if begin < end:
            pieces[other] = x.new_empty(*x.shape[:2], (end - begin) * columns, x.shape[3])
            work.append(dist.P2POp(dist.irecv, pieces[other], there, group))
    for request in dist.batch_isend_irecv(work) if work else ():
        request.wait()
    before = sum(pieces[other].shape[2] for other in pieces if other < rank) // columns
    return torch.cat([pieces[other] for other in sorted(pieces)], 2), before


def clear_attention_bands(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    grid: tuple[int, int],
    radius: float,
    *,
    text_tokens: int = 0,
    scale: float | None = None,
    method: str = "auto",
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    """`clear_attention` over an image whose rows are distributed over several processes, exactly; without gradients.

    Every process of the group calls it, with the text tokens, which all of them have, and the rows of its band,
    `band_of(rows, rank, processes)`.

    Args:
        grid: rows and columns of the whole image.
        radius, text_tokens, scale, method: as in `clear_attention`.
        group: of processes; all by default.

    Shapes: q, k (batch, heads, text + own rows * columns, dim), v likewise with pose -> as v.

    Raises:
        UsageError: on every process, if one of them has other sizes or other tokens than its band's; with gradients.

    Deviates: the paper averages what the patches give for a text token; here the parts are joined by the logs of their
        sums, which is exact.

    Reference: arXiv:2412.16112, section 3.3.
    """
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
        raise UsageError("q, k or v require gradients; bands are for inference, under torch.no_grad().")
    circle = Circle(grid, radius, text_tokens)
    _agree(q, k, v, circle, group)
    scale, text = q.shape[3] ** -0.5 if scale is None else scale, text_tokens
    rank, ranks, columns = dist.get_rank(group), dist.get_world_size(group), circle.grid[1]
    both, before = _with_halo(torch.cat((k, v), 3)[:, :, text:], circle, group)
    keys, values = both.split((k.shape[3], v.shape[3]), 3)
    here = Circle((keys.shape[2] // columns, columns), radius, text)
    # Rows of the halo have no query here: queries of zero stand in, and their output is dropped.
    behind = here.image - before * columns - (q.shape[2] - text)
    queries = torch.nn.functional.pad(q[:, :, text:], (0, 0, before * columns, behind))
    keys, values = torch.cat((k[:, :, :text], keys), 2), torch.cat((v[:, :, :text], values), 2)
    out, _ = exchange(Exchange(queries, keys, values, here.of_image, Coupling("senders"), scale), method)
    image = out[:, :, before * columns : out.shape[2] - behind]
    if not text:
        return image
    # One process adds the text itself.
    mine = slice(0 if rank == 0 else text, None)
    scores = (q[:, :, :text] @ k[:, :, mine].mT * scale).to(torch.promote_types(q.dtype, torch.float32))
    part = scores.softmax(-1).to(v.dtype) @ v[:, :, mine]
    outputs = [torch.empty_like(part) for _ in range(ranks)]
    logs = [scores.new_empty(scores.shape[:3]) for _ in range(ranks)]
    dist.all_gather(outputs, part.contiguous(), group)
    dist.all_gather(logs, scores.logsumexp(-1).contiguous(), group)
    whole = joined(torch.stack(outputs).to(scores.dtype), torch.stack(logs)).to(v.dtype)
    return torch.cat((whole, image), 2)
