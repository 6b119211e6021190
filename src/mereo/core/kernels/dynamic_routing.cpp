// One pass of routing, forward and backward, with the votes of one child and a few images at a time, in cache.
//
//     U[r, e] = sum_d u[d] W[r, s, d, e]      the votes of child s
//     c = softmax_r(<U[r], V[r]>)             its couplings, V the sum of earlier parents; all `share` where V is null
//     S[r, e] += c[r] U[r, e]                 what the parents become
//
// The lanes of a vector are VL images, so that nothing is summed across lanes and every size of pose, of child and of
// parent runs alike; only the gradient of W sums over images, and there the lanes are entries of a pose. Threads share
// out the children. No votes are stored: the backward pass makes them anew. Plain C interface; sums in float32.
//
// Compiled once for each instruction set (MEREO_ISA names it); the caller asks mereo_isa() which of them may run.
#include <atomic>
#include <system_error>
#include <thread>

#include "products.hpp"

namespace {

// (B, R, E) -> [block of images][R E][lane]
void to_blocks(const float* x, const Sizes& z, vec* out) {
    const idx RE = z.R * z.E;
    for (idx b = 0; b < z.B; b += VL)
        to_lanes(x + b * RE, RE, std::min<idx>(VL, z.B - b), RE, out + b / VL * RE, INFINITY);
}

// (B, R, E) -> [block of images][R][image of the block][pitch], zeros behind the pose
void to_rows(const float* x, const Sizes& z, float* out) {
    for (idx b = 0; b < z.B; ++b)
        for (idx r = 0; r < z.R; ++r) {
            float* row = out + ((b / VL * z.R + r) * VL + b % VL) * z.pitch;
            std::memcpy(row, x + (b * z.R + r) * z.E, z.E * 4);
            std::fill(row + z.E, row + z.pitch, 0.0f);
        }
}

// Children go by in tiles: their transforms should stay in the second-level cache while the images go by. In a tile
// they go by in groups: of one while the votes and parents of a block of images fit the first-level cache, else of
// several, so that each parent is fetched once for all of them.
idx group_of(const Sizes& z) { return z.R * z.E * VL * 4 <= (16 << 10) ? 1 : 4; }

idx tile_of(const Sizes& z) {
    return std::clamp<idx>((192 << 10) / (4 * z.R * z.D * z.E), group_of(z), 32);
}

idx blocks_of(const Sizes& z) { return (z.B + VL - 1) / VL; }

// The forward pass over children first to last.
void forward_range(const float* u, const float* W, const vec* V, bool leaky, float share, vec* sum, const Sizes& z,
                   idx first, idx last) {
    const idx RE = z.R * z.E, tile = tile_of(z), group = group_of(z), matrix = z.D * z.E;
    Scratch children(tile * z.D * VL), couplings(group * z.R * VL), made(V ? group * RE * VL : 0);
    vec *ut = children.vecs(), *c = couplings.vecs(), *U = made.vecs();
    for (idx s0 = first; s0 < last; s0 += tile) {
        const idx n = std::min(tile, last - s0);
        for (idx b = 0; b < z.B; b += VL) {
            const idx at = b / VL * RE;
            to_lanes(u + (b * z.S + s0) * z.D, z.S * z.D, std::min<idx>(VL, z.B - b), n * z.D, ut, LARGEST);
            if (!V) {
                for (idx k = 0; k < n * z.D; ++k) ut[k] *= share;
                for (idx r = 0; r < z.R; ++r)
                    for (idx s = 0; s < n; ++s) {
                        const float* w = W + (r * z.S + s0 + s) * matrix;
                        fetch(w + z.S * matrix, matrix);
                        votes_of<true>(ut + s * z.D, w, z.D, z.E, sum + at + r * z.E);
                    }
                continue;
            }
            for (idx g0 = 0; g0 < n; g0 += group) {
                const idx g = std::min(group, n - g0);
                for (idx r = 0; r < z.R; ++r)
                    for (idx s = 0; s < g; ++s) {
                        vec* mine = U + (r * group + s) * z.E;
                        const float* w = W + (r * z.S + s0 + g0 + s) * matrix;
                        fetch(w + z.S * matrix, matrix);
                        votes_of(ut + (g0 + s) * z.D, w, z.D, z.E, mine);
                        c[s * z.R + r] = dot(mine, V + at + r * z.E, z.E);
                    }
                for (idx s = 0; s < g; ++s) couple(c + s * z.R, z.R, leaky);
                for (idx r = 0; r < z.R; ++r)
                    for (idx e = 0; e < z.E; ++e) {
                        vec total = sum[at + r * z.E + e];
                        for (idx s = 0; s < g; ++s) total += c[s * z.R + r] * U[(r * group + s) * z.E + e];
                        sum[at + r * z.E + e] = total;
                    }
            }
        }
    }
}

// The backward pass over them. UNIFORM: the couplings are all `share`, and V does not exist.
template <bool UNIFORM>
void backward_range(const float* u, const float* W, const vec* V, const vec* G, const float* vrow, const float* grow,
                    bool leaky, float share, bool fresh, float* du, float* dW, vec* dV, const Sizes& z, idx first,
                    idx last) {
    typedef typename Lanes<VL>::type wide;
    typedef typename Lanes<VL / 2>::type half;
    const idx RE = z.R * z.E, tile = tile_of(z), group = group_of(z), matrix = z.D * z.E;
    const idx padded = z.pitch == z.E ? 0 : z.D * z.pitch;  // rows that are whole vectors are added to where they lie
    Scratch children(tile * z.D * VL), pulled(tile * z.D * VL), couplings(group * z.R * VL), changes(group * z.R * VL);
    Scratch made(UNIFORM ? 0 : group * RE * VL), grown(z.E * VL), grads(tile * z.R * padded);
    vec *ut = children.vecs(), *dut = pulled.vecs(), *c = couplings.vecs(), *gb = changes.vecs(), *U = made.vecs();
    vec* gU = grown.vecs();
    if (UNIFORM) std::fill(c, c + group * z.R, splat(share));
    for (idx s0 = first; s0 < last; s0 += tile) {
        const idx n = std::min(tile, last - s0);
        std::fill(grads.at, grads.at + n * z.R * padded, 0.0f);
        if (fresh) {
            for (idx b = 0; b < z.B; ++b) std::memset(du + (b * z.S + s0) * z.D, 0, n * z.D * 4);
            for (idx r = 0; r < z.R; ++r) std::memset(dW + (r * z.S + s0) * matrix, 0, n * matrix * 4);
        }
        for (idx b = 0; b < z.B; b += VL) {
            const idx lanes = std::min<idx>(VL, z.B - b), at = b / VL * RE, where = (b * z.S + s0) * z.D;
            to_lanes(u + where, z.S * z.D, lanes, n * z.D, ut, LARGEST);
            std::fill(dut, dut + n * z.D, vec{});
            for (idx g0 = 0; g0 < n; g0 += group) {
                const idx g = std::min(group, n - g0);
                if (!UNIFORM) {
                    for (idx r = 0; r < z.R; ++r)
                        for (idx s = 0; s < g; ++s) {
                            vec* mine = U + (r * group + s) * z.E;
                            const float* w = W + (r * z.S + s0 + g0 + s) * matrix;
                            fetch(w + z.S * matrix, matrix);
                            votes_of(ut + (g0 + s) * z.D, w, z.D, z.E, mine);
                            c[s * z.R + r] = dot(mine, V + at + r * z.E, z.E);
                            gb[s * z.R + r] = dot(mine, G + at + r * z.E, z.E);
                        }
                    for (idx s = 0; s < g; ++s) {
                        vec *cs = c + s * z.R, *gbs = gb + s * z.R;
                        couple(cs, z.R, leaky);
                        const vec mean = dot(cs, gbs, z.R);
                        for (idx r = 0; r < z.R; ++r) gbs[r] = cs[r] * (gbs[r] - mean);
                    }
                }
                for (idx r = 0; r < z.R; ++r)
                    for (idx s = 0; s < g; ++s) {
                        const vec *cr = c + s * z.R + r, *br = gb + s * z.R + r, *us = ut + (g0 + s) * z.D;
                        const idx pair = r * z.S + s0 + g0 + s;
                        for (idx e = 0, k = at + r * z.E; e < z.E; ++e, ++k) {
                            gU[e] = *cr * G[k];
                            if (!UNIFORM) {
                                gU[e] += *br * V[k];
                                dV[k] += *br * U[(r * group + s) * z.E + e];
                            }
                        }
                        fetch(W + (pair + z.S) * matrix, matrix);
                        if (!padded) fetch(dW + (pair + z.S) * matrix, matrix);
                        pull_all(gU, W + pair * matrix, z, dut + (g0 + s) * z.D);
                        float* dw = padded ? grads.at + ((g0 + s) * z.R + r) * padded : dW + pair * matrix;
                        const idx rows = (b * z.R + r * VL) * z.pitch;
                        if (z.pitch % VL == 0)
                            outer_all<UNIFORM, wide>(us, cr, br, grow + rows, vrow + rows, lanes, z, dw);
                        else
                            outer_all<UNIFORM, half>(us, cr, br, grow + rows, vrow + rows, lanes, z, dw);
                    }
            }
            add_from_lanes(dut, u + where, z.S * z.D, lanes, n * z.D, du + where);
        }
        if (padded)
            for (idx k = 0; k < n * z.R * z.D; ++k) {
                const idx s = k / (z.R * z.D), r = k / z.D % z.R, d = k % z.D;
                float* to = dW + (r * z.S + s0 + s) * matrix + d * z.E;
                for (idx e = 0; e < z.E; ++e) to[e] += grads.at[k * z.pitch + e];
            }
    }
}

// The children are cut into parts, each summed for itself; threads take the next part that is free, so that a thread
// which is held up holds nobody up. As long as there are more parts than threads, results do not depend on how many.
struct Team {
    idx parts, threads;
    Team(const Sizes& z, idx asked) {
        const double work = double(z.B) * z.S * z.R * z.D * z.E;  // starting a thread takes as long as some 1e6 of it
        threads = std::clamp<idx>(std::min<idx>(asked, idx(work / 2e6)), 1, z.S);
        parts = work < 4e6 ? 1 : std::clamp<idx>((8 << 20) / (4 * z.B * z.R * z.E), 1, 8);
        parts = std::min(std::max(parts, threads), z.S);
    }
    // work(part, first child, last child)
    template <class Work> void share_out(idx S, Work work) const {
        std::atomic<idx> next{0};
        auto run = [&, count = parts] {
            for (idx part; (part = next++) < count;) work(part, S * part / count, S * (part + 1) / count);
        };
        std::vector<std::thread> others;
        try {
            for (idx t = 1; t < threads; ++t) others.emplace_back(run);
        } catch (const std::system_error&) {  // no more threads are to be had: those there are do it all
        }
        run();
        for (auto& each : others) each.join();
    }
};

// Add up what each part summed, [part][block of images][R E][lane] -> (B, R, E).
void gather(vec* sums, idx parts, const Sizes& z, float* out) {
    const idx RE = z.R * z.E, n = blocks_of(z) * RE;
    for (idx p = 1; p < parts; ++p)
        for (idx k = 0; k < n; ++k) sums[k] += sums[p * n + k];
    for (idx b = 0; b < z.B; b += VL)
        from_lanes(sums + b / VL * RE, RE, std::min<idx>(VL, z.B - b), RE, out + b * RE);
}

}  // namespace

