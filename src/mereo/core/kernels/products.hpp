// The products of one child, one parent and one block of images, in registers: what the passes of routing are made of.
#pragma once

#include "lanes.hpp"

namespace {

struct Sizes { idx B, S, R, D, E, pitch; };  // pitch: the rows of a pose, padded to whole vectors

// Ask for the matrix of the next parent: it lies far away, where no processor looks by itself.
inline void fetch(const float* p, idx count) {
    for (idx k = 0; k < count; k += 16) __builtin_prefetch(p + k);
}

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
inline void outer(const vec* u, const vec* c, const vec* gb, const float* g, const float* v, idx lanes,
                  idx pitch, float* dW) {
    constexpr idx W = sizeof(V) / 4;
    const float *ul = reinterpret_cast<const float*>(u), *cl = reinterpret_cast<const float*>(c);
    const float* gl = reinterpret_cast<const float*>(gb);
    for (idx e = 0; e < pitch; e += W) {
        V sum[N];
        for (int j = 0; j < N; ++j) sum[j] = *reinterpret_cast<const V*>(dW + j * pitch + e);
        for (idx l = 0; l < lanes; ++l) {
            V G = cl[l] * *reinterpret_cast<const V*>(g + l * pitch + e);
            if (!UNIFORM) G += gl[l] * *reinterpret_cast<const V*>(v + l * pitch + e);
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
    idx d = 0;
    for (; d + 8 <= z.D; d += 8) outer<8, UNIFORM, V>(u + d, c, gb, g, v, lanes, z.pitch, dW + d * z.pitch);
    if (d + 4 <= z.D) outer<4, UNIFORM, V>(u + d, c, gb, g, v, lanes, z.pitch, dW + d * z.pitch), d += 4;
    for (; d < z.D; ++d) outer<1, UNIFORM, V>(u + d, c, gb, g, v, lanes, z.pitch, dW + d * z.pitch);
}

}  // namespace
