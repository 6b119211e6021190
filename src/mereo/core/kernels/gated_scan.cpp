// A scan of states that decay by rates of their own, times a step of the token and channel; and its gradients.
//
//     S_t[h, n] = exp(x_t[h] A[h, n]) S_(t-1)[h, n] + w_t[h] k_t[n],     out_t[h] = sum_n q_t[n] S_t[h, n]
//
// The lanes of a vector are VL channels, so that no sum but those over channels crosses lanes. What is as large as the
// states of all tokens is never written: the gradients make the states of SEGMENT tokens again, from those before each
// segment. Threads share out images and vectors of channels; results do not depend on how. Plain C interface; float32.
#include "teams.hpp"

namespace {

constexpr idx SEGMENT = 32;  // the states and decays of a segment should stay in the second-level cache

struct Gated {
    const float *x, *w;   // (B, N, H)
    const float* A;       // (H, D)
    const float *k, *q;   // (B, N, D)
    const float* first;   // (B, H, D), or null for zeros
    idx B, N, H, D;
    idx row(idx b, idx t) const { return b * N + t; }
};

inline vec load(const float* from, idx lanes) {
    if (lanes == VL) return *reinterpret_cast<const loose*>(from);
    vec x{};
    std::memcpy(&x, from, lanes * 4);
    return x;
}
inline void store(float* to, vec x, idx lanes) { std::memcpy(to, &x, lanes * 4); }

inline vec factor(vec x) {
    const vec most = splat(88.0f);  // the largest whose exponential is finite
    return exponential(x > most ? most : x);
}

// One vector of channels of one image: its rates, and a state.
struct Channels {
    const Gated& z;
    idx b, h, lanes;
    Scratch rates, states;
    vec *A, *S;
    Channels(const Gated& z, idx b, idx h)
        : z(z), b(b), h(h), lanes(std::min<idx>(VL, z.H - h)), rates(z.D * VL), states(z.D * VL), A(rates.vecs()),
          S(states.vecs()) {
        to_lanes(z.A + h * z.D, z.D, lanes, z.D, A, INFINITY);
        start(z.first, S);
    }
    void start(const float* from, vec* to) const {
        if (from)
            to_lanes(from + (b * z.H + h) * z.D, z.D, lanes, z.D, to, INFINITY);
        else
            std::fill(to, to + z.D, vec{});
    }
    void finish(const vec* from, float* to) const { from_lanes(from, z.D, lanes, z.D, to + (b * z.H + h) * z.D); }
    vec of(const float* values, idx t) const { return load(values + z.row(b, t) * z.H + h, lanes); }
};

void scan_channels(const Gated& z, idx b, idx h, float* out, float* last) {
    Channels c(z, b, h);
    for (idx t = 0; t < z.N; ++t) {
        const vec x = c.of(z.x, t), w = c.of(z.w, t);
        const float *k = z.k + z.row(b, t) * z.D, *q = z.q + z.row(b, t) * z.D;
        vec sum{};
        for (idx n = 0; n < z.D; ++n) {
            c.S[n] = factor(x * c.A[n]) * c.S[n] + w * k[n];
            sum += q[n] * c.S[n];
        }
        store(out + z.row(b, t) * z.H + h, sum, c.lanes);
    }
    c.finish(c.S, last);
}

// to[n] += the sum of the lanes of rows[n].
inline void add_lanes(vec* rows, idx count, float* to) {
    if (count == VL) {
        transpose<VL / 2>(rows);
        vec sum = rows[0];
        for (int i = 1; i < VL; ++i) sum += rows[i];
        *reinterpret_cast<loose*>(to) += sum;
        return;
    }
    for (idx n = 0; n < count; ++n) {
        float sum = 0;
        for (int l = 0; l < VL; ++l) sum += rows[n][l];
        to[n] += sum;
    }
}

struct Gradients {
    const float *out, *last;             // (B, N, H); (B, H, D) or null
    float *x, *w, *A, *first;            // (B, N, H) twice, (B, H, D) twice
    float *k, *q;                        // (N, D) of the channels that one unit has, or null where nobody asks
};

void gradients_of_channels(const Gated& z, const Gradients& g, idx b, idx h) {
    Channels c(z, b, h);
    const idx D = z.D, segments = (z.N + SEGMENT - 1) / SEGMENT;
    Scratch starts(segments * D * VL), befores(SEGMENT * D * VL), factors(SEGMENT * D * VL);
    Scratch later(D * VL), of_rates(D * VL);
    vec *before = befores.vecs(), *lam = factors.vecs(), *G = later.vecs(), *dA = of_rates.vecs();
    auto forward = [&](idx segment, bool keep) {
        for (idx t = segment * SEGMENT, i = 0; t < std::min(z.N, (segment + 1) * SEGMENT); ++t, i += D) {
            const vec x = c.of(z.x, t), w = c.of(z.w, t);
            const float* k = z.k + z.row(b, t) * D;
            for (idx n = 0; n < D; ++n) {
                const vec f = factor(x * c.A[n]);
                if (keep) before[i + n] = c.S[n], lam[i + n] = f;
                c.S[n] = f * c.S[n] + w * k[n];
            }
        }
    };
    for (idx s = 0; s < segments; ++s) {
        std::copy(c.S, c.S + D, starts.vecs() + s * D);
        if (s + 1 < segments) forward(s, false);
    }
    c.start(g.last, G);
    std::fill(dA, dA + D, vec{});
    for (idx s = segments; s-- > 0;) {
        std::copy(starts.vecs() + s * D, starts.vecs() + (s + 1) * D, c.S);
        forward(s, true);
        for (idx t = std::min(z.N, (s + 1) * SEGMENT); t-- > s * SEGMENT;) {
            const vec x = c.of(z.x, t), w = c.of(z.w, t), y = c.of(g.out, t);
            const float *k = z.k + z.row(b, t) * D, *q = z.q + z.row(b, t) * D;
            vec dx{}, dw{};
            for (idx n0 = 0; n0 < D; n0 += VL) {
                const idx count = std::min<idx>(VL, D - n0), i = (t - s * SEGMENT) * D + n0;
                vec of_k[VL], of_q[VL];
                for (idx j = 0; j < count; ++j) {
                    const idx n = n0 + j;
                    const vec own = G[n] + y * q[n];
                    of_q[j] = y * (lam[i + j] * before[i + j] + w * k[n]);
                    of_k[j] = own * w;
                    dw += own * k[n];
                    G[n] = own * lam[i + j];
                    const vec exponent = G[n] * before[i + j];
                    dx += exponent * c.A[n];
                    dA[n] += exponent * x;
                }
                if (g.k) {
                    add_lanes(of_k, count, g.k + t * D + n0);
                    add_lanes(of_q, count, g.q + t * D + n0);
                }
            }
            store(g.x + z.row(b, t) * z.H + h, dx, c.lanes);
            store(g.w + z.row(b, t) * z.H + h, dw, c.lanes);
        }
    }
    c.finish(dA, g.A);
    c.finish(G, g.first);
}

}  // namespace