#define NAME_(a, b) a##_##b
#define NAME(a, b) NAME_(a, b)

extern "C" {

// u (B, S, D), W (R, S, D, E), V (B, R, E) or null -> out (B, R, E)
void NAME(mereo_pass_forward, MEREO_ISA)(const float* u, const float* W, const float* V, float* out, idx B, idx S,
                                         idx R, idx D, idx E, int leaky, float share, idx asked) {
    const Sizes z{B, S, R, D, E, 0};
    const Team team(z, asked);
    const idx n = blocks_of(z) * R * E;
    Scratch agreed(V ? n * VL : 0), sums(team.parts * n * VL);
    if (V) to_blocks(V, z, agreed.vecs());
    team.share_out(S, [&](idx part, idx first, idx last) {
        forward_range(u, W, V ? agreed.vecs() : nullptr, leaky, share, sums.vecs() + part * n, z, first, last);
    });
    gather(sums.vecs(), team.parts, z, out);
}

// G (B, R, E) is the gradient of out; du and dW are added to, or written if fresh; dV (null where V is) is written.
void NAME(mereo_pass_backward, MEREO_ISA)(const float* u, const float* W, const float* V, const float* G, float* du,
                                          float* dW, float* dV, idx B, idx S, idx R, idx D, idx E, int leaky,
                                          float share, idx asked, int fresh) {
    const idx lanes = E <= VL / 2 ? VL / 2 : VL;
    const Sizes z{B, S, R, D, E, (E + lanes - 1) / lanes * lanes};
    const Team team(z, asked);
    const idx n = blocks_of(z) * R * E;
    Scratch agreed(V ? n * VL : 0), given(n * VL), sums(V ? team.parts * n * VL : 0);
    Scratch vrow(V ? n * VL / E * z.pitch : 0), grow(n * VL / E * z.pitch);
    to_blocks(G, z, given.vecs());
    to_rows(G, z, grow.at);
    if (V) to_blocks(V, z, agreed.vecs()), to_rows(V, z, vrow.at);
    team.share_out(S, [&](idx part, idx first, idx last) {
        if (V)
            backward_range<false>(u, W, agreed.vecs(), given.vecs(), vrow.at, grow.at, leaky, share, fresh, du,
                                  dW, sums.vecs() + part * n, z, first, last);
        else
            backward_range<true>(u, W, nullptr, given.vecs(), nullptr, grow.at, leaky, share, fresh, du, dW,
                                 nullptr, z, first, last);
    });
    if (V) gather(sums.vecs(), team.parts, z, dV);
}

#ifdef MEREO_CHOOSES
// The best instruction set compiled in that this processor has; 0 is the one every processor of its kind has.
int mereo_isa() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512cd"))
        return 2;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2")) return 1;
#endif
    return 0;
}
#endif
}
