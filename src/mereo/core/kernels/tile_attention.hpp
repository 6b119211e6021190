// Attention of one small tile of queries to a list of keys, and its gradients; see neighborhood.cpp and circle.cpp.
//
// The lanes of a vector are the VL queries of a tile; keys go by one after the other, broadcast, and lanes that do not
// see a key are masked out. Tokens lie as (batch, tokens, heads, dim).
#pragma once

#include <limits>

#include "teams.hpp"

namespace {

// Sizes of one call: queries `tokens`, keys `senders`.
struct Extent {
    idx B, H, D, E;
    idx tokens, senders;
};

// The queries and keys of one tile.
struct Tile {
    idx at[VL];                // token of each lane; a lane beyond the border repeats another one
    bool real[VL];             // whether it is within
    std::vector<idx> keys;     // token of each key
    std::vector<ivec> masks;   // lanes that each key is for, all bits set
    std::vector<idx> places;   // of each key in a table of biases, where there is one
    ivec within;

    idx count() const { return idx(keys.size()); }
};

// Rows of the queries of a tile, at from + at[lane] * stride, into lanes: to[k][lane], times factor.
inline void gather_lanes(const float* from, const Tile& t, idx stride, idx count, float factor, vec* to) {
    idx k = 0;
    for (; k + VL <= count; k += VL) {
        vec rows[VL];
        for (idx l = 0; l < VL; ++l) rows[l] = *reinterpret_cast<const loose*>(from + t.at[l] * stride + k);
        transpose<VL / 2>(rows);
        for (idx l = 0; l < VL; ++l) to[k + l] = rows[l] * factor;
    }
    for (; k < count; ++k)
        for (idx l = 0; l < VL; ++l) reinterpret_cast<float*>(to + k)[l] = from[t.at[l] * stride + k] * factor;
}

inline void scatter_lanes(const vec* from, const Tile& t, idx stride, idx count, float* to) {
    idx k = 0;
    for (; k + VL <= count; k += VL) {
        vec rows[VL];
        for (idx l = 0; l < VL; ++l) rows[l] = from[k + l];
        transpose<VL / 2>(rows);
        for (idx l = 0; l < VL; ++l)
            if (t.real[l]) *reinterpret_cast<loose*>(to + t.at[l] * stride + k) = rows[l];
    }
    for (; k < count; ++k)
        for (idx l = 0; l < VL; ++l)
            if (t.real[l]) to[t.at[l] * stride + k] = reinterpret_cast<const float*>(from + k)[l];
}

// Lanes turned back into rows of whole vectors with zeros behind: to[lane * pitch + k].
inline void lanes_to_rows(const vec* from, idx count, idx pitch, float* to) {
    for (idx k = 0; k < pitch; k += VL) {
        vec rows[VL];
        for (idx l = 0; l < VL; ++l) rows[l] = k + l < count ? from[k + l] : vec{};
        transpose<VL / 2>(rows);
        for (idx l = 0; l < VL; ++l) *reinterpret_cast<loose*>(to + l * pitch + k) = rows[l];
    }
}

// out[j] = <x, row j> for every key.
inline void products(const vec* x, const float* rows, const Tile& t, idx stride, idx count, vec* out) {
    in_registers<8>(t.count(), [&](auto N, idx j) INLINE {
        const float* row[N];
        vec sum[N] = {};
        for (int i = 0; i < N; ++i) row[i] = rows + t.keys[j + i] * stride;
        for (idx d = 0; d < count; ++d)
            for (int i = 0; i < N; ++i) sum[i] += x[d] * row[i][d];
        for (int i = 0; i < N; ++i) out[j + i] = sum[i];
    });
}

// out[d] = factor sum_j weights[j] row_j[d]
inline void combination(const vec* weights, const float* rows, const Tile& t, idx stride, idx count, vec factor,
                        vec* out) {
    in_registers<POSE>(count, [&](auto N, idx d) INLINE {
        vec sum[N] = {};
        for (idx j = 0; j < t.count(); ++j) {
            const float* row = rows + t.keys[j] * stride + d;
            for (int i = 0; i < N; ++i) sum[i] += weights[j] * row[i];
        }
        for (int i = 0; i < N; ++i) out[d + i] = sum[i] * factor;
    });
}

// row_j[d] += sum over lanes of weights[j][lane] x[lane][d], x in rows of `pitch`.
inline void spread(const vec* weights, const float* x, idx pitch, const Tile& t, idx stride, idx count, float* rows) {
    in_registers<8>(t.count(), [&](auto N, idx j) INLINE {
        const float* w = reinterpret_cast<const float*>(weights + j);
        float* row[N];
        for (int i = 0; i < N; ++i) row[i] = rows + t.keys[j + i] * stride;
        for (idx d = 0; d < count; d += VL) {
            const idx some = std::min<idx>(VL, count - d);
            vec sum[N] = {};
            for (idx l = 0; l < VL; ++l) {
                const vec one = *reinterpret_cast<const loose*>(x + l * pitch + d);
                for (int i = 0; i < N; ++i) sum[i] += w[i * VL + l] * one;
            }
            for (int i = 0; i < N; ++i) {
                if (some == VL) {
                    *reinterpret_cast<loose*>(row[i] + d) += sum[i];
                } else {
                    for (idx e = 0; e < some; ++e) row[i][d + e] += sum[i][e];
                }
            }
        }
    });
}

// Scores of a tile, with a bias for each place where there is one, finite, and the lowest number where a lane is masked
// out.
inline void scores_of(const vec* q, const float* k, const Tile& t, const Extent& z, const vec* bias, vec* S) {
    products(q, k, t, z.H * z.D, z.D, S);
    if (bias)
        for (idx j = 0; j < t.count(); ++j) S[j] += bias[t.places[j]];
    const vec most = splat(std::numeric_limits<float>::max());
    for (idx j = 0; j < t.count(); ++j) {
        vec s = S[j] > most ? most : S[j];
        s = s < -most ? -most : s;
        S[j] = t.masks[j] ? s : -most;
    }
}

struct Call {
    const float *q, *k, *v, *G, *g, *saved, *saved_lse;
    float *out, *lse, *dq, *dk, *dv;
    float scale;
};

// One thread's memory, and the table of biases of the head that it is at.
struct Work {
    Tile tile;
    const vec* bias = nullptr;  // by place
    vec* dbias = nullptr;       // sums of the gradients of the scores, by place
    Scratch q, o, G, S, P, q_rows, G_rows;
    static idx whole(idx n) { return (n + VL - 1) / VL * VL; }
    Work(const Extent& z, bool back)
        : q(z.D * VL), o(z.E * VL), G(back ? z.E * VL : 0), S(0), P(0), q_rows(back ? whole(z.D) * VL : 0),
          G_rows(back ? whole(z.E) * VL : 0) {}
    // Room for the scores of a tile.
    void reserve(bool back) {
        const idx needed = (tile.count() + 1) * VL;
        if (idx(S.held.size()) >= needed) return;
        S = Scratch(2 * needed);
        if (back) P = Scratch(2 * needed);
    }
};

inline void forward_tile(const Extent& z, const Call& c, idx b, idx h, Work& w) {
    const Tile& t = w.tile;
    const idx of_q = (b * z.tokens * z.H + h) * z.D, of_out = (b * z.tokens * z.H + h) * z.E;
    const idx of_k = (b * z.senders * z.H + h) * z.D, of_v = (b * z.senders * z.H + h) * z.E;
    w.reserve(false);
    vec *q = w.q.vecs(), *S = w.S.vecs(), *o = w.o.vecs();
    gather_lanes(c.q + of_q, t, z.H * z.D, z.D, c.scale, q);
    scores_of(q, c.k + of_k, t, z, w.bias, S);
    vec top = S[0], total = {};
    for (idx j = 1; j < t.count(); ++j) top = S[j] > top ? S[j] : top;
    for (idx j = 0; j < t.count(); ++j) total += S[j] = t.masks[j] ? exponential(S[j] - top) : vec{};
    total = total > 0 ? total : splat(1.0f);  // lanes beyond the border have no key
    combination(S, c.v + of_v, t, z.H * z.E, z.E, 1.0f / total, o);
    scatter_lanes(o, t, z.H * z.E, z.E, c.out + of_out);
    for (idx l = 0; l < VL; ++l)
        if (t.real[l]) c.lse[(b * z.tokens + t.at[l]) * z.H + h] = top[l] + std::log(total[l]);
}

inline void backward_tile(const Extent& z, const Call& c, idx b, idx h, Work& w) {
    const Tile& t = w.tile;
    const idx of_q = (b * z.tokens * z.H + h) * z.D, of_out = (b * z.tokens * z.H + h) * z.E;
    const idx of_k = (b * z.senders * z.H + h) * z.D, of_v = (b * z.senders * z.H + h) * z.E;
    w.reserve(true);
    vec *q = w.q.vecs(), *S = w.S.vecs(), *P = w.P.vecs(), *o = w.o.vecs(), *G = w.G.vecs();
    gather_lanes(c.q + of_q, t, z.H * z.D, z.D, c.scale, q);
    gather_lanes(c.G + of_out, t, z.H * z.E, z.E, 1.0f, G);
    gather_lanes(c.saved + of_out, t, z.H * z.E, z.E, 1.0f, o);
    vec mean = {}, lse = {};
    for (idx l = 0; l < VL; ++l) {
        const idx row = (b * z.tokens + t.at[l]) * z.H + h;
        lse[l] = c.saved_lse[row];
        mean[l] = -c.g[row];
    }
    for (idx e = 0; e < z.E; ++e) mean += o[e] * G[e];
    scores_of(q, c.k + of_k, t, z, w.bias, S);
    for (idx j = 0; j < t.count(); ++j) {
        const vec low = S[j] - lse;
        P[j] = t.masks[j] ? exponential(low < 0 ? low : vec{}) : vec{};
    }
    products(G, c.v + of_v, t, z.H * z.E, z.E, S);
    for (idx j = 0; j < t.count(); ++j) S[j] = t.masks[j] ? P[j] * (S[j] - mean) : vec{};
    if (w.dbias)
        for (idx j = 0; j < t.count(); ++j) w.dbias[t.places[j]] += S[j];
    const idx d_pitch = Work::whole(z.D), e_pitch = Work::whole(z.E);
    lanes_to_rows(q, z.D, d_pitch, w.q_rows.at);
    lanes_to_rows(G, z.E, e_pitch, w.G_rows.at);
    spread(S, w.q_rows.at, d_pitch, t, z.H * z.D, z.D, c.dk + of_k);
    spread(P, w.G_rows.at, e_pitch, t, z.H * z.E, z.E, c.dv + of_v);
    combination(S, c.k + of_k, t, z.H * z.D, z.D, splat(c.scale), q);
    scatter_lanes(q, t, z.H * z.D, z.D, c.dq + of_q);
}

}  // namespace
