// A pass of routing, and the gradients of all passes, with the votes of one child and a few images at a time, in cache.
//
//     U[r, e] = sum_d u[d] W[r, s, d, e]      the votes of child s
//     c = softmax_r(<U[r], V[r]>)             its couplings, V the sum of earlier parents; all `share` where V is null
//     S[r, e] += c[r] U[r, e]                 what the parents become
//
// Backward, with G the gradient of S, the scores' gradient is b = c (a - sum_r c a), a = <U[r], G[r]>, and so
//
//     dV[r, e] += b[r] U[r, e],      dU[r, e] = sum of all passes of c[r] G[r, e] + b[r] V[r, e]
//
// A pass needs dV alone from the one after it, so that dU, and with it the gradients of u and W, are made once for all.
//
// The lanes of a vector are VL images, so that nothing is summed across lanes and every size of pose, of child and of
// parent runs alike; only the gradient of W sums over images, and there the lanes are entries of a pose. Threads share
// out the children. No votes are stored: the backward pass makes them anew. Plain C interface; sums in float32.
#include "teams.hpp"

namespace {

// In a tile children go by in groups: of one while the votes and parents of a block of images fit the first-level
// cache, else of several, so that each parent is fetched once for all of them.
idx group_of(const Sizes& z) { return z.R * z.E * VL * 4 <= (16 << 10) ? 1 : 4; }

// Scores to couplings c, and fits to G to the gradient b of the scores, for one child.
inline void couple_with_change(vec* c, vec* b, idx R, bool leaky) {
    couple(c, R, leaky);
    const vec mean = dot(c, b, R);
    for (idx r = 0; r < R; ++r) b[r] = c[r] * (b[r] - mean);
}

// What parents become over children first to last where all couplings are `share`.
void uniform_range(const float* u, const float* W, float share, vec* sum, const Sizes& z, idx first, idx last) {
    const idx tile = tile_of(z), matrix = z.D * z.E;
    Scratch children(tile * z.D * VL);
    vec* ut = children.vecs();
    for (idx s0 = first; s0 < last; s0 += tile) {
        const idx n = std::min(tile, last - s0);
        for (idx b = 0; b < z.B; b += VL) {
            to_lanes(u + (b * z.S + s0) * z.D, z.S * z.D, std::min<idx>(VL, z.B - b), n * z.D, ut, LARGEST);
            for (idx k = 0; k < n * z.D; ++k) ut[k] *= share;
            for (idx r = 0; r < z.R; ++r)
                for (idx s = 0; s < n; ++s) {
                    const float* w = W + (r * z.S + s0 + s) * matrix;
                    fetch(w, z);
                    add_votes(ut + s * z.D, w, z.D, z.E, sum + (b / VL * z.R + r) * z.E);
                }
        }
    }
}

// sum_s f_s U_s over children first to last: f are the couplings or, BACK, the gradient of their scores.
template <bool BACK>
void pass_range(const float* u, const float* W, const vec* V, const vec* G, bool leaky, vec* sum, const Sizes& z,
                idx first, idx last) {
    const idx RE = z.R * z.E, tile = tile_of(z), group = group_of(z), matrix = z.D * z.E;
    Scratch children(tile * z.D * VL), couplings(group * z.R * VL), changes(BACK ? group * z.R * VL : 0);
    Scratch made(group * RE * VL);
    vec *ut = children.vecs(), *c = couplings.vecs(), *a = changes.vecs(), *kept = made.vecs();
    const vec* f = BACK ? a : c;
    for (idx s0 = first; s0 < last; s0 += tile) {
        const idx n = std::min(tile, last - s0);
        for (idx b = 0; b < z.B; b += VL) {
            const idx at = b / VL * RE;
            to_lanes(u + (b * z.S + s0) * z.D, z.S * z.D, std::min<idx>(VL, z.B - b), n * z.D, ut, LARGEST);
            for (idx g0 = 0; g0 < n; g0 += group) {
                const idx g = std::min(group, n - g0);
                for (idx r = 0; r < z.R; ++r)
                    for (idx s = 0; s < g; ++s) {
                        const vec *Vr = V + at + r * z.E, *Gr = G + at + r * z.E;
                        const float* w = W + (r * z.S + s0 + g0 + s) * matrix;
                        vec agreement = {}, fit = {}, *mine = kept + (r * group + s) * z.E;
                        fetch(w, z);
                        votes_of(ut + (g0 + s) * z.D, w, z.D, z.E, [&](const auto& U, idx e) INLINE {
                            agreement += dot(U, Vr + e);
                            if (BACK) fit += dot(U, Gr + e);
                            for (const vec& x : U) mine[e++] = x;
                        });
                        c[s * z.R + r] = agreement;
                        if (BACK) a[s * z.R + r] = fit;
                    }
                for (idx s = 0; s < g; ++s)
                    if (BACK)
                        couple_with_change(c + s * z.R, a + s * z.R, z.R, leaky);
                    else
                        couple(c + s * z.R, z.R, leaky);
                for (idx r = 0; r < z.R; ++r) {
                    vec* mine = sum + at + r * z.E;
                    in_registers<POSE>(z.E, [&](auto N, idx e) INLINE {
                        vec total[N];
                        for (int j = 0; j < N; ++j) total[j] = mine[e + j];
                        for (idx s = 0; s < g; ++s)
                            for (int j = 0; j < N; ++j)
                                total[j] += f[s * z.R + r] * kept[(r * group + s) * z.E + e + j];
                        for (int j = 0; j < N; ++j) mine[e + j] = total[j];
                    });
                }
            }
        }
    }
}

// Where the gradients of all passes come from: V and G of passes that agreed with something, G0 of passes that did not.
struct Passes {
    const vec *V, *G, *G0;
    idx count, stride;
};

// du and dW of children first to last.
void gradients_range(const float* u, const float* W, const Passes& p, bool leaky, float share, float* du, float* dW,
                     const Sizes& z, idx first, idx last) {
    const idx RE = z.R * z.E, tile = tile_of(z), group = group_of(z), matrix = z.D * z.E, pass = group * z.R;
    Scratch children(tile * z.D * VL), pulled(tile * z.D * VL);
    Scratch couplings(p.count * pass * VL), changes(p.count * pass * VL);
    const Turned turned(z);
    vec *ut = children.vecs(), *dut = pulled.vecs(), *c = couplings.vecs(), *a = changes.vecs();
    vec* dU = turned.G();
    for (idx s0 = first; s0 < last; s0 += tile) {
        const idx n = std::min(tile, last - s0);
        for (idx b = 0; b < z.B; b += VL) {
            const idx lanes = std::min<idx>(VL, z.B - b), at = b / VL * RE, where = (b * z.S + s0) * z.D;
            to_lanes(u + where, z.S * z.D, lanes, n * z.D, ut, LARGEST);
            std::fill(dut, dut + n * z.D, vec{});
            for (idx g0 = 0; g0 < n; g0 += group) {
                const idx g = std::min(group, n - g0);
                if (p.count)
                    for (idx r = 0; r < z.R; ++r)
                        for (idx s = 0; s < g; ++s) {
                            const float* w = W + (r * z.S + s0 + g0 + s) * matrix;
                            const vec *V = p.V + at + r * z.E, *G = p.G + at + r * z.E;
                            vec *cs = c + s * z.R + r, *as = a + s * z.R + r;
                            fetch(w, z);
                            votes_of(ut + (g0 + s) * z.D, w, z.D, z.E, [&](const auto& U, idx e) INLINE {
                                for (idx t = 0; t < p.count; ++t) {
                                    const vec agreement = dot(U, V + t * p.stride + e);
                                    const vec fit = dot(U, G + t * p.stride + e);
                                    cs[t * pass] = e ? cs[t * pass] + agreement : agreement;
                                    as[t * pass] = e ? as[t * pass] + fit : fit;
                                }
                            });
                        }
                for (idx t = 0; t < p.count; ++t)
                    for (idx s = 0; s < g; ++s)
                        couple_with_change(c + t * pass + s * z.R, a + t * pass + s * z.R, z.R, leaky);
                for (idx r = 0; r < z.R; ++r)
                    for (idx s = 0; s < g; ++s) {
                        const idx pair = r * z.S + s0 + g0 + s, from = at + r * z.E;
                        const vec *cs = c + s * z.R + r, *as = a + s * z.R + r;
                        in_registers<POSE>(z.E, [&](auto N, idx e) INLINE {
                            vec total[N] = {};
                            if (p.G0)
                                for (int j = 0; j < N; ++j) total[j] = share * p.G0[from + e + j];
                            for (idx t = 0; t < p.count; ++t) {
                                const vec *V = p.V + t * p.stride + from + e, *G = p.G + t * p.stride + from + e;
                                const vec ct = cs[t * pass], at = as[t * pass];
                                for (int j = 0; j < N; ++j) total[j] += ct * G[j] + at * V[j];
                            }
                            for (int j = 0; j < N; ++j) dU[e + j] = total[j];
                        });
                        fetch(W + pair * matrix, z);
                        fetch(dW + pair * matrix, z);
                        pull(dU, W + pair * matrix, z, dut + (g0 + s) * z.D);
                        turned.add(ut + (g0 + s) * z.D, lanes, b == 0, dW + pair * matrix);
                    }
            }
            from_held_lanes(dut, u + where, z.S * z.D, lanes, n * z.D, du + where);
        }
    }
}

}  // namespace

