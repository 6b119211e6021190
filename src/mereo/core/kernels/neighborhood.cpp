// Neighbourhood attention and its gradients, a small tile of queries at a time, on the tokens where they lie.
//
//     S[j] = scale <q, k_j>,   P = softmax_j(S),   out = sum_j P[j] v_j,   lse = log sum_j exp(S[j])
//
// over the window of each query. The lanes of a vector are the VL queries of a tile; keys go by one after the other,
// broadcast, over the box that holds all windows of the tile, and lanes whose window a key is not in are masked out.
// So windows that are shifted at borders, cut short (causal), shared (stride) or dilated all run alike.
//
// Backward, with G the gradient of out and g that of lse, P is made anew from lse:
//
//     b[j] = P[j] (<G, v_j> - <G, out> + g),   dq = scale sum_j b[j] k_j,   dk_j += b[j] scale q,   dv_j += P[j] G
//
// Tokens lie as (batch, tokens, heads, dim). Units of work are slabs of tiles along the first axis, of one head of one
// image; backward, every second slab is done first and then the others, so that no two write to the same keys, and the
// sums do not depend on the number of threads. Plain C interface; float32.
#include <array>
#include <limits>

#include "teams.hpp"

namespace {

constexpr int AXES = 3;
using Place = std::array<idx, AXES>;

struct Line {
    idx length, window, stride, dilation, causal;
    idx group(idx offset) const { return (length - offset + dilation - 1) / dilation; }
    // First key of position p of a group of n, and the one behind the last.
    std::pair<idx, idx> keys(idx p, idx n) const {
        const idx block = p / stride * stride;
        if (causal) return {std::max<idx>(std::min(block + stride - 1, n - 1) - window + 1, 0), p + 1};
        const idx leader = std::min(block + stride / 2, n - 1);
        const idx first = std::max<idx>(std::min(leader - window / 2, n - window), 0);
        return {first, first + window};
    }
    // Keys that t queries in a row have together, about.
    double together(idx t) const { return double((t - 1) / stride * stride + window); }
};

struct Grid {
    Line axis[AXES];
    Place tile;  // queries of a tile along each axis; their product is VL
    idx B, H, D, E, tokens;

    Grid(const idx* numbers, idx B, idx H, idx D, idx E) : B(B), H(H), D(D), E(E) {
        tokens = 1;
        for (int a = 0; a < AXES; ++a, numbers += 5) {
            axis[a] = {numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]};
            tokens *= axis[a].length;
        }
        // The tile is doubled along the axis where that adds the smallest share of keys; the last one at a draw.
        tile = {1, 1, 1};
        for (int lanes = 1; lanes < VL; lanes *= 2) {
            int best = AXES - 1;
            double least = INFINITY;
            for (int a = AXES - 1; a >= 0; --a) {
                const bool full = tile[a] >= axis[a].group(0);
                const double growth = full ? 2 : axis[a].together(2 * tile[a]) / axis[a].together(tile[a]);
                if (growth < least) least = growth, best = a;
            }
            tile[best] *= 2;
        }
    }
    idx groups() const { return axis[0].dilation * axis[1].dilation * axis[2].dilation; }
    Place offsets(idx group) const {
        const idx last = axis[2].dilation, middle = axis[1].dilation;
        return {group / last / middle, group / last % middle, group % last};
    }
    idx tiles(int a, idx offset) const { return (axis[a].group(offset) + tile[a] - 1) / tile[a]; }
    // Of the token at a place within a group.
    idx number(const Place& offset, const Place& p) const {
        idx n = 0;
        for (int a = 0; a < AXES; ++a) n = n * axis[a].length + offset[a] + axis[a].dilation * p[a];
        return n;
    }
};

// The queries and keys of one tile.
struct Tile {
    idx at[VL];                // token of each lane; a lane beyond the border repeats another one
    bool real[VL];             // whether it is within
    std::vector<idx> keys;     // token of each key
    std::vector<ivec> masks;   // lanes that each key is for, all bits set
    ivec within;