// x, w (B, N, H), A (H, D), k, q (B, N, D), first (B, H, D) or null -> out (B, N, H), last (B, H, D). Returns 0, or 1
// where memory ran out.
extern "C" int ENTRY(mereo_gated_scan)(const float* x, const float* w, const float* A, const float* k, const float* q,
                                       const float* first, float* out, float* last, idx B, idx N, idx H, idx D,
                                       idx asked) {
    return guarded([&] {
        const Gated z{x, w, A, k, q, first, B, N, H, D};
        const idx vectors = (H + VL - 1) / VL, units = B * vectors;
        const Team team(units, 16.0 * double(B * N) * double(H) * double(D), std::max<idx>(units, 1), asked);
        team.share_out(units, [&](idx, idx begin, idx end) {
            for (idx u = begin; u < end; ++u) scan_channels(z, u / vectors, u % vectors * VL, out, last);
        });
    });
}

// Gradients of x, w (B, N, H), of A and the first state (B, H, D), and, unless dk is null, of k and q for each of
// `groups` of the channels, (B, groups, N, D), from zeros.
extern "C" int ENTRY(mereo_gated_scan_backward)(const float* grad, const float* grad_last, const float* x,
                                                const float* w, const float* A, const float* k, const float* q,
                                                const float* first, float* dx, float* dw, float* dA, float* dfirst,
                                                float* dk, float* dq, idx B, idx N, idx H, idx D, idx groups,
                                                idx asked) {
    return guarded([&] {
        const Gated z{x, w, A, k, q, first, B, N, H, D};
        const idx vectors = (H + VL - 1) / VL, units = B * groups;
        const Team team(units, 48.0 * double(B * N) * double(H) * double(D), std::max<idx>(units, 1), asked);
        team.share_out(units, [&](idx, idx begin, idx end) {
            for (idx u = begin; u < end; ++u) {
                const idx b = u / groups, group = u % groups;
                const Gradients g{grad, grad_last, dx, dw, dA, dfirst, dk ? dk + u * N * D : nullptr,
                                  dk ? dq + u * N * D : nullptr};
                for (idx v = vectors * group / groups; v < vectors * (group + 1) / groups; ++v)
                    gradients_of_channels(z, g, b, v * VL);
            }
        });
    });
}
