// The products of one child, one parent and one block of images, in registers: what routing and votes are made of.
#pragma once

#include "lanes.hpp"

// What is written as a function to be read must not become a call: its arrays are registers.
#define INLINE __attribute__((always_inline))

namespace {

struct Sizes {
    idx B, S, R, D, E;
    // Entries of a pose with zeros behind them, to whole vectors or, for short ones, half of one.
    idx pitch() const { return E <= VL / 2 ? VL / 2 : (E + VL - 1) / VL * VL; }
};

// Ask for the matrix of the parent after the next: it lies far away, where no processor looks by itself.
inline void fetch(const float* w, const Sizes& z) {
    const idx matrix = z.D * z.E;
    for (idx k = 0; k < matrix; k += 16) __builtin_prefetch(w + 2 * z.S * matrix + k);
}

// work(N, first) for N of `count` entries at a time: N fits the registers and is known to the compiler.
template <int MOST, class Work> INLINE inline void in_registers(idx count, Work work) {
    idx k = 0;
    for (; k + MOST <= count; k += MOST) work(std::integral_constant<int, MOST>{}, k);
    if constexpr (MOST > 8)
        if (k + 8 <= count) work(std::integral_constant<int, 8>{}, k), k += 8;
    if (k + 4 <= count) work(std::integral_constant<int, 4>{}, k), k += 4;
    for (; k < count; ++k) work(std::integral_constant<int, 1>{}, k);
}
constexpr int POSE = VL == 16 ? 16 : 8;  // with 512 bits there are 32 registers, with less 16

template <int N> INLINE inline vec dot(const vec (&a)[N], const vec* b) {
    vec even = a[0] * b[0], odd = {};
    for (int j = 1; j < N; ++j) (j % 2 ? odd : even) += a[j] * b[j];
    return even + odd;
}
inline vec dot(const vec* a, const vec* b, idx n) {
    vec even = {}, odd = {};
    idx k = 0;
    for (; k + 2 <= n; k += 2) even += a[k] * b[k], odd += a[k + 1] * b[k + 1];
    if (k < n) even += a[k] * b[k];
    return even + odd;
}

// use(U, e): the votes U[j] = sum_d u[d] w[d, e + j], an array of N.
template <class Use> INLINE inline void votes_of(const vec* u, const float* w, idx D, idx E, Use use) {
    in_registers<POSE>(E, [&](auto N, idx e) INLINE {
        vec U[N] = {};
        const float* from = w + e;
        for (idx d = 0; d < D; ++d, from += E)
            for (int j = 0; j < N; ++j) U[j] += u[d] * from[j];
        use(U, e);
    });
}

// sum[e] += U[e]
INLINE inline void add_votes(const vec* u, const float* w, idx D, idx E, vec* sum) {
    votes_of(u, w, D, E, [&](const auto& U, idx e) INLINE {
        for (const vec& x : U) sum[e++] += x;
    });
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

// du[d] += sum_e G[e] w[d, e]
inline void pull(const vec* G, const float* w, const Sizes& z, vec* du) {
    in_registers<8>(z.D, [&](auto N, idx d) INLINE {
        vec sum[N];
        for (int j = 0; j < N; ++j) sum[j] = du[d + j];
        for (idx e = 0; e < z.E; ++e)
            for (int j = 0; j < N; ++j) sum[j] += G[e] * w[(d + j) * z.E + e];
        for (int j = 0; j < N; ++j) du[d + j] = sum[j];
    });
}

// The gradient of the transform of one pair from u and G, whose lanes are images. The sum is over them, so that G is
// turned: in its rows and in dW, lanes are entries of the pose.
class Turned {
    Sizes z;
    Scratch grown, rows, padded;

    // dW[d, e] += sum_b u[b, d] G[b, e], or = if fresh.
    template <class V> void outer(const vec* u, idx lanes, bool fresh, float* dW) const {
        constexpr idx W = sizeof(V) / 4;
        const idx pitch = z.pitch();
        in_registers<8>(z.D, [&](auto N, idx d) INLINE {
            const float* ul = reinterpret_cast<const float*>(u + d);
            float* to = dW + d * pitch;
            for (idx e = 0; e < pitch; e += W) {
                V sum[N];
                for (int j = 0; j < N; ++j) sum[j] = fresh ? V{} : *reinterpret_cast<const V*>(to + j * pitch + e);
                for (idx l = 0; l < lanes; ++l) {
                    const V g = *reinterpret_cast<const V*>(rows.at + l * pitch + e);
                    for (int j = 0; j < N; ++j) sum[j] += ul[j * VL + l] * g;
                }
                for (int j = 0; j < N; ++j) *reinterpret_cast<V*>(to + j * pitch + e) = sum[j];
            }
        });
    }

public:
    explicit Turned(const Sizes& z)
        : z(z), grown((z.pitch() + VL) * VL), rows((z.pitch() + 1) * VL),
          padded(z.pitch() == z.E ? 0 : z.D * z.pitch()) {}

    // Room for it, with zeros behind the pose.
    vec* G() const { return grown.vecs(); }

    void add(const vec* u, idx lanes, bool fresh, float* dW) const {
        const idx pitch = z.pitch();
        for (idx e = 0; e < pitch; e += VL) {
            vec x[VL];
            for (idx l = 0; l < VL; ++l) x[l] = G()[e + l];
            transpose<VL / 2>(x);
            // Where the pitch is half a vector, each row goes over the zeros of the one before it.
            for (idx l = 0; l < VL; ++l) *reinterpret_cast<loose*>(rows.at + l * pitch + e) = x[l];
        }
        float* to = pitch == z.E ? dW : padded.at;
        if (to != dW && !fresh)
            for (idx d = 0; d < z.D; ++d) std::memcpy(to + d * pitch, dW + d * z.E, z.E * 4);
        if (pitch % VL == 0)
            outer<Lanes<VL>::type>(u, lanes, fresh, to);
        else
            outer<Lanes<VL / 2>::type>(u, lanes, fresh, to);
        if (to != dW)
            for (idx d = 0; d < z.D; ++d) std::memcpy(dW + d * z.E, to + d * pitch, z.E * 4);
    }
};

}  // namespace
