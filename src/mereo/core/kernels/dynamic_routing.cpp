// One pass of routing, forward and backward, with the votes of one child and a few images at a time, in cache.
//
//     U[r, e] = sum_d u[d] W[r, s, d, e]      the votes of child s
//     c = softmax_r(<U[r], V[r]>)             its couplings, V the sum of the earlier parents; c = share where V is null
//     S[r, e] += c[r] U[r, e]                 what the parents become
//
// The lanes of a vector are VL images, so that nothing is summed across lanes and every size of pose, of child and of
// parent runs alike; only the gradient of W sums over images, and there the lanes are entries of a pose. Threads share
// out the children. No votes are stored: the backward pass makes them anew. Plain C interface; sums in float32.
//
// Compiled once for each instruction set (MEREO_ISA names it); the caller asks mereo_isa() which of them may run.
#include <system_error>
#include <thread>

#include "lanes.hpp"

namespace {

struct Sizes { idx B, S, R, D, E, pitch; };  // pitch: the rows of a pose, padded to whole vectors

// U[e] = sum_d u[d] w[d, e] for N entries of the pose; added to U if ADD.
template <int N, bool ADD> inline void votes(const vec* u, const float* w, idx D, idx E, vec* U) {
    vec sum[N];
    for (int j = 0; j < N; ++j) sum[j] = ADD ? U[j] : vec{};
    for (idx d = 0; d < D; ++d, w += E)
        for (int j = 0; j < N; ++j) sum[j] += u[d] * w[j];
    for (int j = 0; j < N; ++j) U[j] = sum[j];
}
template <bool ADD = false> inline void votes_of(const vec* u, const float* w, idx D, idx E, vec* U) {
    idx e = 0;
    for (; e + 16 <= E; e += 16) votes<16, ADD>(u, w + e, D, E, U + e);
    if (e + 8 <= E) votes<8, ADD>(u, w + e, D, E, U + e), e += 8;
    if (e + 4 <= E) votes<4, ADD>(u, w + e, D, E, U + e), e += 4;
    for (; e < E; ++e) votes<1, ADD>(u, w + e, D, E, U + e);
}

inline vec dot(const vec* a, const vec* b, idx n) {
    vec even = {}, odd = {};
    idx k = 0;
    for (; k + 2 <= n; k += 2) even += a[k] * b[k], odd += a[k + 1] * b[k + 1];
    if (k < n) even += a[k] * b[k];
    return even + odd;
}

// Scores to couplings in place, over the parents.
inline void couple(vec* c, idx R, bool leaky) {
    vec top = leaky ? vec{} : c[0], total = {};
    for (idx r = 0; r < R; ++r) top = c[r] > top ? c[r] : top;
    if (leaky) total = exponential(-top);
    for (idx r = 0; r < R; ++r) total += c[r] = exponential(c[r] - top);
    const vec scale = 1.0f / total;
    for (idx r = 0; r < R; ++r) c[r] *= scale;
}

// du[d] += sum_e G[e] w[d, e] for N entries of a child.
template <int N> inline void pull(const vec* G, const float* w, idx E, vec* du) {
    vec sum[N];
    for (int j = 0; j < N; ++j) sum[j] = du[j];
    for (idx e = 0; e < E; ++e)
        for (int j = 0; j < N; ++j) sum[j] += G[e] * w[j * E + e];
    for (int j = 0; j < N; ++j) du[j] = sum[j];
}

// dW[d, e] += sum_b u[b, d] (c[b] g[b, e] + gb[b] v[b, e]) for N entries of a child; lanes are entries of the pose.
template <int N, bool UNIFORM, class V>
inline void outer(const vec* u, const vec* c, const vec* gb, const float* g, const float* v, idx lanes, idx step,
                  idx pitch, float* dW) {
    constexpr idx W = sizeof(V) / 4;
    const float *ul = reinterpret_cast<const float*>(u), *cl = reinterpret_cast<const float*>(c);
    const float* gl = reinterpret_cast<const float*>(gb);
    for (idx e = 0; e < pitch; e += W) {
        V sum[N];
        for (int j = 0; j < N; ++j) sum[j] = *reinterpret_cast<const V*>(dW + j * pitch + e);
        for (idx l = 0; l < lanes; ++l) {
            V G = cl[l] * *reinterpret_cast<const V*>(g + l * step + e);
            if (!UNIFORM) G += gl[l] * *reinterpret_cast<const V*>(v + l * step + e);
            for (int j = 0; j < N; ++j) sum[j] += ul[j * VL + l] * G;
        }
        for (int j = 0; j < N; ++j) *reinterpret_cast<V*>(dW + j * pitch + e) = sum[j];
    }
}

inline void pull_all(const vec* G, const float* w, const Sizes& z, vec* du) {
    idx d = 0;
    for (; d + 8 <= z.D; d += 8) pull<8>(G, w + d * z.E, z.E, du + d);
    if (d + 4 <= z.D) pull<4>(G, w + d * z.E, z.E, du + d), d += 4;
    for (; d < z.D; ++d) pull<1>(G, w + d * z.E, z.E, du + d);
}
template <bool UNIFORM, class V>
inline void outer_all(const vec* u, const vec* c, const vec* gb, const float* g, const float* v, idx lanes,
                      const Sizes& z, float* dW) {
    const idx step = z.R * z.pitch;
    idx d = 0;
    for (; d + 8 <= z.D; d += 8) outer<8, UNIFORM, V>(u + d, c, gb, g, v, lanes, step, z.pitch, dW + d * z.pitch);
    if (d + 4 <= z.D) outer<4, UNIFORM, V>(u + d, c, gb, g, v, lanes, step, z.pitch, dW + d * z.pitch), d += 4;
    for (; d < z.D; ++d) outer<1, UNIFORM, V>(u + d, c, gb, g, v, lanes, step, z.pitch, dW + d * z.pitch);
}

// (B, R, E) -> [block of images][R E][lane]
void to_blocks(const float* x, const Sizes& z, vec* out) {
    const idx RE = z.R * z.E;
    for (idx b = 0; b < z.B; b += VL) to_lanes(x + b * RE, RE, std::min<idx>(VL, z.B - b), RE, out + b / VL * RE);
}

// (B, R, E) -> rows of `pitch` entries, zeros behind the pose
void to_rows(const float* x, const Sizes& z, float* out) {
    for (idx k = 0; k < z.B * z.R; ++k) {
        std::memcpy(out + k * z.pitch, x + k * z.E, z.E * 4);
        std::fill(out + k * z.pitch + z.E, out + (k + 1) * z.pitch, 0.0f);
    }
}

// Children go by in tiles: their transforms should stay in the second-level cache while the images go by. Within a tile
// they go by in groups, of one while the votes and parents of an image block fit the first-level cache, else of several,
// so that each parent is fetched once for all of them.
idx group_of(const Sizes& z) { return z.R * z.E * VL * 4 <= (16 << 10) ? 1 : 4; }

idx tile_of(const Sizes& z) {
    return std::clamp<idx>((192 << 10) / (4 * z.R * z.D * z.E), group_of(z), 32);
}

idx blocks_of(const Sizes& z) { return (z.B + VL - 1) / VL; }

// Children first to last, everything that one thread does in a forward pass.
void forward_range(const float* u, const float* W, const vec* V, bool leaky, float share, vec* sum, const Sizes& z,
                   idx first, idx last) {
    const idx RE = z.R * z.E, tile = tile_of(z), group = group_of(z), matrix = z.D * z.E;
    Scratch children(tile * z.D * VL), couplings(group * z.R * VL), made(V ? group * RE * VL : 0);
    vec *ut = children.vecs(), *c = couplings.vecs(), *U = made.vecs();
    for (idx s0 = first; s0 < last; s0 += tile) {
        const idx n = std::min(tile, last - s0);
        for (idx b = 0; b < z.B; b += VL) {
            const idx at = b / VL * RE;
            to_lanes(u + (b * z.S + s0) * z.D, z.S * z.D, std::min<idx>(VL, z.B - b), n * z.D, ut);
            if (!V) {
                for (idx k = 0; k < n * z.D; ++k) ut[k] *= share;
                for (idx r = 0; r < z.R; ++r)
                    for (idx s = 0; s < n; ++s)
                        votes_of<true>(ut + s * z.D, W + (r * z.S + s0 + s) * matrix, z.D, z.E, sum + at + r * z.E);
                continue;
            }
            for (idx g0 = 0; g0 < n; g0 += group) {
                const idx g = std::min(group, n - g0);
                for (idx r = 0; r < z.R; ++r)
                    for (idx s = 0; s < g; ++s) {
                        vec* mine = U + s * RE + r * z.E;
                        votes_of(ut + (g0 + s) * z.D, W + (r * z.S + s0 + g0 + s) * matrix, z.D, z.E, mine);
                        c[s * z.R + r] = dot(mine, V + at + r * z.E, z.E);
                    }
                for (idx s = 0; s < g; ++s) couple(c + s * z.R, z.R, leaky);
                for (idx r = 0; r < z.R; ++r)
                    for (idx k = r * z.E; k < (r + 1) * z.E; ++k) {
                        vec total = sum[at + k];
                        for (idx s = 0; s < g; ++s) total += c[s * z.R + r] * U[s * RE + k];
                        sum[at + k] = total;
                    }
            }
        }
    }
}

// Everything that one thread does in a backward pass. UNIFORM: the couplings are all `share`, and V does not exist.
template <bool UNIFORM>
void backward_range(const float* u, const float* W, const vec* V, const vec* G, const float* vrow, const float* grow,
                    bool leaky, float share, float* du, float* dW, vec* dV, const Sizes& z, idx first, idx last) {
    typedef typename Lanes<VL>::type wide;
    typedef typename Lanes<VL / 2>::type half;
    const idx RE = z.R * z.E, tile = tile_of(z), group = group_of(z), step = z.R * z.pitch, matrix = z.D * z.E;
    const idx padded = z.pitch == z.E ? 0 : z.D * z.pitch;  // rows that are whole vectors are added to where they lie
    Scratch children(tile * z.D * VL), pulled(tile * z.D * VL), couplings(group * z.R * VL), changes(group * z.R * VL);
    Scratch made(UNIFORM ? 0 : group * RE * VL), grown(z.E * VL), grads(tile * z.R * padded);
    vec *ut = children.vecs(), *dut = pulled.vecs(), *c = couplings.vecs(), *gb = changes.vecs(), *U = made.vecs();
    vec* gU = grown.vecs();
    if (UNIFORM) std::fill(c, c + group * z.R, splat(share));
    for (idx s0 = first; s0 < last; s0 += tile) {
        const idx n = std::min(tile, last - s0);
        std::fill(grads.at, grads.at + n * z.R * padded, 0.0f);
        for (idx b = 0; b < z.B; b += VL) {
            const idx lanes = std::min<idx>(VL, z.B - b), at = b / VL * RE, where = (b * z.S + s0) * z.D;
            to_lanes(u + where, z.S * z.D, lanes, n * z.D, ut);
            std::fill(dut, dut + n * z.D, vec{});
            for (idx g0 = 0; g0 < n; g0 += group) {
                const idx g = std::min(group, n - g0);
                if (!UNIFORM) {
                    for (idx r = 0; r < z.R; ++r)
                        for (idx s = 0; s < g; ++s) {
                            vec* mine = U + s * RE + r * z.E;
                            votes_of(ut + (g0 + s) * z.D, W + (r * z.S + s0 + g0 + s) * matrix, z.D, z.E, mine);
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
                                dV[k] += *br * U[s * RE + r * z.E + e];
                            }
                        }
                        pull_all(gU, W + pair * matrix, z, dut + (g0 + s) * z.D);
                        float* dw = padded ? grads.at + ((g0 + s) * z.R + r) * padded : dW + pair * matrix;
                        const float *grows = grow + b * step + r * z.pitch, *vrows = vrow + b * step + r * z.pitch;
                        if (z.pitch % VL == 0)
                            outer_all<UNIFORM, wide>(us, cr, br, grows, vrows, lanes, z, dw);
                        else
                            outer_all<UNIFORM, half>(us, cr, br, grows, vrows, lanes, z, dw);
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

// Run work(thread, first child, last child) for every thread's share of the children.
template <class Work> void share_out(idx S, idx threads, Work work) {
    std::vector<std::thread> team;
    for (idx t = 1; t < threads; ++t) {
        const idx first = S * t / threads, last = S * (t + 1) / threads;
        try {
            team.emplace_back(work, t, first, last);
        } catch (const std::system_error&) {  // no more threads are to be had
            work(t, first, last);
        }
    }
    work(0, 0, S / threads);
    for (auto& each : team) each.join();
}

// Add up what each thread summed, [threads][block of images][R E][lane] -> (B, R, E).
void gather(vec* sums, idx threads, const Sizes& z, float* out) {
    const idx RE = z.R * z.E, n = blocks_of(z) * RE;
    for (idx t = 1; t < threads; ++t)
        for (idx k = 0; k < n; ++k) sums[k] += sums[t * n + k];
    for (idx b = 0; b < z.B; b += VL)
        from_lanes(sums + b / VL * RE, RE, std::min<idx>(VL, z.B - b), RE, out + b * RE);
}

// Threads cost some microseconds to start, so small work stays on one.
idx threads_for(const Sizes& z, idx asked) {
    const double work = double(z.B) * z.S * z.R * z.D * z.E;
    return std::clamp<idx>(std::min<idx>(asked, idx(work / 2e6)), 1, z.S);
}

}  // namespace

#define NAME_(a, b) a##_##b
#define NAME(a, b) NAME_(a, b)

extern "C" {

// u (B, S, D), W (R, S, D, E), V (B, R, E) or null -> out (B, R, E)
void NAME(mereo_pass_forward, MEREO_ISA)(const float* u, const float* W, const float* V, float* out, idx B, idx S,
                                         idx R, idx D, idx E, int leaky, float share, idx asked) {
    const Sizes z{B, S, R, D, E, 0};
    const idx threads = threads_for(z, asked), n = blocks_of(z) * R * E;
    Scratch agreed(V ? n * VL : 0), sums(threads * n * VL);
    if (V) to_blocks(V, z, agreed.vecs());
    share_out(S, threads, [&](idx t, idx first, idx last) {
        forward_range(u, W, V ? agreed.vecs() : nullptr, leaky, share, sums.vecs() + t * n, z, first, last);
    });
    gather(sums.vecs(), threads, z, out);
}

// G (B, R, E) is the gradient of out; du and dW are added to, dV (null where V is) is written.
void NAME(mereo_pass_backward, MEREO_ISA)(const float* u, const float* W, const float* V, const float* G, float* du,
                                          float* dW, float* dV, idx B, idx S, idx R, idx D, idx E, int leaky,
                                          float share, idx asked) {
    const idx lanes = E <= VL / 2 ? VL / 2 : VL;
    const Sizes z{B, S, R, D, E, (E + lanes - 1) / lanes * lanes};
    const idx threads = threads_for(z, asked), n = blocks_of(z) * R * E;
    Scratch agreed(V ? n * VL : 0), given(n * VL), sums(V ? threads * n * VL : 0);
    Scratch vrow(V ? B * R * z.pitch : 0), grow(B * R * z.pitch);
    to_blocks(G, z, given.vecs());
    to_rows(G, z, grow.at);
    if (V) to_blocks(V, z, agreed.vecs()), to_rows(V, z, vrow.at);
    share_out(S, threads, [&](idx t, idx first, idx last) {
        if (V)
            backward_range<false>(u, W, agreed.vecs(), given.vecs(), vrow.at, grow.at, leaky, share, du, dW,
                                  sums.vecs() + t * n, z, first, last);
        else
            backward_range<true>(u, W, nullptr, given.vecs(), nullptr, grow.at, leaky, share, du, dW, nullptr, z,
                                 first, last);
    });
    if (V) gather(sums.vecs(), threads, z, dV);
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