extern "C" {

// Each entry point returns 0, or 1 where memory ran out.

// u (B, S, D), W (R, S, D, E), V (B, R, E) or null -> out (B, R, E). With G, the gradient of that, out is dV.
int ENTRY(mereo_pass)(const float* u, const float* W, const float* V, const float* G, float* out, idx B, idx S, idx R,
                       idx D, idx E, idx asked, int leaky, float share) {
    return guarded([&] {
        const Sizes z{B, S, R, D, E};
        const Team team(z, asked);
        const idx n = blocks_of(z) * R * E;
        Scratch agreed(V ? n * VL : 0), given(G ? n * VL : 0), sums(team.parts * n * VL);
        if (V) to_blocks(V, z, agreed.vecs());
        if (G) to_blocks(G, z, given.vecs());
        team.share_out(S, [&](idx part, idx first, idx last) {
            vec* sum = sums.vecs() + part * n;
            if (G)
                pass_range<true>(u, W, agreed.vecs(), given.vecs(), leaky, sum, z, first, last);
            else if (V)
                pass_range<false>(u, W, agreed.vecs(), nullptr, leaky, sum, z, first, last);
            else
                uniform_range(u, W, share, sum, z, first, last);
        });
        gather(sums.vecs(), team.parts, z, out);
    });
}

// V and G (count, B, R, E) of the passes that agreed, G0 (B, R, E) the sum over the other passes, or null -> du, dW.
int ENTRY(mereo_pass_gradients)(const float* u, const float* W, const float* V, const float* G, const float* G0,
                                 float* du, float* dW, idx B, idx S, idx R, idx D, idx E, idx asked, int leaky,
                                 float share, idx count) {
    return guarded([&] {
        const Sizes z{B, S, R, D, E};
        const Team team(z, asked);
        const idx n = blocks_of(z) * R * E;
        Scratch agreed(count * n * VL), given(count * n * VL), alike(G0 ? n * VL : 0);
        for (idx t = 0; t < count; ++t) {
            to_blocks(V + t * B * R * E, z, agreed.vecs() + t * n);
            to_blocks(G + t * B * R * E, z, given.vecs() + t * n);
        }
        if (G0) to_blocks(G0, z, alike.vecs());
        const Passes passes{agreed.vecs(), given.vecs(), G0 ? alike.vecs() : nullptr, count, n};
        team.share_out(S, [&](idx, idx first, idx last) {
            gradients_range(u, W, passes, leaky, share, du, dW, z, first, last);
        });
    });
}
}
