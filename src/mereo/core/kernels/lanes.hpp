// Vectors of VL floats, one image a lane: memory for them, exp, and the way between rows in memory and lanes.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#if defined(__AVX512F__)
#define VL 16
#elif defined(__AVX__)
#define VL 8
#else
#define VL 4
#endif

namespace {

using idx = int64_t;
template <int N> struct Lanes {
    typedef float type __attribute__((vector_size(N * 4), aligned(4), may_alias));
};
typedef float vec __attribute__((vector_size(VL * 4)));
typedef float loose __attribute__((vector_size(VL * 4), aligned(4), may_alias));  // anywhere in memory
typedef int32_t ivec __attribute__((vector_size(VL * 4)));

// Poses beyond this are clamped, so that sums of their products stay finite.
constexpr float LARGEST = 1e16f;

// One thread's memory, aligned to a vector.
struct Scratch {
    std::vector<float> held;
    float* at;
    explicit Scratch(idx n) : held(n + VL) {
        at = held.data();
        while (reinterpret_cast<uintptr_t>(at) % (VL * 4)) ++at;
    }
    vec* vecs() const { return reinterpret_cast<vec*>(at); }
};

inline vec splat(float x) { return vec{} + x; }

// exp(x) for x <= 0 to 1e-7 of its value; below -87 the smallest normal number. Not a number stays so.
inline vec exponential(vec x) {
    const vec low = splat(-87.0f);
    x = x < low ? low : x;
    const vec magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number
    const vec n = (x * 1.44269504f + magic) - magic;
    const vec f = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    vec p = f * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * f + 8.3334519073e-3f;
    p = p * f + 4.1665795894e-2f;
    p = p * f + 1.6666665459e-1f;
    p = p * f + 5.0000001201e-1f;
    p = p * f * f + f + 1.0f;
    const ivec power = (__builtin_convertvector(n, ivec) + 127) << 23;
    vec scale;
    std::memcpy(&scale, &power, sizeof scale);
    return p * scale;
}

// Where lane j of one of two rows comes from when blocks of STEP lanes change places.
template <int STEP, int... J> inline void exchange(vec& a, vec& b, std::integer_sequence<int, J...>) {
#if defined(__clang__)
    const vec low = __builtin_shufflevector(a, b, (J & STEP ? VL + J - STEP : J)...);
    b = __builtin_shufflevector(a, b, (J & STEP ? VL + J : J + STEP)...);
#else
    const vec low = __builtin_shuffle(a, b, ivec{(J & STEP ? VL + J - STEP : J)...});
    b = __builtin_shuffle(a, b, ivec{(J & STEP ? VL + J : J + STEP)...});
#endif
    a = low;
}
template <int STEP> inline void transpose(vec* x) {
    for (int i = 0; i < VL; ++i)
        if (!(i & STEP)) exchange<STEP>(x[i], x[i + STEP], std::make_integer_sequence<int, VL>{});
    if constexpr (STEP > 1) transpose<STEP / 2>(x);
}

// src[l * stride + k] -> dst[k][l], within +-limit; zeros in the lanes beyond `lanes`.
inline void to_lanes(const float* src, idx stride, idx lanes, idx count, vec* dst, float limit) {
    const vec most = splat(limit);
    idx k = 0;
    for (; k + VL <= count; k += VL) {
        vec rows[VL];
        for (idx l = 0; l < lanes; ++l) rows[l] = *reinterpret_cast<const loose*>(src + l * stride + k);
        for (idx l = lanes; l < VL; ++l) rows[l] = vec{};
        transpose<VL / 2>(rows);
        for (idx l = 0; l < VL; ++l) {
            const vec x = rows[l] > most ? most : rows[l];
            dst[k + l] = x < -most ? -most : x;
        }
    }
    for (; k < count; ++k) {
        float x[VL] = {};
        for (idx l = 0; l < lanes; ++l) {
            x[l] = src[l * stride + k] > limit ? limit : src[l * stride + k];
            x[l] = x[l] < -limit ? -limit : x[l];
        }
        std::memcpy(dst + k, x, sizeof x);
    }
}

// The way back: dst[l * stride + k] = src[k][l].
inline void from_lanes(const vec* src, idx stride, idx lanes, idx count, float* dst) {
    idx k = 0;
    for (; k + VL <= count; k += VL) {
        vec rows[VL];
        for (idx l = 0; l < VL; ++l) rows[l] = src[k + l];
        transpose<VL / 2>(rows);
        for (idx l = 0; l < lanes; ++l) *reinterpret_cast<loose*>(dst + l * stride + k) = rows[l];
    }
    for (; k < count; ++k)
        for (idx l = 0; l < lanes; ++l) dst[l * stride + k] = reinterpret_cast<const float*>(src + k)[l];
}

// Like it, but nothing passes where `u`, which lies as dst does, was held within +-LARGEST.
inline void from_held_lanes(const vec* src, const float* u, idx stride, idx lanes, idx count, float* dst) {
    from_lanes(src, stride, lanes, count, dst);
    for (idx l = 0; l < lanes; ++l)
        for (idx k = l * stride, end = k + count; k < end; ++k) dst[k] = std::abs(u[k]) > LARGEST ? 0.0f : dst[k];
}

}  // namespace
