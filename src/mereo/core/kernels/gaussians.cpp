// Gaussians fitted to votes U[n, s] W[r, s], products of matrices, and the log density of every vote, without keeping
// more than the votes of one window for one receiver. Lanes are senders, and threads share out the windows.
#include "teams.hpp"

namespace {

constexpr float EMPTY = 1e-8f;       // what the weights of a receiver sum to at the least
constexpr float LEAST_FIT = -1e30f;  // the least log density

// A (rows), K (inner) and C (columns) of poses and transforms, known to the compiler or not.
template <int A_, int K_, int C_> struct Fixed {
    static constexpr idx A = A_, K = K_, C = C_;
};
struct Free {
    idx A, K, C;
};

struct Call {
    const float *poses, *weights, *mean, *variance, *d_mean, *d_variance, *d_fit;
    const vec* transforms;  // [r][vector of senders][K C]
    float *out_mean, *out_variance, *out_fit, *d_poses, *d_weights;
    idx N, S, R;
    float least;
    bool clamps;
    idx vectors() const { return (S + VL - 1) / VL; }
};

// (S, count) -> [vector of senders][count], zeros in the lanes beyond S.
void senders_to_lanes(const float* src, idx S, idx count, vec* dst) {
    for (idx s = 0; s < S; s += VL)
        to_lanes(src + s * count, count, std::min<idx>(VL, S - s), count, dst + s / VL * count, INFINITY);
}
void senders_from_lanes(const vec* src, idx S, idx count, float* dst) {
    for (idx s = 0; s < S; s += VL)
        from_lanes(src + s / VL * count, count, std::min<idx>(VL, S - s), count, dst + s * count);
}

// A row of numbers, one a sender, with zeros behind it.
void row_to_lanes(const float* src, idx S, vec* dst) {
    dst[(S - 1) / VL] = vec{};
    std::memcpy(dst, src, S * 4);
}

inline float sum_of(vec x) {
    float sum = 0;
    for (int l = 0; l < VL; ++l) sum += x[l];
    return sum;
}

// out[h] = scale * (sum over the lanes of x[h]), for count entries; x is overwritten and has room for whole vectors.
inline void sum_lanes(vec* x, idx count, float scale, float* out) {
    for (idx h = 0; h < count; h += VL) {
        const idx some = std::min<idx>(VL, count - h);
        for (idx l = some; l < VL; ++l) x[h + l] = vec{};
        transpose<VL / 2>(x + h);
        vec sum = x[h];
        for (int l = 1; l < VL; ++l) sum += x[h + l];
        sum *= scale;
        std::memcpy(out + h, &sum, some * 4);
    }
}

// out = u w, for a vector of senders.
template <class D> INLINE inline void vote(const D& d, const vec* u, const vec* w, vec* out) {
#pragma GCC unroll 4
    for (idx a = 0; a < d.A; ++a)
#pragma GCC unroll 4
        for (idx c = 0; c < d.C; ++c) {
            vec sum = u[a * d.K] * w[c];
#pragma GCC unroll 8
            for (idx k = 1; k < d.K; ++k) sum += u[a * d.K + k] * w[k * d.C + c];
            out[a * d.C + c] = sum;
        }
}

// What one thread works in.
struct Room {
    idx P, V;
    Scratch children, votes, row, sums, means, scales, numbers;
    Room(const Call& c, idx entries, idx pose)
        : P(pose), V(c.vectors()), children(V * entries * VL), votes(V * P * VL), row(2 * V * VL),
          sums(2 * (P + VL) * VL), means(P * VL), scales(2 * P * VL), numbers(8 * (P + VL)) {}
};

template <class D> void fit_window(const Call& call, const D& d, idx n, Room& room) {
    const idx P = d.A * d.C, V = room.V, KC = d.K * d.C, AK = d.A * d.K, S = call.S;
    vec *u = room.children.vecs(), *votes = room.votes.vecs(), *weight = room.row.vecs(), *sums = room.sums.vecs();
    vec *offsets = sums + P + VL, *mu = room.means.vecs(), *scale = room.scales.vecs(), *fits = weight + V;
    float* offset = room.numbers.at;
    senders_to_lanes(call.poses + n * S * AK, S, AK, u);
    for (idx r = 0; r < call.R; ++r) {
        const idx at = n * call.R + r;
        float *mean = call.out_mean + at * P, *variance = call.out_variance + at * P;
        row_to_lanes(call.weights + at * S, S, weight);
        std::fill(sums, sums + P, vec{});
        vec total = {};
        for (idx v = 0; v < V; ++v) {
            vec* mine = votes + v * P;
            vote(d, u + v * AK, call.transforms + (r * V + v) * KC, mine);
            total += weight[v];
            for (idx h = 0; h < P; ++h) sums[h] += weight[v] * mine[h];
        }
        const float s = sum_of(total), part = 1.0f / std::max(s, EMPTY);
        sum_lanes(sums, P, part, mean);
        for (idx h = 0; h < P; ++h) mu[h] = splat(mean[h]);
        std::fill(sums, sums + P, vec{});
        std::fill(offsets, offsets + P, vec{});
        for (idx v = 0; v < V; ++v)
            for (idx h = 0; h < P; ++h) {
                const vec away = votes[v * P + h] - mu[h], part_away = weight[v] * away;
                offsets[h] += part_away;
                sums[h] += part_away * away;
            }
        sum_lanes(sums, P, part, variance);
        sum_lanes(offsets, P, part, offset);
        for (idx h = 0; h < P; ++h) {
            // What rounding left of the mean, which counts against a small floor where all votes are equal.
            const float rest = s > EMPTY ? offset[h] : 0;
            mean[h] += rest, mu[h] = splat(mean[h]);
            const float spread = std::max(variance[h] - rest * rest, 0.0f);
            variance[h] = call.clamps ? std::max(spread, call.least) : spread + call.least;
        }
        if (!call.out_fit) continue;
        float constant = 0;
        for (idx h = 0; h < P; ++h) {
            constant -= 0.5f * std::log(6.2831853f * variance[h]);
            scale[h] = splat(-0.5f / variance[h]);
        }
        for (idx v = 0; v < V; ++v) {
            vec fit = splat(constant);
            for (idx h = 0; h < P; ++h) {
                const vec away = votes[v * P + h] - mu[h];
                fit += away * scale[h] * away;
            }
            const vec least = splat(LEAST_FIT);
            fits[v] = fit > least ? fit : least;
        }
        std::memcpy(call.out_fit + at * S, fits, S * 4);
    }
}

template <class D>
void pull_window(const Call& call, const D& d, idx n, Room& room, vec* d_children, vec* d_transforms) {
    const idx P = d.A * d.C, V = room.V, KC = d.K * d.C, AK = d.A * d.K, S = call.S;
    vec *u = room.children.vecs(), *votes = room.votes.vecs(), *weight = room.row.vecs(), *fit = weight + V;
    vec *sums = room.sums.vecs(), *squares = sums + P + VL, *mu = room.means.vecs();
    vec *to_mean = room.scales.vecs(), *to_variance = to_mean + P;
    float* first = room.numbers.at;
    float *second = first + P + VL, *precision = second + P + VL;
    senders_to_lanes(call.poses + n * S * AK, S, AK, u);
    std::fill(d_children, d_children + V * AK, vec{});
    for (idx r = 0; r < call.R; ++r) {
        const idx at = n * call.R + r;
        const float *mean = call.mean + at * P, *variance = call.variance + at * P;
        const vec* w = call.transforms + r * V * KC;
        row_to_lanes(call.weights + at * S, S, weight);
        for (idx h = 0; h < P; ++h) mu[h] = splat(mean[h]), precision[h] = 1.0f / variance[h];
        if (call.d_fit)
            row_to_lanes(call.d_fit + at * S, S, fit);
        else
            std::fill(fit, fit + V, vec{});
        std::fill(sums, sums + P, vec{});
        std::fill(squares, squares + P, vec{});
        vec total = {}, all = {};
        for (idx v = 0; v < V; ++v) {
            vec* away = votes + v * P;
            vote(d, u + v * AK, w + v * KC, away);
            total += weight[v];
            vec far = {};
            for (idx h = 0; h < P; ++h) {
                away[h] -= mu[h];
                far += away[h] * away[h] * precision[h];
            }
            if (!call.d_fit) continue;
            // Nothing passes where the log density was held at its least; not a number counts as that.
            fit[v] = far < splat(-2 * LEAST_FIT) ? fit[v] : vec{};
            all += fit[v];
            for (idx h = 0; h < P; ++h) {
                const vec part = fit[v] * away[h];
                sums[h] += part;
                squares[h] += part * away[h];
            }
        }
        sum_lanes(sums, P, 1.0f, first);
        sum_lanes(squares, P, 1.0f, second);
        const float s = sum_of(total), fits = sum_of(all), part = 1.0f / std::max(s, EMPTY);
        for (idx h = 0; h < P; ++h) {
            const float q = precision[h];
            float dv = call.d_variance[at * P + h] + 0.5f * q * (q * second[h] - fits);
            if (call.clamps && variance[h] <= call.least) dv = 0;
            to_variance[h] = splat(dv);
            to_mean[h] = splat(call.d_mean[at * P + h] + q * first[h]);
        }
        // The gradient of the shares, then of the weights, whose sum divides them.
        vec mixed = {};
        float* d_weight = call.d_weights + at * S;
        for (idx v = 0; v < V; ++v) {
            vec* away = votes + v * P;
            const vec p = weight[v] * part;
            vec share = {};
            for (idx h = 0; h < P; ++h) share += away[h] * (to_mean[h] + to_variance[h] * away[h]);
            if (s <= EMPTY)
                for (idx h = 0; h < P; ++h) share += to_mean[h] * mu[h];
            else
                mixed += p * share;
            std::memcpy(d_weight + v * VL, &share, std::min<idx>(VL, S - v * VL) * 4);
            for (idx h = 0; h < P; ++h)
                away[h] = away[h] * (2.0f * p * to_variance[h] - fit[v] * precision[h]) + p * to_mean[h];
            vec* du = d_children + v * AK;
            vec* dw = d_transforms + (r * V + v) * KC;
            const vec *uv = u + v * AK, *wv = w + v * KC;
#pragma GCC unroll 4
            for (idx a = 0; a < d.A; ++a)
#pragma GCC unroll 8
                for (idx k = 0; k < d.K; ++k) {
                    vec sum = du[a * d.K + k];
#pragma GCC unroll 4
                    for (idx c = 0; c < d.C; ++c) sum += away[a * d.C + c] * wv[k * d.C + c];
                    du[a * d.K + k] = sum;
                }
#pragma GCC unroll 8
            for (idx k = 0; k < d.K; ++k)
#pragma GCC unroll 4
                for (idx c = 0; c < d.C; ++c) {
                    vec sum = dw[k * d.C + c];
#pragma GCC unroll 4
                    for (idx a = 0; a < d.A; ++a) sum += uv[a * d.K + k] * away[a * d.C + c];
                    dw[k * d.C + c] = sum;
                }
        }
        const float mean_share = sum_of(mixed);
        for (idx i = 0; i < S; ++i) d_weight[i] = (d_weight[i] - mean_share) * part;
    }
    senders_from_lanes(d_children, S, AK, call.d_poses + n * S * AK);
}

// run(dims) with the sizes known to the compiler where they are common.
template <class Run> void with_sizes(idx A, idx K, idx C, Run run) {
    if (A == 4 && K == 4 && C == 4)
        run(Fixed<4, 4, 4>{});
    else if (A == 4 && K == 6 && C == 4)
        run(Fixed<4, 6, 4>{});
    else
        run(Free{A, K, C});
}

void all_to_lanes(const float* weight, idx R, idx S, idx KC, idx V, vec* out) {
    for (idx r = 0; r < R; ++r) senders_to_lanes(weight + r * S * KC, S, KC, out + r * V * KC);
}

}  // namespace

