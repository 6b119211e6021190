// A scan with a state of keys times values that decays, block by block; forward in time, or from the end to the start.
//
//     S_t = lam S_(t-1) + k_t v_t^T,     out_t = q_t^T S_t
//
// In a block of m <= VL tokens whose state before, decayed once, is T = lam S:
//
//     out_t = sum_(s <= t) lam^(t-s) <q_t, k_s> v_s + lam^t q_t^T T
//     T <- lam^m T + sum_t lam^(m-t) k_t v_t^T
//
// No power of lam is negative, so nothing overflows. Every gradient is such a scan too, of other tensors in these
// places: mereo/core/kernels/linear_scan_compiled.py has them. The lanes of a vector are the VL queries of a block, and
// for the update of the state VL entries of the values; T stays in the first-level cache. Threads share out heads, and
// columns of the values where there are few heads; the result does not depend on how. Plain C interface; float32.
#include "teams.hpp"

namespace {

// Rows of (batch, heads, tokens, dim) with entries of a row in sequence: how far apart batches, heads and tokens lie.
struct Rows {
    const float* at;
    idx batch, head, token;
    const float* of(idx b, idx h) const { return at + b * batch + h * head; }
};

struct Scan {
    Rows q, k, v;
    float *out, *last;  // (B, H, N, E), and (B, H, D, E) or null
    const float* first;  // T before the first token, (B, H, D, E), or null for zeros
    const double* slopes;
    idx B, H, N, D, E, reverse, undecayed;  // undecayed: `last` is S and not T
    idx token(idx t) const { return reverse ? N - 1 - t : t; }
};

inline idx whole(idx n) { return (n + VL - 1) / VL * VL; }

// One head of one image, columns e0 to e1 of the values.
void scan_columns(const Scan& z, idx b, idx h, idx e0, idx e1) {
    const idx D = z.D, E = e1 - e0, pitch = whole(E);
    Scratch state(D * pitch), queries(D * VL), decayed(D * VL), scores(VL * VL), keys(VL * D), values(VL * pitch),
        outputs(pitch * VL);
    float power[VL + 1];
    for (int j = 0; j <= VL; ++j) power[j] = j ? float(std::exp(-z.slopes[h] * j)) : 1.0f;
    vec within[VL], since;  // lam^(t-s), 0 before s; lam^t
    for (int s = 0; s < VL; ++s)
        for (int t = 0; t < VL; ++t) within[s][t] = t < s ? 0.0f : power[t - s];
    for (int t = 0; t < VL; ++t) since[t] = power[t];
    float* T = state.at;
    std::fill(T, T + D * pitch, 0.0f);
    std::fill(values.at, values.at + VL * pitch, 0.0f);
    if (z.first)
        for (idx d = 0; d < D; ++d)
            std::memcpy(T + d * pitch, z.first + ((b * z.H + h) * D + d) * z.E + e0, E * 4);
    const float *q = z.q.of(b, h), *k = z.k.of(b, h), *v = z.v.of(b, h) + e0;
    float* out = z.out + (b * z.H + h) * z.N * z.E + e0;
    vec *qt = queries.vecs(), *qd = decayed.vecs(), *A = scores.vecs(), *o = outputs.vecs();
    for (idx t0 = 0; t0 < z.N; t0 += VL) {
        const idx m = std::min<idx>(VL, z.N - t0);
        const float *qs[VL], *ks[VL];
        for (idx t = 0; t < m; ++t) {
            const idx n = z.token(t0 + t);
            qs[t] = q + n * z.q.token, ks[t] = k + n * z.k.token;
            std::memcpy(values.at + t * pitch, v + n * z.v.token, E * 4);
        }
        idx d = 0;
        for (; d + VL <= D; d += VL) {
            vec rows[VL];
            for (idx t = 0; t < VL; ++t) rows[t] = t < m ? *reinterpret_cast<const loose*>(qs[t] + d) : vec{};
            transpose<VL / 2>(rows);
            for (idx i = 0; i < VL; ++i) qt[d + i] = rows[i];
        }
        for (; d < D; ++d) {
            qt[d] = vec{};
            for (idx t = 0; t < m; ++t) qt[d][t] = qs[t][d];
        }
        for (d = 0; d < D; ++d) qd[d] = qt[d] * since;
        in_registers<8>(m, [&](auto N, idx s) INLINE {
            vec sum[N] = {};
            for (idx d = 0; d < D; ++d)
                for (int i = 0; i < N; ++i) sum[i] += qt[d] * ks[s + i][d];
            for (int i = 0; i < N; ++i) A[s + i] = sum[i] * within[s + i];
        });
        in_registers<POSE>(E, [&](auto N, idx e) INLINE {
            vec sum[N] = {};
            for (idx s = 0; s < m; ++s)
                for (int i = 0; i < N; ++i) sum[i] += A[s] * values.at[s * pitch + e + i];
            for (idx d = 0; d < D; ++d)
                for (int i = 0; i < N; ++i) sum[i] += qd[d] * T[d * pitch + e + i];
            for (int i = 0; i < N; ++i) o[e + i] = sum[i];
        });
        idx e = 0;
        for (; e + VL <= E; e += VL) {
            vec rows[VL];
            for (idx i = 0; i < VL; ++i) rows[i] = o[e + i];
            transpose<VL / 2>(rows);
            for (idx t = 0; t < m; ++t) *reinterpret_cast<loose*>(out + z.token(t0 + t) * z.E + e) = rows[t];
        }
        for (; e < E; ++e)
            for (idx t = 0; t < m; ++t) out[z.token(t0 + t) * z.E + e] = o[e][t];
        // What is left as S and not T is decayed once less.
        const idx less = z.undecayed && t0 + m == z.N;
        for (idx t = 0; t < m; ++t) {
            const float factor = power[m - t - less];
            for (idx d = 0; d < D; ++d) keys.at[t * D + d] = ks[t][d] * factor;
        }
        const float held = power[m - less];
        in_registers<8>(D, [&](auto N, idx d) INLINE {
            for (idx e = 0; e < pitch; e += VL) {
                vec sum[N];
                for (int i = 0; i < N; ++i) sum[i] = held * *reinterpret_cast<const loose*>(T + (d + i) * pitch + e);
                for (idx t = 0; t < m; ++t) {
                    const vec one = *reinterpret_cast<const loose*>(values.at + t * pitch + e);
                    for (int i = 0; i < N; ++i) sum[i] += keys.at[t * D + d + i] * one;
                }
                for (int i = 0; i < N; ++i) *reinterpret_cast<loose*>(T + (d + i) * pitch + e) = sum[i];
            }
        });
    }
    if (z.last)
        for (idx d = 0; d < D; ++d)
            std::memcpy(z.last + ((b * z.H + h) * D + d) * z.E + e0, T + d * pitch, E * 4);
}

}  // namespace

