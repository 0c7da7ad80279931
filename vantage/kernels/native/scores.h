// Scores: products of queries with keys, as these are kept in a cache. How a score is added up depends on the width of its
// head alone, so it has the same bits however many queries and keys are met together.
#pragma once
#include "vectors.h"

namespace vantage {

constexpr int KEYS = 64;  // that are met at a time
constexpr int STEP = 16;  // heads are a multiple of this

struct Query {  // one query head of one token
    const float* q;
    int64_t index;  // which token of its row
    float slope;
    float* shown;  // where its weights go, one for each key from its row's first on and up to a multiple of STEP; or null
};

// WIDTH numbers as they are kept, widened. A scale comes later, and once for each key.
inline floats widened(const float* p) { return load(p); }
inline floats widened(const uint16_t* p) { return halves(p); }
inline floats widened(const int8_t* p) { return to_floats(signed_bytes(p)); }

// Scores of N queries with all keys, (N, KEYS). A key is widened once for all of them, four keys at a time: their sums fit
// the registers.
template <int N, class T>
void score(const Query* q, const T* const* k, int keys, int dim, float* scores) {
    constexpr int FOUR = 4;
    for (int j = 0; j < keys; j += WIDTH) {
        floats begun[N][WIDTH / FOUR];
        for (int four = 0; four < WIDTH / FOUR; four++) {
            const T* const* key = k + j + four * FOUR;
            floats acc[N][FOUR];
            for (int i = 0; i < FOUR; i++) {
                const floats x = widened(key[i]);
                for (int n = 0; n < N; n++) acc[n][i] = load(q[n].q) * x;
            }
            for (int d = WIDTH; d < dim; d += WIDTH) {
                floats own[N];
                for (int n = 0; n < N; n++) own[n] = load(q[n].q + d);
                for (int i = 0; i < FOUR; i++) {
                    const floats x = widened(key[i] + d);
                    for (int n = 0; n < N; n++) acc[n][i] = fused(own[n], x, acc[n][i]);
                }
            }
            for (int n = 0; n < N; n++) begun[n][four] = sums_begun(acc[n][0], acc[n][1], acc[n][2], acc[n][3]);
        }
        for (int n = 0; n < N; n++) store(scores + n * KEYS + j, sums_ended(begun[n]));
    }
}

template <class T>
void score_all(const Query* q, int n, const T* const* k, int keys, int dim, float* scores) {
    int i = 0;
    for (; i + 3 <= n; i += 3) score<3>(q + i, k, keys, dim, scores + i * KEYS);
    if (n - i == 2) score<2>(q + i, k, keys, dim, scores + i * KEYS);
    if (n - i == 1) score<1>(q + i, k, keys, dim, scores + i * KEYS);
}

// Whether many queries meet keys turned: a vector then has one dimension of WIDTH keys, and nothing is added across its
// lanes. With AVX-512 scores take a quarter less so. Narrower vectors have fewer lanes to add; what was won was lost in
// turning (AVX2 and SSE2, on a Zen 5).
constexpr bool TURNS = WIDTH == 16;

// Keys turned and widened, (dim, KEYS): a multiple of WIDTH of them.
template <class T>
const float* turn_keys(const T* const* k, int keys, int dim, float* turned) {
    for (int j = 0; j < keys; j += WIDTH)
        for (int d = 0; d < dim; d += WIDTH) {
            floats x[WIDTH];
            for (int i = 0; i < WIDTH; i++) x[i] = widened(k[j + i] + d);
            turn(x);
            for (int i = 0; i < WIDTH; i++) store(turned + (d + i) * KEYS + j, x[i]);
        }
    return turned;
}

// Products of dimension d of N queries and G vectors of keys: the first of their sums, or added to these.
template <bool FIRST, int N, int G>
inline void add_products(const Query* q, const float* turned, int d, floats (&sums)[N][G]) {
    floats x[G];
    for (int g = 0; g < G; g++) x[g] = load(turned + d * KEYS + g * WIDTH);
    for (int n = 0; n < N; n++) {
        const floats own = all(q[n].q[d]);
        for (int g = 0; g < G; g++) sums[n][g] = FIRST ? own * x[g] : fused(own, x[g], sums[n][g]);
    }
}

template <int N, int G>
inline void add_sums(floats (&to)[N][G], const floats (&sums)[N][G]) {
    for (int n = 0; n < N; n++)
        for (int g = 0; g < G; g++) to[n][g] += sums[n][g];
}

// The bits of i in reverse, as many as numbers below ``count`` have.
constexpr int reversed(int i, int count) {
    return count == 1 ? 0 : (i & 1) * (count / 2) + reversed(i >> 1, count / 2);
}

// The same scores as ``score``, bit for bit: what it has in lane l is a sum over the dimensions l, l + WIDTH and so on, in
// that order, and such sums are added in the order of sum(). Two lanes are computed at a time, so that none waits for
// itself; the pairs come in an order in which few sums wait. Unrolled it takes a fifth less.
template <int N, int G>
void score_turned(const Query* q, const float* turned, int dim, float* scores) {
    constexpr int PAIRS = WIDTH / 2, LEVELS = __builtin_ctz(WIDTH);
    floats waiting[LEVELS][N][G];  // sums of 2, 4 ... lanes, until their other half is there
#pragma GCC unroll 8
    for (int i = 0; i < PAIRS; i++) {
        const int lane = reversed(i, PAIRS);
        floats sums[N][G], others[N][G];
        add_products<true>(q, turned, lane, sums);
        add_products<true>(q, turned, lane + PAIRS, others);
        for (int d = lane + WIDTH; d < dim; d += WIDTH) {
            add_products<false>(q, turned, d, sums);
            add_products<false>(q, turned, d + PAIRS, others);
        }
        add_sums(sums, others);
        int level = 0;
        for (; i >> level & 1; level++) add_sums(sums, waiting[level]);
        std::memcpy(waiting[level], sums, sizeof sums);
    }
    for (int n = 0; n < N; n++)
        for (int g = 0; g < G; g++) store(scores + n * KEYS + g * WIDTH, waiting[LEVELS - 1][n][g]);
}

template <int G>
void score_some_turned(const Query* q, int n, const float* turned, int dim, float* scores) {
    int i = 0;
    for (; i + 6 <= n; i += 6) score_turned<6, G>(q + i, turned, dim, scores + i * KEYS);
    for (; i + 2 <= n; i += 2) score_turned<2, G>(q + i, turned, dim, scores + i * KEYS);
    if (i < n) score_turned<1, G>(q + i, turned, dim, scores + i * KEYS);
}

inline void score_all_turned(const Query* q, int n, const float* turned, int keys, int dim, float* scores) {
    int j = 0;
    for (; j + 2 * WIDTH <= keys; j += 2 * WIDTH) score_some_turned<2>(q, n, turned + j, dim, scores + j);
    if (j < keys) score_some_turned<1>(q, n, turned + j, dim, scores + j);
}

}  // namespace vantage