// poses (N, S, A, K), weight (R, S, K, C), weights (N, R, S) -> mean, variance (N, R, A C), and unless it is null
// fit (N, R, S). Returns 0, or 1 where memory ran out.
extern "C" int ENTRY(mereo_gaussians)(const float* poses, const float* weight, const float* weights, float* mean,
                                      float* variance, float* fit, idx N, idx S, idx R, idx A, idx K, idx C,
                                      idx asked, float least, int clamps) {
    return guarded([&] {
        Call call{};
        call.poses = poses, call.weights = weights, call.out_mean = mean, call.out_variance = variance;
        call.out_fit = fit, call.N = N, call.S = S, call.R = R, call.least = least, call.clamps = clamps != 0;
        Scratch transforms(R * call.vectors() * K * C * VL);
        all_to_lanes(weight, R, S, K * C, call.vectors(), transforms.vecs());
        call.transforms = transforms.vecs();
        const Team team(N, double(N) * S * R * A * C * (K + 8), 16, asked);
        with_sizes(A, K, C, [&](auto d) {
            team.share_out(N, [&](idx, idx begin, idx end) {
                Room room(call, A * K, A * C);
                for (idx n = begin; n < end; ++n) fit_window(call, d, n, room);
            });
        });
    });
}

// The gradients of poses, weight and weights from the gradients of mean, variance and (unless null) fit.
extern "C" int ENTRY(mereo_gaussians_gradients)(const float* poses, const float* weight, const float* weights,
                                                const float* mean, const float* variance, const float* d_mean,
                                                const float* d_variance, const float* d_fit, float* d_poses,
                                                float* d_weight, float* d_weights, idx N, idx S, idx R, idx A, idx K,
                                                idx C, idx asked, float least, int clamps) {
    return guarded([&] {
        Call call{};
        call.poses = poses, call.weights = weights, call.mean = mean, call.variance = variance;
        call.d_mean = d_mean, call.d_variance = d_variance, call.d_fit = d_fit;
        call.d_poses = d_poses, call.d_weights = d_weights;
        call.N = N, call.S = S, call.R = R, call.least = least, call.clamps = clamps != 0;
        const idx V = call.vectors(), KC = K * C, each = R * V * KC;
        Scratch transforms(each * VL);
        all_to_lanes(weight, R, S, KC, V, transforms.vecs());
        call.transforms = transforms.vecs();
        const idx most = std::clamp<idx>((16 << 20) / (each * VL * 4), 1, 8);
        const Team team(N, double(N) * S * R * A * C * (3 * K + 16), most, asked);
        Scratch sums(team.parts * each * VL);
        std::fill(sums.vecs(), sums.vecs() + team.parts * each, vec{});
        with_sizes(A, K, C, [&](auto d) {
            team.share_out(N, [&](idx part, idx begin, idx end) {
                Room room(call, A * K, A * C);
                Scratch d_children(V * A * K * VL);
                for (idx n = begin; n < end; ++n)
                    pull_window(call, d, n, room, d_children.vecs(), sums.vecs() + part * each);
            });
        });
        for (idx p = 1; p < team.parts; ++p)
            for (idx k = 0; k < each; ++k) sums.vecs()[k] += sums.vecs()[p * each + k];
        for (idx r = 0; r < R; ++r) senders_from_lanes(sums.vecs() + r * V * KC, S, KC, d_weight + r * S * KC);
    });
}