    void set(const Grid& z, const Place& offset, const Place& first) {
        idx begin[AXES], end[AXES];
        std::vector<ivec> along[AXES];
        Place p[VL];
        for (int l = 0; l < VL; ++l) {
            idx rest = l;
            real[l] = true;
            for (int a = AXES - 1; a >= 0; --a) {
                const idx n = z.axis[a].group(offset[a]), mine = first[a] + rest % z.tile[a];
                rest /= z.tile[a];
                real[l] = real[l] && mine < n;
                p[l][a] = std::min(mine, n - 1);
            }
            at[l] = z.number(offset, p[l]);
            within[l] = real[l] ? -1 : 0;
        }
        for (int a = 0; a < AXES; ++a) {
            const idx n = z.axis[a].group(offset[a]);
            ivec from, to;
            begin[a] = n, end[a] = 0;
            for (int l = 0; l < VL; ++l) {
                const auto [f, t] = z.axis[a].keys(p[l][a], n);
                from[l] = int32_t(f), to[l] = int32_t(t);
                begin[a] = std::min(begin[a], f), end[a] = std::max(end[a], t);
            }
            along[a].resize(end[a] - begin[a]);
            for (idx k = begin[a]; k < end[a]; ++k) {
                const ivec here = ivec{} + int32_t(k);
                along[a][k - begin[a]] = (here >= from) & (here < to);
            }
        }
        keys.clear(), masks.clear();
        Place k;
        for (k[0] = begin[0]; k[0] < end[0]; ++k[0])
            for (k[1] = begin[1]; k[1] < end[1]; ++k[1]) {
                const ivec both = along[0][k[0] - begin[0]] & along[1][k[1] - begin[1]] & within;
                for (k[2] = begin[2]; k[2] < end[2]; ++k[2]) {
                    keys.push_back(z.number(offset, k));
                    masks.push_back(both & along[2][k[2] - begin[2]]);
                }
            }
    }
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

// Scores of a tile, finite, and the lowest number where a lane is masked out.
inline void scores_of(const vec* q, const float* k, const Tile& t, const Grid& z, vec* S) {
    products(q, k, t, z.H * z.D, z.D, S);
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

// One thread's memory.
struct Work {
    Tile tile;
    Scratch q, o, G, S, P, q_rows, G_rows;
    static idx whole(idx n) { return (n + VL - 1) / VL * VL; }
    Work(const Grid& z, bool back)
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

void forward_tile(const Grid& z, const Call& c, idx b, idx h, Work& w) {
    const Tile& t = w.tile;
    const idx qk = (b * z.tokens * z.H + h) * z.D, of_v = (b * z.tokens * z.H + h) * z.E;
    w.reserve(false);
    vec *q = w.q.vecs(), *S = w.S.vecs(), *o = w.o.vecs();
    gather_lanes(c.q + qk, t, z.H * z.D, z.D, c.scale, q);
    scores_of(q, c.k + qk, t, z, S);
    vec top = S[0], total = {};
    for (idx j = 1; j < t.count(); ++j) top = S[j] > top ? S[j] : top;
    for (idx j = 0; j < t.count(); ++j) total += S[j] = t.masks[j] ? exponential(S[j] - top) : vec{};
    total = total > 0 ? total : splat(1.0f);  // lanes beyond the border have no key
    combination(S, c.v + of_v, t, z.H * z.E, z.E, 1.0f / total, o);
    scatter_lanes(o, t, z.H * z.E, z.E, c.out + of_v);
    for (idx l = 0; l < VL; ++l)
        if (t.real[l]) c.lse[(b * z.tokens + t.at[l]) * z.H + h] = top[l] + std::log(total[l]);
}

void backward_tile(const Grid& z, const Call& c, idx b, idx h, Work& w) {
    const Tile& t = w.tile;
    const idx qk = (b * z.tokens * z.H + h) * z.D, of_v = (b * z.tokens * z.H + h) * z.E;
    w.reserve(true);
    vec *q = w.q.vecs(), *S = w.S.vecs(), *P = w.P.vecs(), *o = w.o.vecs(), *G = w.G.vecs();
    gather_lanes(c.q + qk, t, z.H * z.D, z.D, c.scale, q);
    gather_lanes(c.G + of_v, t, z.H * z.E, z.E, 1.0f, G);
    gather_lanes(c.saved + of_v, t, z.H * z.E, z.E, 1.0f, o);
    vec mean = {}, lse = {};
    for (idx l = 0; l < VL; ++l) {
        const idx row = (b * z.tokens + t.at[l]) * z.H + h;
        lse[l] = c.saved_lse[row];
        mean[l] = -c.g[row];
    }
    for (idx e = 0; e < z.E; ++e) mean += o[e] * G[e];
    scores_of(q, c.k + qk, t, z, S);
    for (idx j = 0; j < t.count(); ++j) {
        const vec low = S[j] - lse;
        P[j] = t.masks[j] ? exponential(low < 0 ? low : vec{}) : vec{};
    }
    products(G, c.v + of_v, t, z.H * z.E, z.E, S);
    for (idx j = 0; j < t.count(); ++j) S[j] = t.masks[j] ? P[j] * (S[j] - mean) : vec{};
    const idx d_pitch = Work::whole(z.D), e_pitch = Work::whole(z.E);
    lanes_to_rows(q, z.D, d_pitch, w.q_rows.at);
    lanes_to_rows(G, z.E, e_pitch, w.G_rows.at);
    spread(S, w.q_rows.at, d_pitch, t, z.H * z.D, z.D, c.dk + qk);
    spread(P, w.G_rows.at, e_pitch, t, z.H * z.E, z.E, c.dv + of_v);
    combination(S, c.k + qk, t, z.H * z.D, z.D, splat(c.scale), q);
    scatter_lanes(q, t, z.H * z.D, z.D, c.dq + qk);
}

// Tiles `first` to `last` along the first axis, of one group of one head of one image.
template <class Each> void slab(const Grid& z, idx group, idx first, idx last, Work& w, Each each) {
    const Place offset = z.offsets(group);
    for (int a = 0; a < AXES; ++a)
        if (z.axis[a].group(offset[a]) == 0) return;
    Place at;
    for (at[0] = first * z.tile[0]; at[0] < std::min(last * z.tile[0], z.axis[0].group(offset[0])); at[0] += z.tile[0])
        for (at[1] = 0; at[1] < z.axis[1].group(offset[1]); at[1] += z.tile[1])
            for (at[2] = 0; at[2] < z.axis[2].group(offset[2]); at[2] += z.tile[2]) {
                w.tile.set(z, offset, at);
                each();
            }
}

// Tiles of a slab along the first axis such that slabs with another one between them have no key in common.
idx height(const Grid& z) {
    const Line& line = z.axis[0];
    const idx n = line.group(0), all = z.tiles(0, 0);
    for (idx h = 1; h < all; ++h) {
        bool apart = true;
        for (idx s = h; s + h < all && apart; s += h) {
            // Groups differ in length by one at most, which moves the windows at the far border.
            for (idx m = std::max<idx>(n - 1, line.window); m <= n; ++m) {
                const idx before = std::min(s * z.tile[0], m) - 1, after = (s + h) * z.tile[0];
                if (after >= m) continue;
                apart = apart && line.keys(before, m).second <= line.keys(after, m).first;  // neither ever falls
            }
        }
        if (apart) return h;
    }
    return std::max<idx>(all, 1);
}

double multiplications(const Grid& z) {
    double keys = 1;
    for (const Line& line : z.axis) keys *= double(line.window);
    return double(z.B * z.H * z.tokens) * keys * double(z.D + z.E);
}

}  // namespace

extern "C" {

// Each entry point returns 0, or 1 where memory ran out. `lines` has for each of three axes its length, window, stride,
// dilation, and 1 where it is causal.

// q, k (B, tokens, H, D), v (B, tokens, H, E) -> out (B, tokens, H, E), lse (B, tokens, H).
int ENTRY(mereo_neighborhood)(const float* q, const float* k, const float* v, float* out, float* lse, const idx* lines,
                              idx B, idx H, idx D, idx E, idx asked, float scale) {
    return guarded([&] {
        const Grid z(lines, B, H, D, E);
        const Call c{q, k, v, nullptr, nullptr, nullptr, nullptr, out, lse, nullptr, nullptr, nullptr, scale};
        const idx rows = z.tiles(0, 0), units = B * H * z.groups() * rows;
        const Team team(units, multiplications(z), 64, asked);
        team.share_out(units, [&](idx, idx first, idx last) {
            Work w(z, false);
            for (idx u = first; u < last; ++u) {
                const idx row = u % rows, group = u / rows % z.groups(), head = u / rows / z.groups();
                slab(z, group, row, row + 1, w, [&] { forward_tile(z, c, head / H, head % H, w); });
            }
        });
    });
}

// G, the gradient of out, and g, that of lse, with what was returned -> dq, dk, dv; dk and dv hold zeros before.
int ENTRY(mereo_neighborhood_gradients)(const float* q, const float* k, const float* v, const float* G, const float* g,
                                        const float* out, const float* lse, float* dq, float* dk, float* dv,
                                        const idx* lines, idx B, idx H, idx D, idx E, idx asked, float scale) {
    return guarded([&] {
        const Grid z(lines, B, H, D, E);
        const Call c{q, k, v, G, g, out, lse, nullptr, nullptr, dq, dk, dv, scale};
        const idx tall = height(z), slabs = (z.tiles(0, 0) + tall - 1) / tall;
        for (idx odd = 0; odd < std::min<idx>(2, slabs); ++odd) {
            const idx mine = (slabs - odd + 1) / 2, units = B * H * z.groups() * mine;
            const Team team(units, 2.5 * multiplications(z) * double(mine) / double(slabs), 64, asked);
            team.share_out(units, [&](idx, idx first, idx last) {
                Work w(z, true);
                for (idx u = first; u < last; ++u) {
                    const idx s = u % mine * 2 + odd, group = u / mine % z.groups(), head = u / mine / z.groups();
                    slab(z, group, s * tall, (s + 1) * tall, w, [&] { backward_tile(z, c, head / H, head % H, w); });
                }
            });
        }
    });
}
}
