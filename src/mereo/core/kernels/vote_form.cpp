// The derivatives of F = sum c[b, r, s] u[b, s, d] W[r, s, d, e] v[b, r, e] with respect to each of its arguments.
//
// Lanes are images, tiles of children stay in cache, and threads share out the children, as in dynamic_routing.cpp.
#include "teams.hpp"

namespace {

struct Form {
    const float *c, *u, *W;
    const vec* v;  // in blocks
    Sizes z;
    idx first, last;
};

// A tile is whole vectors of children where that is possible, for couplings and scores have the children innermost.
idx even_tile(const Sizes& z) {
    const idx tile = tile_of(z);
    return tile > VL ? tile / VL * VL : tile;
}

// work(first child, how many, first image, lanes)
template <class Work> void each_tile(const Form& f, Work work) {
    const idx tile = even_tile(f.z);
    for (idx s = f.first; s < f.last; s += tile)
        for (idx b = 0; b < f.z.B; b += VL) work(s, std::min(tile, f.last - s), b, std::min<idx>(VL, f.z.B - b));
}

void children_to_lanes(const Form& f, idx s0, idx n, idx b, idx lanes, vec* out) {
    to_lanes(f.u + (b * f.z.S + s0) * f.z.D, f.z.S * f.z.D, lanes, n * f.z.D, out, INFINITY);
}

void couplings_to_lanes(const Form& f, idx r, idx s0, idx n, idx b, idx lanes, vec* out) {
    to_lanes(f.c + (b * f.z.R + r) * f.z.S + s0, f.z.R * f.z.S, lanes, n, out, INFINITY);
}

// The transform of a pair; one that comes later is asked for.
const float* transform(const Form& f, idx r, idx s) {
    const float* w = f.W + (r * f.z.S + s) * f.z.D * f.z.E;
    fetch(w, f.z);
    return w;
}

// dF/dc: how well each vote fits its parent.
void agree(const Form& f, float* out) {
    const Sizes& z = f.z;
    const idx tile = even_tile(z);
    Scratch children(tile * z.D * VL), fits(tile * VL);
    vec *ut = children.vecs(), *fit = fits.vecs();
    each_tile(f, [&](idx s0, idx n, idx b, idx lanes) {
        children_to_lanes(f, s0, n, b, lanes, ut);
        for (idx r = 0; r < z.R; ++r) {
            const vec* v = f.v + (b / VL * z.R + r) * z.E;
            for (idx s = 0; s < n; ++s) {
                vec sum = {};
                votes_of(ut + s * z.D, transform(f, r, s0 + s), z.D, z.E, [&](const auto& U, idx e) INLINE {
                    sum += dot(U, v + e);
                });
                fit[s] = sum;
            }
            from_lanes(fit, z.R * z.S, lanes, n, out + (b * z.R + r) * z.S + s0);
        }
    });
}

// dF/dv: what the parents become, in blocks.
void combine(const Form& f, vec* sum) {
    const Sizes& z = f.z;
    const idx tile = even_tile(z);
    Scratch children(tile * z.D * VL), couplings(tile * VL), scaled(z.D * VL);
    vec *ut = children.vecs(), *c = couplings.vecs(), *cu = scaled.vecs();
    each_tile(f, [&](idx s0, idx n, idx b, idx lanes) {
        children_to_lanes(f, s0, n, b, lanes, ut);
        for (idx r = 0; r < z.R; ++r) {
            couplings_to_lanes(f, r, s0, n, b, lanes, c);
            vec* mine = sum + (b / VL * z.R + r) * z.E;
            for (idx s = 0; s < n; ++s) {
                for (idx d = 0; d < z.D; ++d) cu[d] = c[s] * ut[s * z.D + d];
                add_votes(cu, transform(f, r, s0 + s), z.D, z.E, mine);
            }
        }
    });
}

// dF/du
void pull_back(const Form& f, float* out) {
    const Sizes& z = f.z;
    const idx tile = even_tile(z);
    Scratch pulled(tile * z.D * VL), couplings(tile * VL), coupled(z.E * VL);
    vec *dut = pulled.vecs(), *c = couplings.vecs(), *cv = coupled.vecs();
    each_tile(f, [&](idx s0, idx n, idx b, idx lanes) {
        std::fill(dut, dut + n * z.D, vec{});
        for (idx r = 0; r < z.R; ++r) {
            couplings_to_lanes(f, r, s0, n, b, lanes, c);
            const vec* v = f.v + (b / VL * z.R + r) * z.E;
            for (idx s = 0; s < n; ++s) {
                for (idx e = 0; e < z.E; ++e) cv[e] = c[s] * v[e];
                pull(cv, transform(f, r, s0 + s), z, dut + s * z.D);
            }
        }
        from_lanes(dut, z.S * z.D, lanes, n * z.D, out + (b * z.S + s0) * z.D);
    });
}

// dF/dW
void outer_products(const Form& f, float* out) {
    const Sizes& z = f.z;
    const idx tile = even_tile(z);
    Scratch children(tile * z.D * VL), couplings(tile * VL);
    const Turned turned(z);
    vec *ut = children.vecs(), *c = couplings.vecs();
    each_tile(f, [&](idx s0, idx n, idx b, idx lanes) {
        children_to_lanes(f, s0, n, b, lanes, ut);
        for (idx r = 0; r < z.R; ++r) {
            couplings_to_lanes(f, r, s0, n, b, lanes, c);
            const vec* v = f.v + (b / VL * z.R + r) * z.E;
            for (idx s = 0; s < n; ++s) {
                for (idx e = 0; e < z.E; ++e) turned.G()[e] = c[s] * v[e];
                turned.add(ut + s * z.D, lanes, b == 0, out + (r * z.S + s0 + s) * z.D * z.E);
            }
        }
    });
}

}  // namespace

// c (B, R, S), u (B, S, D), W (R, S, D, E), v (B, R, E), one of them null -> the derivative with respect to
// it. Returns 0, or 1 where memory ran out.
extern "C" int ENTRY(mereo_vote_form)(const float* c, const float* u, const float* W, const float* v, float* out,
                                       idx B, idx S, idx R, idx D, idx E, idx asked) {
    return guarded([&] {
        const Sizes z{B, S, R, D, E};
        const Team team(z, asked);
        const idx n = blocks_of(z) * R * E;
        Scratch given(v ? n * VL : 0), sums(v ? 0 : team.parts * n * VL);
        if (v) to_blocks(v, z, given.vecs());
        team.share_out(S, [&](idx part, idx first, idx last) {
            const Form f{c, u, W, given.vecs(), z, first, last};
            if (!c)
                agree(f, out);
            else if (!u)
                pull_back(f, out);
            else if (!W)
                outer_products(f, out);
            else
                combine(f, sums.vecs() + part * n);
        });
        if (!v) gather(sums.vecs(), team.parts, z, out);
    });
}
