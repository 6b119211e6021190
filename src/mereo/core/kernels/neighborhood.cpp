// Neighbourhood attention and its gradients, a small tile of queries at a time, on the tokens where they lie.
//
//     S[j] = scale <q, k_j> + bias[j - i],   P = softmax_j(S),   out = sum_j P[j] v_j,   lse = log sum_j exp(S[j])
//
// for query i, over the window of each query. The lanes of a vector are the VL queries of a tile; keys go by one after the other,
// broadcast, over the box that holds all windows of the tile, and lanes whose window a key is not in are masked out.
// So windows that are shifted at borders, cut short (causal), shared (stride) or dilated all run alike.
//
// Backward, with G and g the gradients of out and lse, P is made anew from lse:
//
//     b[j] = P[j] (<G, v_j> - <G, out> + g),   dq = scale sum_j b[j] k_j,   dk_j += b[j] scale q,   dv_j += P[j] G,
//     dbias[j - i] += b[j]
//
// The bias of a key for all lanes of a tile follows from where the key lies beside the first query. So the table is
// written out once for a call, a vector for each such place, and a tile reads one vector for each key.
//
// Tokens lie as (batch, tokens, heads, dim). Units of work are slabs of tiles along the first axis, of one head of one
// image; backward, every second slab is done first and then the others, so that no two write to the same keys, and the
// sums do not depend on the number of threads. Plain C interface; float32.
#include <array>

#include "tile_attention.hpp"

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

struct Grid : Extent {
    Line axis[AXES];
    Place tile;   // queries of a tile along each axis; their product is VL
    bool biased;  // whether keys need their places in a table of biases

    Grid(const idx* numbers, idx B, idx H, idx D, idx E, bool biased) : Extent{B, H, D, E, 1, 0}, biased(biased) {
        for (int a = 0; a < AXES; ++a, numbers += 5) {
            axis[a] = {numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]};
            tokens *= axis[a].length;
        }
        senders = tokens;
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
    // Relative positions of a query and a key along an axis, and places of a key beside the first query of a tile.
    idx relative(int a) const { return 2 * axis[a].window - 1; }
    idx beside(int a) const { return 2 * axis[a].window - 2 + tile[a]; }
    idx entries() const { return relative(0) * relative(1) * relative(2); }
    idx places() const { return beside(0) * beside(1) * beside(2); }
    // Of a key beside the first query of its tile.
    idx place(const Place& k, const Place& first) const {
        idx n = 0;
        for (int a = 0; a < AXES; ++a) n = n * beside(a) + k[a] - first[a] + axis[a].window - 1;
        return n;
    }
    // each(place, lane, entry of a table) for all that there are.
    template <class Each> void each_entry(Each each) const {
        Place e;
        idx at = 0;
        for (e[0] = 0; e[0] < beside(0); ++e[0])
            for (e[1] = 0; e[1] < beside(1); ++e[1])
                for (e[2] = 0; e[2] < beside(2); ++e[2], ++at)
                    for (int l = 0; l < VL; ++l) {
                        const Place mine = {l / (tile[1] * tile[2]), l / tile[2] % tile[1], l % tile[2]};
                        idx entry = 0;
                        bool within = true;
                        for (int a = 0; a < AXES; ++a) {
                            const idx step = e[a] - mine[a];
                            within = within && step >= 0 && step < relative(a);
                            entry = entry * relative(a) + step;
                        }
                        if (within) each(at, l, entry);
                    }
    }
    // Of the token at a place within a group.
    idx number(const Place& offset, const Place& p) const {
        idx n = 0;
        for (int a = 0; a < AXES; ++a) n = n * axis[a].length + offset[a] + axis[a].dilation * p[a];
        return n;
    }
};

