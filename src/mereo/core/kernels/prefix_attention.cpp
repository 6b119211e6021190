// Softmax attention of one query to every prefix of a sequence, in one pass over the values; and its gradients.
//
//     out_k = sum_(i <= k) exp(s_i - L_k) v_i,     L_k = log sum_(i <= k) exp(s_i)
//
// Before the first token lies a summary (m, u, w): the largest score, and the sums of exp(s - m) and of exp(s - m) v.
// With G the gradients of the outputs and from the end
//
//     A_k = G_k + exp(L_k - L_(k+1)) A_(k+1),     B_k = <G_k, out_k> + exp(L_k - L_(k+1)) B_(k+1)
//
// dv_k = exp(s_k - L_k) A_k and ds_k = exp(s_k - L_k) (<v_k, A_k> - B_k). No exponent is positive, so nothing overflows.
// The lanes of a vector are columns of the values. Threads share out rows. Plain C interface; float32.
#include "teams.hpp"

namespace {

struct Row {  // tokens of one batch and head, whose columns lie in sequence
    float* at;
    idx token;
    float* of(idx t) const { return at + t * token; }
};

inline vec at(const float* from) { return *reinterpret_cast<const loose*>(from); }

// (batch, heads, tokens, columns) in memory of any order.
struct Values {
    float* at;
    const idx* strides;
    Row row(idx b, idx h) const { return {at + b * strides[0] + h * strides[1], strides[2]}; }
};

// What the next m <= VL tokens do to the sums (u, w): for each the factor of the sums before it, and its own share.
struct Shares {
    float kept[VL], own[VL], top[VL + 1];  // top: the largest score before the first token and up to each
    Shares(const float* scores, idx m, float before) {
        vec s = splat(-INFINITY);
        std::memcpy(&s, scores, m * 4);
        top[0] = before;
        for (idx t = 0; t < VL; ++t) top[t + 1] = s[t] > top[t] ? s[t] : top[t];
        const vec none = splat(-INFINITY), earlier = at(top), now = at(top + 1);
        const vec factors = earlier == none ? vec{} : exponential(earlier - now);
        const vec shares = s == none ? vec{} : exponential(s - now);
        std::memcpy(kept, &factors, sizeof kept);
        std::memcpy(own, &shares, sizeof own);
    }
};

void attend(const float* scores, Row values, idx N, idx E, float* top, float* total, float* sums, Row out) {
    float m = *top, u = *total, inverse[VL] = {};
    for (idx t0 = 0; t0 < N; t0 += VL) {
        const idx count = std::min<idx>(VL, N - t0);
        const Shares shares(scores + t0, count, m);
        for (idx t = 0; t < count; ++t) {
            u = u * shares.kept[t] + shares.own[t];
            inverse[t] = u;
        }
        const vec totals = at(inverse), shares_of = totals == vec{} ? vec{} : 1.0f / totals;
        std::memcpy(inverse, &shares_of, sizeof inverse);
        in_registers<4>(E / VL, [&](auto M, idx j) INLINE {
            vec w[M];
            for (int i = 0; i < M; ++i) w[i] = at(sums + (j + i) * VL);
            for (idx t = 0; t < count; ++t) {
                const float *v = values.of(t0 + t) + j * VL, kept = shares.kept[t], own = shares.own[t];
                float* o = out.of(t0 + t) + j * VL;
                for (int i = 0; i < M; ++i) {
                    w[i] = w[i] * kept + at(v + i * VL) * own;
                    *reinterpret_cast<loose*>(o + i * VL) = w[i] * inverse[t];
                }
            }
            for (int i = 0; i < M; ++i) *reinterpret_cast<loose*>(sums + (j + i) * VL) = w[i];
        });
        for (idx e = E / VL * VL; e < E; ++e)
            for (idx t = 0; t < count; ++t) {
                sums[e] = sums[e] * shares.kept[t] + values.of(t0 + t)[e] * shares.own[t];
                out.of(t0 + t)[e] = sums[e] * inverse[t];
            }
        m = shares.top[count];
    }
    *top = m, *total = u;
}

struct Gradients {
    const float *scores, *top, *total;        // of one row, and of what was before
    Row values, out, grad;                    // grad: of the outputs
    const float *grad_total, *grad_sums;      // of the last summary, or null
    float *of_scores, *of_total, *of_sums;    // of_total, of_sums: of what was before
    Row of_values;
};

void gradients(const Gradients& g, idx N, idx E) {
    Scratch logs(N + 1), running(E);  // L before the first token and of each; A
    float m = *g.top, u = *g.total;
    logs.at[0] = u > 0 ? m + std::log(u) : -INFINITY;
    for (idx t0 = 0; t0 < N; t0 += VL) {
        const idx count = std::min<idx>(VL, N - t0);
        const Shares shares(g.scores + t0, count, m);
        for (idx t = 0; t < count; ++t) {
            u = u * shares.kept[t] + shares.own[t];
            logs.at[t0 + t + 1] = u == 0 ? -INFINITY : shares.top[t + 1] + std::log(u);
        }
        m = shares.top[count];
    }
    float B = g.grad_total ? -u * *g.grad_total : 0.0f, *A = running.at;
    for (idx e = 0; e < E; ++e) A[e] = g.grad_sums ? u * g.grad_sums[e] : 0.0f;
    float next = logs.at[N];
    for (idx k = N; k-- > 0;) {
        const float L = logs.at[k + 1], s = g.scores[k];
        const float factor = L > -INFINITY ? std::exp(L - next) : 0.0f, own = s > -INFINITY ? std::exp(s - L) : 0.0f;
        const float *v = g.values.of(k), *G = g.grad.of(k), *o = g.out.of(k);
        float *dv = g.of_values.of(k), read = 0, mixed = 0;
        vec reads{}, mixes{};
        idx e = 0;
        for (; e + VL <= E; e += VL) {
            const vec of_out = at(G + e), a = of_out + factor * at(A + e);
            *reinterpret_cast<loose*>(A + e) = a;
            *reinterpret_cast<loose*>(dv + e) = a * own;
            reads += a * at(v + e), mixes += of_out * at(o + e);
        }
        for (; e < E; ++e) {
            A[e] = G[e] + factor * A[e];
            dv[e] = A[e] * own;
            read += A[e] * v[e], mixed += G[e] * o[e];
        }
        for (int l = 0; l < VL; ++l) read += reads[l], mixed += mixes[l];
        B = mixed + factor * B;
        g.of_scores[k] = own * (read - B);
        next = L;
    }
    const float share = logs.at[0] > -INFINITY ? std::exp(*g.top - next) : 0.0f;
    *g.of_total = -share * B;
    for (idx e = 0; e < E; ++e) g.of_sums[e] = share * A[e];
}

}  // namespace

