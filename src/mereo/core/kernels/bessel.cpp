// The log g and the ratio q of modified Bessel functions, and the slope of A, for arrays in float or double.
// mereo/generative/bessel.py says what they are, and hands in the coefficients of both series.
//
// Beyond what a square can hold, the root of a sum of squares is its large part. The product of all q is kept near 1 by
// factors max(k, 1), whose logs are taken off again.
#include <limits>
#include <type_traits>

#include "teams.hpp"

namespace {

template <class T> struct Wide {
    typedef T vec __attribute__((vector_size(VL * 4)));
    typedef std::conditional_t<sizeof(T) == 4, int32_t, int64_t> whole;
    typedef whole bits __attribute__((vector_size(VL * 4)));
    static constexpr int lanes = VL * 4 / sizeof(T), mantissa = std::numeric_limits<T>::digits - 1;
    static constexpr T largest = std::numeric_limits<T>::max(), squarable = sizeof(T) == 4 ? 1e18 : 1e150;
};
template <class T> using vec_of = typename Wide<T>::vec;

// So many vectors go through each stage together, for the stages of one are one long chain of operations.
constexpr int MANY = VL == 16 ? 8 : 4;

template <class Work> INLINE inline void each(Work work) {
    for (int i = 0; i < MANY; ++i) work(i);
}

template <class T> inline vec_of<T> root(vec_of<T> x) {
    for (int i = 0; i < Wide<T>::lanes; ++i) x[i] = std::sqrt(x[i]);
    return x;
}

// log(x + low) for positive normal x, where low is what x lost to rounding.
template <class T> inline vec_of<T> logarithm(vec_of<T> x, vec_of<T> low) {
    typedef typename Wide<T>::bits bits;
    const T middle = 0.70710678118654752;
    typename Wide<T>::whole least;
    bits pattern;
    vec_of<T> m;  // x = m 2^power, m between 0.7 and 1.42
    std::memcpy(&least, &middle, sizeof least);
    std::memcpy(&pattern, &x, sizeof pattern);
    const bits power = (pattern - least) >> Wide<T>::mantissa;
    pattern -= power << Wide<T>::mantissa;
    std::memcpy(&m, &pattern, sizeof m);
    // log m = 2 (f + f^3 / 3 + f^5 / 5 ...), and f^2 is below 0.03
    const vec_of<T> f = (m - 1 + (power == 0 ? low : vec_of<T>{})) / (m + 1), square = f * f;
    constexpr int terms = sizeof(T) == 4 ? 5 : 11;
    vec_of<T> sum = vec_of<T>{} + T(1) / (2 * terms + 1);
    for (int i = terms - 1; i >= 0; --i) sum = sum * square + T(1) / (2 * i + 1);
    return __builtin_convertvector(power, vec_of<T>) * T(0.69314718055994531) + 2 * f * sum;
}

// sum_r row_r(inner) outer^r, where row r, from 1, is a polynomial of 2 + (r - 1) `more` coefficients.
template <class T> struct Series {
    using V = vec_of<T>;
    std::vector<T> table;
    idx rows, columns, more;
    Series(const double* from, idx rows, idx columns, idx more)
        : table(from, from + rows * columns), rows(rows), columns(columns), more(more) {}
    void operator()(const V (&inner)[MANY], const V (&outer)[MANY], V (&sum)[MANY]) const {
        each([&](int i) INLINE { sum[i] = V{}; });
        for (idx r = rows - 1; r >= 0; --r) {
            V row[MANY] = {};
            for (idx c = 1 + r * more; c >= 0; --c) {
                const T next = table[r * columns + c];
                each([&](int i) INLINE { row[i] = row[i] * inner[i] + next; });
            }
            each([&](int i) INLINE { sum[i] = (sum[i] + row[i]) * outer[i]; });
        }
    }
};

// From the expansions at the order `top`, brought down by `steps`.
template <class T> struct Bessel {
    using V = vec_of<T>;
    T top, stirling, far;
    idx steps;
    Series<T> debye, ratio;

    // s, and the sum of which A = k / (s + w) (1 + the sum), at the order w - 1/2
    void lead(T w, const V (&k)[MANY], V (&s)[MANY], V (&sum)[MANY]) const {
        V inner[MANY], outer[MANY];
        each([&](int i) INLINE {
            s[i] = k[i] > Wide<T>::squarable ? k[i] : root<T>(k[i] * k[i] + w * w);
            outer[i] = 1 / s[i];
            inner[i] = w * outer[i];
        });
        ratio(inner, outer, sum);
    }

    // q, and g unless it is null, of MANY vectors k that are not negative
    void operator()(const V (&k)[MANY], V* g, V (&q)[MANY]) const {
        const T w = top + T(0.5);
        V s[MANY], product[MANY], factor[MANY];
        lead(w, k, s, q);
        each([&](int i) INLINE {
            q[i] = (1 + q[i]) * (2 * (top + 1)) / (s[i] + w);
            factor[i] = k[i] > 1 ? k[i] : V{} + 1;
            product[i] = V{} + 1;
        });
        for (idx step = 0; step < steps; ++step) {
            const T mu = top - step, quarter = 1 / (4 * mu * (mu + 1));
            each([&](int i) INLINE {
                q[i] = 1 / (1 + q[i] * k[i] * (k[i] * quarter));
                product[i] *= q[i] * factor[i];
            });
        }
        if (g) {
            V z[MANY], r[MANY], rest[MANY], inner[MANY], outer[MANY];
            each([&](int i) INLINE {
                z[i] = k[i] / top;
                r[i] = z[i] > Wide<T>::squarable ? z[i] : root<T>(z[i] * z[i] + 1);
                const V p = 1 / r[i];
                inner[i] = p * p;
                outer[i] = p / top;
            });
            debye(inner, outer, rest);
            each([&](int i) INLINE { rest[i] = logarithm<T>((1 + rest[i]) / (product[i] * root<T>(r[i])), V{}); });
            each([&](int i) INLINE { rest[i] += T(steps) * logarithm<T>(factor[i], V{}); });
            each([&](int i) INLINE {
                const V half = z[i] * (z[i] / (2 + 2 * r[i])), more = half + 1;  // half of r - 1
                g[i] = top * (2 * half - logarithm<T>(more, half - (more - 1))) + (rest[i] + stirling);
                g[i] = k[i] <= Wide<T>::largest ? g[i] : k[i];
            });
        }
        each([&](int i) INLINE { q[i] = k[i] <= Wide<T>::largest ? q[i] : 1 / k[i]; });
    }

    // A' where q is known: up to `far` 1 - A^2 - (2 nu + 1) A / k, and what is left of that without cancellation beyond
    void slope(const V (&k)[MANY], const V (&q)[MANY], V* out) const {
        const T order = top - steps, w = order + T(0.5);
        V large[MANY], s[MANY], sum[MANY];
        each([&](int i) INLINE { large[i] = k[i] > far ? k[i] : V{} + far; });
        lead(w, large, s, sum);
        each([&](int i) INLINE {
            const V share = q[i] / (2 * (order + 1)), first = large[i] / (s[i] + w);
            const V left = -first * sum[i] * (2 * s[i] / large[i] + first * sum[i]);
            out[i] = k[i] > far ? left : 1 - share * k[i] * (share * k[i]) - 2 * w * share;
            out[i] = k[i] <= Wide<T>::largest ? out[i] : 1 / k[i];
        });
    }
};

template <class T> void evaluate(const Bessel<T>& bessel, const T* k, T* g, T* q, T* slope, idx count, idx asked) {
    constexpr idx block = MANY * Wide<T>::lanes;
    const idx blocks = (count + block - 1) / block;
    const Team team(blocks, 100.0 * count, 64, asked);
    team.share_out(blocks, [&](idx, idx first, idx last) {
        for (idx at = first * block, end = std::min(last * block, count); at < end; at += block) {
            const idx bytes = std::min(block, end - at) * sizeof(T);
            vec_of<T> given[MANY] = {}, found_g[MANY], found_q[MANY];
            std::memcpy(given, k + at, bytes);
            each([&](int i) INLINE { given[i] = given[i] < 0 ? -given[i] : given[i]; });
            bessel(given, g ? found_g : nullptr, found_q);
            if (g) std::memcpy(g + at, found_g, bytes);
            if (q) std::memcpy(q + at, found_q, bytes);
            if (!slope) continue;
            bessel.slope(given, found_q, found_g);
            std::memcpy(slope + at, found_g, bytes);
        }
    });
}

}  // namespace

// k (count) -> g, q and the slope of A, where they are not null, at `steps` orders below `top`. The tables of the series
// have `terms` rows. Returns 0, or 1 where memory ran out.
#define BESSEL(name, T)                                                                                                \
    extern "C" int ENTRY(name)(const T* k, T* g, T* q, T* slope, const double* debye, const double* ratio, idx count,  \
                               idx steps, idx terms, idx debye_columns, idx ratio_columns, idx asked, double top,      \
                               double stirling, double far) {                                                          \
        return guarded([&] {                                                                                           \
            const Series<T> of_debye(debye, terms, debye_columns, 1), of_ratio(ratio, terms, ratio_columns, 2);        \
            const Bessel<T> bessel{T(top), T(stirling), T(far), steps, of_debye, of_ratio};                            \
            evaluate<T>(bessel, k, g, q, slope, count, asked);                                                         \
        });                                                                                                            \
    }
BESSEL(mereo_bessel_float, float)
BESSEL(mereo_bessel_double, double)