// The queries of the tile that begins at place `first` of a group, and the box that holds all of their windows.
void fill(Tile& t, const Grid& z, const Place& offset, const Place& first) {
    idx begin[AXES], end[AXES];
    std::vector<ivec> along[AXES];
    Place p[VL];
    for (int l = 0; l < VL; ++l) {
        idx rest = l;
        t.real[l] = true;
        for (int a = AXES - 1; a >= 0; --a) {
            const idx n = z.axis[a].group(offset[a]), mine = first[a] + rest % z.tile[a];
            rest /= z.tile[a];
            t.real[l] = t.real[l] && mine < n;
            p[l][a] = std::min(mine, n - 1);
        }
        t.at[l] = z.number(offset, p[l]);
        t.within[l] = t.real[l] ? -1 : 0;
    }
    for (int a = 0; a < AXES; ++a) {
        const idx n = z.axis[a].group(offset[a]);
        ivec from, to;
        begin[a] = n, end[a] = 0;
        for (int l = 0; l < VL; ++l) {
            const auto [f, e] = z.axis[a].keys(p[l][a], n);
            from[l] = int32_t(f), to[l] = int32_t(e);
            begin[a] = std::min(begin[a], f), end[a] = std::max(end[a], e);
        }
        along[a].resize(end[a] - begin[a]);
        for (idx k = begin[a]; k < end[a]; ++k) {
            const ivec here = ivec{} + int32_t(k);
            along[a][k - begin[a]] = (here >= from) & (here < to);
        }
    }
    t.keys.clear(), t.masks.clear(), t.places.clear();
    Place k;
    for (k[0] = begin[0]; k[0] < end[0]; ++k[0])
        for (k[1] = begin[1]; k[1] < end[1]; ++k[1]) {
            const ivec both = along[0][k[0] - begin[0]] & along[1][k[1] - begin[1]] & t.within;
            for (k[2] = begin[2]; k[2] < end[2]; ++k[2]) {
                t.keys.push_back(z.number(offset, k));
                t.masks.push_back(both & along[2][k[2] - begin[2]]);
                if (z.biased) t.places.push_back(z.place(k, first));
            }
        }
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
                fill(w.tile, z, offset, at);
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

// The tables of biases of all heads, a vector of lanes for each place.
struct Biases {
    idx places;
    Scratch held;
    Biases(const Grid& z, const float* bias) : places(z.places()), held(bias ? z.H * places * VL : 0) {
        if (!bias) return;
        const idx entries = z.entries();
        z.each_entry([&](idx place, int lane, idx entry) {
            for (idx h = 0; h < z.H; ++h)
                held.at[(h * places + place) * VL + lane] = bias[h * entries + entry];
        });
    }
    const vec* of(const Grid& z, idx head) const { return z.biased ? held.vecs() + head * places : nullptr; }
};

// Gradients of the biases. What a part of the work sums for one head of one image goes into a row of its own, so that
// the result does not depend on the number of threads.
struct BiasGradients {
    const Grid& z;
    idx entries, rows;
    std::vector<float> held;
    std::vector<int32_t> head;  // of each row
    BiasGradients(const Grid& z, idx parts)
        : z(z), entries(z.entries()), rows(z.biased ? parts + z.B * z.H : 0), held(rows * entries), head(rows, -1) {}
    // Parts go through the heads of the images one after the other: no two have the same sum of both numbers.
    void add(idx part, idx image_head, Scratch& sums) {
        float* row = held.data() + (part + image_head) * entries;
        head[part + image_head] = int32_t(image_head % z.H);
        z.each_entry([&](idx place, int lane, idx entry) { row[entry] += sums.at[place * VL + lane]; });
        std::fill(sums.held.begin(), sums.held.end(), 0.0f);
    }
    void finish(float* dbias) {
        for (idx r = 0; r < rows; ++r) {
            const float* row = held.data() + r * entries;
            for (idx i = 0; head[r] >= 0 && i < entries; ++i) dbias[head[r] * entries + i] += row[i];
        }
    }
};

double multiplications(const Grid& z) {
    double keys = 1;
    for (const Line& line : z.axis) keys *= double(line.window);
    return double(z.B * z.H * z.tokens) * keys * double(z.D + z.E);
}

}  // namespace

extern "C" {

// Each entry point returns 0, or 1 where memory ran out. `lines` has for each of three axes its length, window, stride,
// dilation, and 1 where it is causal.

// q, k (B, tokens, H, D), v (B, tokens, H, E), bias (H, relative positions) or null -> out (B, tokens, H, E),
// lse (B, tokens, H).
int ENTRY(mereo_neighborhood)(const float* q, const float* k, const float* v, const float* bias, float* out, float* lse,
                              const idx* lines, idx B, idx H, idx D, idx E, idx asked, float scale) {
    return guarded([&] {
        const Grid z(lines, B, H, D, E, bias);
        const Call c{q, k, v, nullptr, nullptr, nullptr, nullptr, out, lse, nullptr, nullptr, nullptr, scale};
        const Biases biases(z, bias);
        const idx rows = z.tiles(0, 0), units = B * H * z.groups() * rows;
        const Team team(units, multiplications(z), 64, asked);
        team.share_out(units, [&](idx, idx first, idx last) {
            Work w(z, false);
            for (idx u = first; u < last; ++u) {
                const idx row = u % rows, group = u / rows % z.groups(), head = u / rows / z.groups();
                w.bias = biases.of(z, head % H);
                slab(z, group, row, row + 1, w, [&] { forward_tile(z, c, head / H, head % H, w); });
            }
        });
    });
}

// G and g, the gradients of out and lse, with what was returned -> dq, dk, dv, dbias; the last three hold zeros
// before.
int ENTRY(mereo_neighborhood_gradients)(const float* q, const float* k, const float* v, const float* bias,
                                        const float* G, const float* g, const float* out, const float* lse, float* dq,
                                        float* dk, float* dv, float* dbias, const idx* lines, idx B, idx H, idx D,
                                        idx E, idx asked, float scale) {
    return guarded([&] {
        const Grid z(lines, B, H, D, E, bias);
        const Call c{q, k, v, G, g, out, lse, nullptr, nullptr, dq, dk, dv, scale};
        const Biases biases(z, bias);
        const idx tall = height(z), slabs = (z.tiles(0, 0) + tall - 1) / tall;
        for (idx odd = 0; odd < std::min<idx>(2, slabs); ++odd) {
            const idx mine = (slabs - odd + 1) / 2, units = B * H * z.groups() * mine;
            const Team team(units, 2.5 * multiplications(z) * double(mine) / double(slabs), 64, asked);
            BiasGradients gradients(z, team.parts);
            team.share_out(units, [&](idx part, idx first, idx last) {
                Work w(z, true);
                Scratch sums(bias ? z.places() * VL : 0);
                w.dbias = bias ? sums.vecs() : nullptr;
                for (idx u = first; u < last; ++u) {
                    const idx s = u % mine * 2 + odd, group = u / mine % z.groups(), head = u / mine / z.groups();
                    w.bias = biases.of(z, head % H);
                    slab(z, group, s * tall, (s + 1) * tall, w, [&] { backward_tile(z, c, head / H, head % H, w); });
                    if (bias && (u + 1 == last || (u + 1) / mine / z.groups() != head)) gradients.add(part, head, sums);
                }
            });
            if (bias) gradients.finish(dbias);
        }
    });
}
}
