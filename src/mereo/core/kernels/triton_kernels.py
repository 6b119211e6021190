"""The Triton kernels of `triton_passes`: one pass of routing, forward and backward. Imported only on first use."""

# Kernels are compiled from their source and cannot use Python types.
# mypy: disable-error-code="untyped-decorator,no-untyped-def"

import triton
import triton.language as tl


@triton.jit
def _votes(children, weight, b, s, B, S, R, D, E, R_PAD: tl.constexpr, D_PAD: tl.constexpr, E_PAD: tl.constexpr):
    """U[b, r, e] = sum_d u[b, s, d] W[r, s, d, e], zeros in the padding."""
    r = tl.arange(0, R_PAD)[:, None]
    e = tl.arange(0, E_PAD)[None, :]
    out = tl.zeros((b.shape[0], R_PAD, E_PAD), tl.float32)
    for d in range(D):
        u = tl.load(children + (b.to(tl.int64) * S + s) * D + d, mask=b < B, other=0.0).to(tl.float32)
        u = tl.clamp(u, -1e16, 1e16, propagate_nan=tl.PropagateNan.ALL)
        w = tl.load(weight + ((r.to(tl.int64) * S + s) * D + d) * E + e, mask=(r < R) & (e < E), other=0.0)
        out += u[:, None, None] * w.to(tl.float32)[None, :, :]
    return out


@triton.jit
def _parents(source, b, B, R, E, R_PAD: tl.constexpr, E_PAD: tl.constexpr):
    """Offsets and mask of (images, parents, entries) in a tensor (batch, receivers, d_out)."""
    r = tl.arange(0, R_PAD)[None, :, None]
    e = tl.arange(0, E_PAD)[None, None, :]
    b = b[:, None, None]
    return source + (b.to(tl.int64) * R + r) * E + e, (b < B) & (r < R) & (e < E)


@triton.jit
def _couple(scores, R, LEAKY: tl.constexpr, R_PAD: tl.constexpr):
    """Softmax over the parents, (images, parents)."""
    there = tl.arange(0, R_PAD)[None, :] < R
    scores = tl.where(there, scores, float("-inf"))
    top = tl.max(scores, 1)
    if LEAKY:
        top = tl.maximum(top, 0.0)
    grown = tl.where(there, tl.exp(scores - top[:, None]), 0.0)
    total = tl.sum(grown, 1)
    if LEAKY:
        total += tl.exp(-top)
    return grown / total[:, None]


@triton.jit
def forward_kernel(
    children, weight, agreed, sums, B, S, R, D, E,
    UNIFORM: tl.constexpr, LEAKY: tl.constexpr, SHARE: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
    R_PAD: tl.constexpr, D_PAD: tl.constexpr, E_PAD: tl.constexpr,
):  # fmt: skip
    """Parents of a block of images from a chunk of children: sums (programs, batch, receivers, d_out)."""
    b = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    chunk = tl.program_id(1)
    at, there = _parents(agreed, b, B, R, E, R_PAD, E_PAD)
    if not UNIFORM:
        V = tl.load(at, mask=there, other=0.0)
    total = tl.zeros((BLOCK, R_PAD, E_PAD), tl.float32)
    for s in range(chunk * CHUNK, tl.minimum((chunk + 1) * CHUNK, S)):
        U = _votes(children, weight, b, s, B, S, R, D, E, R_PAD, D_PAD, E_PAD)
        if UNIFORM:
            total += SHARE * U
        else:
            total += _couple(tl.sum(U * V, 2), R, LEAKY, R_PAD)[:, :, None] * U
    out, there = _parents(sums + chunk.to(tl.int64) * B * R * E, b, B, R, E, R_PAD, E_PAD)
    tl.store(out, total, mask=there)


@triton.jit
def backward_kernel(
    children, weight, agreed, grad, d_children, d_weight, sums, B, S, R, D, E,
    UNIFORM: tl.constexpr, LEAKY: tl.constexpr, SHARE: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
    R_PAD: tl.constexpr, D_PAD: tl.constexpr, E_PAD: tl.constexpr,
):  # fmt: skip
    """Adds to the gradients of a chunk of children, of their transforms, and of `agreed` (sums, one a program)."""
    chunk = tl.program_id(0)
    r = tl.arange(0, R_PAD)[:, None]
    e = tl.arange(0, E_PAD)[None, :]
    for s in range(chunk * CHUNK, tl.minimum((chunk + 1) * CHUNK, S)):
        for first in range(0, B, BLOCK):
            b = first + tl.arange(0, BLOCK)
            at, there = _parents(grad, b, B, R, E, R_PAD, E_PAD)
            G = tl.load(at, mask=there, other=0.0)
            if UNIFORM:
                gU = SHARE * G
            else:
                at, there = _parents(agreed, b, B, R, E, R_PAD, E_PAD)
                V = tl.load(at, mask=there, other=0.0)
                U = _votes(children, weight, b, s, B, S, R, D, E, R_PAD, D_PAD, E_PAD)
                c = _couple(tl.sum(U * V, 2), R, LEAKY, R_PAD)
                fit = tl.sum(U * G, 2)
                change = c * (fit - tl.sum(c * fit, 1)[:, None])
                gU = c[:, :, None] * G + change[:, :, None] * V
                # No other program touches this slice of sums.
                out, there = _parents(sums + chunk.to(tl.int64) * B * R * E, b, B, R, E, R_PAD, E_PAD)
                tl.store(out, tl.load(out, mask=there, other=0.0) + change[:, :, None] * U, mask=there)
            for d in range(D):
                w_at = ((r.to(tl.int64) * S + s) * D + d) * E + e
                inside = (r < R) & (e < E)
                w = tl.load(weight + w_at, mask=inside, other=0.0).to(tl.float32)
                u_at = (b.to(tl.int64) * S + s) * D + d
                u = tl.load(children + u_at, mask=b < B, other=0.0).to(tl.float32)
                du = tl.where(tl.abs(u) > 1e16, 0.0, tl.sum(tl.sum(gU * w[None, :, :], 2), 1))
                tl.store(d_children + u_at, tl.load(d_children + u_at, mask=b < B, other=0.0) + du, mask=b < B)
                dw = tl.sum(gU * tl.clamp(u, -1e16, 1e16, propagate_nan=tl.PropagateNan.ALL)[:, None, None], 0)
                tl.store(d_weight + w_at, tl.load(d_weight + w_at, mask=inside, other=0.0) + dw, mask=inside)
            # What one block of images wrote, the next one reads.
            tl.debug_barrier()
