// Attention of the tokens of an image to a disc around each of them and to tokens that all of them see, and its
// gradients; a tile is computed as in neighborhood.cpp.
//
// Senders lie as [some that all see | the image, row by row | more that all see]. A tile of VL queries goes over the
// rows of the image that its discs touch, in each over the columns from the first to the last that any of them holds.
//
// Backward, for the senders of the image only: senders that all see have dense gradients, made by matrix products.
#include "tile_attention.hpp"

namespace {

struct Discs : Extent {
    idx rows, columns, before, reach;
    const idx* widths;  // of a disc at each distance in rows, 0 to reach: columns to each side
    idx down, across;   // queries of a tile

    Discs(const idx* numbers, const idx* widths, idx B, idx H, idx D, idx E)
        : Extent{B, H, D, E, numbers[0] * numbers[1], numbers[3]}, rows(numbers[0]), columns(numbers[1]),
          before(numbers[2]), reach(numbers[4]), widths(widths), down(1), across(1) {
        while (down * across < VL) {
            const bool taller = columns <= across || (down < across && rows > down);
            (taller ? down : across) *= 2;
        }
    }
    idx tiles_down() const { return (rows + down - 1) / down; }
    // Tiles along the rows of a slab such that slabs with another one between them have no key in common.
    idx height() const { return std::max<idx>((2 * reach + down - 1) / down, 1); }
};

// The queries of the tile whose first is at (y, x), and their keys.
void fill(Tile& t, const Discs& z, idx y, idx x, bool shared) {
    idx row[VL], column[VL];
    for (idx l = 0; l < VL; ++l) {
        row[l] = std::min(y + l / z.across, z.rows - 1), column[l] = std::min(x + l % z.across, z.columns - 1);
        t.real[l] = y + l / z.across < z.rows && x + l % z.across < z.columns;
        t.at[l] = row[l] * z.columns + column[l];
        t.within[l] = t.real[l] ? -1 : 0;
    }
    t.keys.clear(), t.masks.clear();
    for (idx k = 0; shared && k < z.senders; ++k) {
        if (k == z.before) k += z.tokens;
        if (k < z.senders) t.keys.push_back(k), t.masks.push_back(t.within);
    }
    const idx last = std::min(row[VL - 1] + z.reach + 1, z.rows);
    for (idx r = std::max<idx>(y - z.reach, 0); r < last; ++r) {
        ivec from, to;
        idx begin = z.columns, end = 0;
        for (idx l = 0; l < VL; ++l) {
            const idx apart = std::abs(r - row[l]);
            const idx width = apart <= z.reach ? z.widths[apart] : -1;
            const idx f = std::max<idx>(column[l] - width, 0), e = std::min(column[l] + width + 1, z.columns);
            from[l] = int32_t(f), to[l] = int32_t(e);
            if (f < e) begin = std::min(begin, f), end = std::max(end, e);
        }
        for (idx k = begin; k < end; ++k) {
            const ivec here = ivec{} + int32_t(k);
            t.keys.push_back(z.before + r * z.columns + k);
            t.masks.push_back((here >= from) & (here < to) & t.within);
        }
    }
}

double multiplications(const Discs& z, bool shared) {
    double keys = shared ? double(z.senders - z.tokens) : 0.0;
    for (idx r = -z.reach; r <= z.reach; ++r) keys += double(2 * z.widths[std::abs(r)] + 1);
    return double(z.B * z.H * z.tokens) * keys * double(z.D + z.E);
}

}  // namespace

extern "C" {

// Each entry point returns 0, or 1 where memory ran out. `numbers` are rows, columns, senders before the image, all
// senders, and the largest distance in rows; `widths` has one more number than that.

// q (B, tokens, H, D), k (B, senders, H, D), v (B, senders, H, E) -> out (B, tokens, H, E), lse (B, tokens, H).
int ENTRY(mereo_circle)(const float* q, const float* k, const float* v, float* out, float* lse, const idx* numbers,
                        const idx* widths, idx B, idx H, idx D, idx E, idx asked, float scale) {
    return guarded([&] {
        const Discs z(numbers, widths, B, H, D, E);
        const Call c{q, k, v, nullptr, nullptr, nullptr, nullptr, out, lse, nullptr, nullptr, nullptr, scale};
        const idx units = B * H * z.tiles_down();
        const Team team(units, multiplications(z, true), 64, asked);
        team.share_out(units, [&](idx, idx first, idx last) {
            Work w(z, false);
            for (idx u = first; u < last; ++u)
                for (idx x = 0; x < z.columns; x += z.across) {
                    fill(w.tile, z, u % z.tiles_down() * z.down, x, true);
                    forward_tile(z, c, u / z.tiles_down() / H, u / z.tiles_down() % H, w);
                }
        });
    });
}

// G and g, the gradients of out and lse, with what was returned -> dq, dk, dv by the senders of the image; dk and
// dv hold zeros before.
int ENTRY(mereo_circle_gradients)(const float* q, const float* k, const float* v, const float* G, const float* g,
                                  const float* out, const float* lse, float* dq, float* dk, float* dv,
                                  const idx* numbers, const idx* widths, idx B, idx H, idx D, idx E, idx asked,
                                  float scale) {
    return guarded([&] {
        const Discs z(numbers, widths, B, H, D, E);
        const Call c{q, k, v, G, g, out, lse, nullptr, nullptr, dq, dk, dv, scale};
        const idx tall = std::min(z.height(), z.tiles_down()), slabs = (z.tiles_down() + tall - 1) / tall;
        for (idx odd = 0; odd < std::min<idx>(2, slabs); ++odd) {
            const idx mine = (slabs - odd + 1) / 2, units = B * H * mine;
            const Team team(units, 2.5 * multiplications(z, false) * double(mine) / double(slabs), 64, asked);
            team.share_out(units, [&](idx, idx first, idx last) {
                Work w(z, true);
                for (idx u = first; u < last; ++u) {
                    const idx slab = u % mine * 2 + odd, head = u / mine;
                    const idx end = std::min((slab + 1) * tall * z.down, z.rows);
                    for (idx y = slab * tall * z.down; y < end; y += z.down)
                        for (idx x = 0; x < z.columns; x += z.across) {
                            fill(w.tile, z, y, x, false);
                            backward_tile(z, c, head / H, head % H, w);
                        }
                }
            });
        }
    });
}
}
