// Attention to the keys of chosen columns, for queries that each see the first n of the keys.
//
//     out_i = scale_i sum_j softmax_j(factor <q_i, k_j>) v_j,    j < n_i with kept[i][m(j)],
//     m(j) = floor((j + 1/2) K / n - 1e-4)
//
// The keys of a column follow each other, so that a kept column is a run of rows in memory. Threads share out queries;
// the result does not depend on how. Plain C interface; float32.
#include "teams.hpp"

namespace {

struct Columns {
    const float *q, *k, *v, *weight;  // (B, H, N, D), (B, H, M, D), (B, H, M, E), (B, H, N)
    const uint8_t* kept;              // (B, H, N, K)
    const idx* lengths;               // (B, N): how many keys a query sees
    float* out;
    idx B, H, N, M, D, E, K;
    float factor;
};

inline idx column_of(idx j, idx n, idx K) {
    const idx m = idx(std::floor((double(j) + 0.5) * double(K) / double(n) - 1e-4));
    return std::clamp<idx>(m, 0, K - 1);
}

// The first key of column m among n: a guess, then the rule itself.
inline idx first_of(idx m, idx n, idx K) {
    idx j = std::clamp<idx>(idx(double(m) * double(n) / double(K) - 0.5), 0, n);
    while (j > 0 && column_of(j - 1, n, K) >= m) --j;
    while (j < n && column_of(j, n, K) < m) ++j;
    return j;
}

inline float sum_of(vec x) {
    float total = 0;
    for (int i = 0; i < VL; ++i) total += x[i];
    return total;
}

inline float product(const float* a, const float* b, idx D) {
    vec even = {}, odd = {};
    idx d = 0;
    for (; d + 2 * VL <= D; d += 2 * VL) {
        even += *reinterpret_cast<const loose*>(a + d) * *reinterpret_cast<const loose*>(b + d);
        odd += *reinterpret_cast<const loose*>(a + d + VL) * *reinterpret_cast<const loose*>(b + d + VL);
    }
    for (; d + VL <= D; d += VL)
        even += *reinterpret_cast<const loose*>(a + d) * *reinterpret_cast<const loose*>(b + d);
    float total = sum_of(even + odd);
    for (; d < D; ++d) total += a[d] * b[d];
    return total;
}

// One query: the runs of keys, their scores, and what they make of the values.
void attend(const Columns& z, idx b, idx h, idx i, std::vector<idx>& runs, std::vector<float>& shares) {
    const idx row = (b * z.H + h) * z.N + i, n = std::min(z.lengths[b * z.N + i], z.M);
    const uint8_t* kept = z.kept + row * z.K;
    const float *k = z.k + (b * z.H + h) * z.M * z.D, *v = z.v + (b * z.H + h) * z.M * z.E, *q = z.q + row * z.D;
    float* out = z.out + row * z.E;
    std::fill(out, out + z.E, 0.0f);
    runs.clear(), shares.clear();
    float most = -INFINITY;
    for (idx m = 0; m < z.K && n > 0; ++m) {
        if (!kept[m]) continue;
        idx last = m;
        while (last + 1 < z.K && kept[last + 1]) ++last;
        const idx begin = first_of(m, n, z.K), end = last + 1 < z.K ? first_of(last + 1, n, z.K) : n;
        m = last;
        if (begin >= end) continue;
        runs.push_back(begin), runs.push_back(end);
        for (idx j = begin; j < end; ++j) {
            float score = product(q, k + j * z.D, z.D) * z.factor;
            score = score > 3e38f ? 3e38f : score < -3e38f ? -3e38f : score;
            shares.push_back(score);
            most = std::max(most, score);
        }
    }
    if (shares.empty()) return;
    const idx count = idx(shares.size());
    shares.resize((count + VL - 1) / VL * VL, -INFINITY);
    vec sums = {};
    for (idx s = 0; s < idx(shares.size()); s += VL) {
        float* at = shares.data() + s;
        vec e = exponential(*reinterpret_cast<const loose*>(at) - splat(most));
        for (idx l = 0; s + VL > count && l < VL; ++l) e[l] = s + l < count ? e[l] : 0.0f;
        *reinterpret_cast<loose*>(at) = e;
        sums += e;
    }
    const float scale = z.weight[row] / sum_of(sums);
    const float* share = shares.data();
    idx e = 0;
    for (; e + VL <= z.E; e += VL) {
        vec total = {};
        const float* s = share;
        for (size_t r = 0; r < runs.size(); r += 2)
            for (idx j = runs[r]; j < runs[r + 1]; ++j) total += *s++ * *reinterpret_cast<const loose*>(v + j * z.E + e);
        *reinterpret_cast<loose*>(out + e) = total * scale;
    }
    for (; e < z.E; ++e) {
        float total = 0;
        const float* s = share;
        for (size_t r = 0; r < runs.size(); r += 2)
            for (idx j = runs[r]; j < runs[r + 1]; ++j) total += *s++ * v[j * z.E + e];
        out[e] = total * scale;
    }
}

}  // namespace

// Returns 0, or 1 where memory ran out. `pairs` is about how many pairs of a query and a key there are.
extern "C" int ENTRY(mereo_column_attention)(const float* q, const float* k, const float* v, const float* weight,
                                             const uint8_t* kept, const idx* lengths, float* out, idx B, idx H, idx N,
                                             idx M, idx D, idx E, idx K, idx pairs, idx asked, float factor) {
    return guarded([&] {
        const Columns z{q, k, v, weight, kept, lengths, out, B, H, N, M, D, E, K, factor};
        const idx units = B * H * N;
        const Team team(units, double(pairs) * double(D + E), std::max<idx>(asked * 16, 1), asked);
        team.share_out(units, [&](idx, idx begin, idx end) {
            std::vector<idx> runs;
            std::vector<float> shares;
            for (idx u = begin; u < end; ++u) attend(z, u / N / H, u / N % H, u % N, runs, shares);
        });
    });
}