// scores (B, H, N), values and out (B, H, N, E) in any order but that of columns, whose strides of batches, heads and
// tokens are in `strides`; top, total (B, H) and sums (B, H, E) are the summary before, and then the one behind. Returns
// 0, or 1 where memory ran out.
extern "C" int ENTRY(mereo_prefix_attention)(const float* scores, float* values, float* out, const idx* strides,
                                             float* top, float* total, float* sums, idx B, idx H, idx N, idx E,
                                             idx asked) {
    return guarded([&] {
        ask_for_large_pages(out, B * H * N * E);
        const Values given{values, strides}, made{out, strides + 3};
        const Team team(B * H, double(B * H * N) * double(E), std::max<idx>(B * H, 1), asked);
        team.share_out(B * H, [&](idx, idx begin, idx end) {
            for (idx r = begin; r < end; ++r)
                attend(scores + r * N, given.row(r / H, r % H), N, E, top + r, total + r, sums + r * E,
                       made.row(r / H, r % H));
        });
    });
}

// Gradients: of scores (B, H, N), of values, which lie as `strides` says of the fourth tensor, and of the total and sums
// before. `strides`: of values, out, grad and of_values.
extern "C" int ENTRY(mereo_prefix_attention_backward)(const float* scores, const float* top, const float* total,
                                                      float* values, float* out, float* grad, const idx* strides,
                                                      const float* grad_total, const float* grad_sums,
                                                      float* of_scores, float* of_values, float* of_total,
                                                      float* of_sums, idx B, idx H, idx N, idx E, idx asked) {
    return guarded([&] {
        ask_for_large_pages(of_values, B * H * N * E);
        const Values v{values, strides}, o{out, strides + 3}, g{grad, strides + 6}, d{of_values, strides + 9};
        const Team team(B * H, 3 * double(B * H * N) * double(E), std::max<idx>(B * H, 1), asked);
        team.share_out(B * H, [&](idx, idx begin, idx end) {
            for (idx r = begin; r < end; ++r) {
                const idx b = r / H, h = r % H;
                gradients({scores + r * N, top + r, total + r, v.row(b, h), o.row(b, h), g.row(b, h),
                           grad_total ? grad_total + r : nullptr, grad_sums ? grad_sums + r * E : nullptr,
                           of_scores + r * N, of_total + r, of_sums + r * E, d.row(b, h)},
                          N, E);
            }
        });
    });
}