// `strides`: of batches, heads and tokens of q, k and v. q, k (B, H, N, D), v (B, H, N, E) -> out (B, H, N, E)
// and, unless it is null, the state behind the last token, (B, H, D, E). Returns 0, or 1 where memory ran out.
extern "C" int ENTRY(mereo_linear_scan)(const float* q, const float* k, const float* v, const float* first,
                                        const double* slopes, float* out, float* last, const idx* strides, idx B, idx H,
                                        idx N, idx D, idx E, idx reverse, idx undecayed, idx asked) {
    return guarded([&] {
        const Scan z{{q, strides[0], strides[1], strides[2]},
                     {k, strides[3], strides[4], strides[5]},
                     {v, strides[6], strides[7], strides[8]},
                     out, last, first, slopes, B, H, N, D, E, reverse, undecayed};
        ask_for_large_pages(out, B * H * N * E);
        const idx wanted = (2 * asked + B * H - 1) / std::max<idx>(B * H, 1);
        const idx pieces = std::clamp<idx>(asked > 1 ? wanted : 1, 1, std::max<idx>(E / (2 * VL), 1));
        const idx columns = whole((E + pieces - 1) / pieces), count = (E + columns - 1) / columns, units = B * H * count;
        const Team team(units, double(B * H * N) * double(D) * double(2 * E + VL), std::max<idx>(units, 1), asked);
        team.share_out(units, [&](idx, idx begin, idx end) {
            for (idx u = begin; u < end; ++u) {
                const idx piece = u % count, head = u / count;
                scan_columns(z, head / H, head % H, piece * columns, std::min(E, (piece + 1) * columns));
            }
        });
    });
}
