// Attention of new queries over the keys and values of a cache, where they lie: in one run or in blocks.
//
// Keys are cut into pieces of 128, counted from the first token of a row. Within a piece they are met 64 at a time
// with a running maximum (Milakov and Gimelshein 2018); pieces are then joined in order (Dao et al. 2023, "flash
// decoding"). What a query gets is always computed in the same steps, whether it comes alone or in a prompt, in a
// batch or not, on one thread or many: the same bits.
//
// Keys and values are kept in float32, in half precision, or in 8 bits with a scale for each token and head; a scale is
// multiplied to a score or a weight, once for each key.
//
// Who watches a layer gets the weights that were used: a watched query writes its scores down as it meets them, and they
// become weights when its pieces are joined.
#pragma once
#include <algorithm>
#include <vector>
#include "scores.h"

namespace vantage {

enum Kept : int32_t { FLOATS, HALVES, BYTES };  // in which form: float32, half precision, or 8 bits with a scale

struct LayerStore {  // the keys and values of one layer
    void *k, *v;
    float *k_scale, *v_scale;  // of 8 bits: one for each token and head
    int64_t k_head, v_head;    // from one key/value head to the next, in numbers
    int64_t k_row, v_row;      // from one row of the batch to the next; 0: all rows share a pool
    int32_t key_dim, value_dim;
    int32_t kept, unused;
};

struct RowLocation {  // where a row's tokens stand
    const int32_t* blocks;  // null: one after another, or in a ring
    int32_t block, gone;    // tokens in a block, or in a ring (0: no ring); blocks or tokens at the front that are not there
    int64_t held;           // tokens before this call
    inline int64_t at(int64_t i) const {
        if (!blocks) return block ? i % block : i - gone;
        if (block & (block - 1)) return (int64_t)blocks[i / block - gone] * block + i % block;
        const int shift = __builtin_ctz((unsigned)block);  // a division takes longer than all the rest
        return ((int64_t)blocks[(i >> shift) - gone] << shift) + (i & (block - 1));
    }
    // How many stand side by side from there on, at least.
    inline int64_t together(int64_t i) const { return block ? block - i % block : INT64_MAX; }
};

struct Attention {
    int heads, kv_heads, window;  // window 0: none
    float scale, softcap;         // softcap 0: none
    const float *slopes, *sinks;  // or null
};

constexpr int PIECE = 128;

// What a range of keys adds up to: per query the maximum, the sum of weights and the weighted values.
struct Partial {
    float *top, *total, *out;  // (n), (n), (n, value_dim)
};

// A key or a value as it is kept, and the scale of 8 bits.
inline void keep(const float* x, int dim, float* to, float*) { std::memcpy(to, x, sizeof(float) * dim); }
inline void keep(const float* x, int dim, uint16_t* to, float*) {
    for (int d = 0; d < dim; d += WIDTH) store_halves(to + d, load(x + d));
}
inline void keep(const float* x, int dim, int8_t* to, float* scale) {
    floats top = all(0);
    for (int d = 0; d < dim; d += WIDTH) top = max(top, max(load(x + d), -load(x + d)));
    *scale = greatest(top) / 127.0f;
    const float by = std::max(*scale, 1.17549435e-38f);  // a head of zeros has a scale of 0
    for (int d = 0; d < dim; d += WIDTH) {
        const bytes narrow = __builtin_convertvector(__builtin_convertvector(rounded(load(x + d) / by), ints), bytes);
        std::memcpy(to + d, &narrow, sizeof narrow);
    }
}

// D vectors of the values of N queries, from dimension d on: N * D sums, which fit the registers, side by side. Fewer
// would wait for each other.
template <int N, int D, class T>
inline void add_some_values(const T* const* v, int keys, const float* p, float* out, int dim, int d) {  // p: (N, KEYS)
    floats acc[N][D];
    for (int n = 0; n < N; n++)
        for (int i = 0; i < D; i++) acc[n][i] = load(out + n * dim + d + i * WIDTH);
    for (int j = 0; j < keys; j++) {
        if constexpr (N > D) {  // whichever is fewer stays in registers: the values, or the weights
            floats x[D];
            for (int i = 0; i < D; i++) x[i] = widened(v[j] + d + i * WIDTH);
            for (int n = 0; n < N; n++) {
                const floats weight = all(p[n * KEYS + j]);
                for (int i = 0; i < D; i++) acc[n][i] = fused(x[i], weight, acc[n][i]);
            }
        } else {
            floats weight[N];
            for (int n = 0; n < N; n++) weight[n] = all(p[n * KEYS + j]);
            for (int i = 0; i < D; i++) {
                const floats x = widened(v[j] + d + i * WIDTH);
                for (int n = 0; n < N; n++) acc[n][i] = fused(x, weight[n], acc[n][i]);
            }
        }
    }
    for (int n = 0; n < N; n++)
        for (int i = 0; i < D; i++) store(out + n * dim + d + i * WIDTH, acc[n][i]);
}

template <int N, class T>
void add_values(const T* const* v, int keys, const float* p, float* out, int dim) {
    constexpr int SUMS = WIDTH == 16 ? 24 : 12, LEAST = STEP / WIDTH, D = std::min(4, std::max(LEAST, SUMS / N));
    int d = 0;
    for (; d + D * WIDTH <= dim; d += D * WIDTH) add_some_values<N, D>(v, keys, p, out, dim, d);
    for (; d < dim; d += STEP) add_some_values<N, LEAST>(v, keys, p, out, dim, d);
}

template <class T>
void add_all_values(const T* const* v, int keys, const float* p, float* out, int dim, int n) {
    int i = 0;
    for (; i + 6 <= n; i += 6) add_values<6>(v, keys, p + i * KEYS, out + i * dim, dim);
    for (; i + 3 <= n; i += 3) add_values<3>(v, keys, p + i * KEYS, out + i * dim, dim);
    if (n - i == 2) add_values<2>(v, keys, p + i * KEYS, out + i * dim, dim);
    if (n - i == 1) add_values<1>(v, keys, p + i * KEYS, out + i * dim, dim);
}

inline floats lanes() {
    floats v{};
    for (int i = 0; i < WIDTH; i++) v[i] = (float)i;
    return v;
}

// Which of some keys a query sees: those from ``first`` to before ``last``, counted from ``from``.
struct Seen {
    float first, last;
    bool all;
    Seen(const Attention& a, const Query& q, int64_t from, int round)
        : first(a.window ? (float)(q.index - a.window + 1 - from) : -1.0f),
          last((float)(q.index + 1 - from)),
          all(last >= (float)round && first <= 0) {}
};

// Scores of one query as the softmax takes them, in their place; and the highest of them. PLAIN: they are scaled, no more.
template <bool PLAIN>
inline float prepare_some(const Attention& a, const Query& q, const Seen& seen, int64_t from, int round, float* scores) {
    const floats steps = lanes();
    floats best = all(-INFINITY);
    for (int j = 0; j < round; j += WIDTH) {
        floats x = load(scores + j) * a.scale;
        if (!PLAIN) {
            if (a.softcap != 0) x = tanh(x / a.softcap) * a.softcap;
            const floats at = steps + (float)j;
            if (q.slope != 0) x -= q.slope * ((float)(q.index - from) - at);
            if (!seen.all) {
                x = at < seen.last ? x : all(-INFINITY);
                x = at >= seen.first ? x : all(-INFINITY);
            }
            if (q.shown) store(q.shown + from + j, x);
        }
        store(scores + j, x);
        best = max(x, best);
    }
    return greatest(best);
}

inline float prepare(const Attention& a, const Query& q, int64_t from, int round, float* scores) {
    const Seen seen(a, q, from, round);
    const bool plain = a.softcap == 0 && q.slope == 0 && seen.all && !q.shown;
    return plain ? prepare_some<true>(a, q, seen, from, round, scores) : prepare_some<false>(a, q, seen, from, round, scores);
}

// From scores to weights, less than the running maximum; what came before is made smaller where the maximum rises.
inline void weigh(float highest, bool all_seen, int round, float* scores, float* top, float* total, float* out, int width) {
    if (highest == -INFINITY) {  // nothing of these is seen
        std::memset(scores, 0, sizeof(float) * round);
        return;
    }
    const float high = std::max(*top, highest);
    floats sum_of = all(0);
    for (int j = 0; j < round; j += WIDTH) {
        const floats x = load(scores + j);
        floats e = exp(x - high);
        if (!all_seen) e = x == -INFINITY ? all(0) : e;
        store(scores + j, e);
        sum_of += e;
    }
    if (high != *top) {
        const float shrink = *top == -INFINITY ? 0.0f : std::exp(*top - high);
        for (int d = 0; d < width; d += WIDTH) store(out + d, load(out + d) * shrink);
        *total *= shrink;
        *top = high;
    }
    *total += sum(sum_of);
}

// Several queries in turn, so that the processor need not wait for the highest score of one before it begins the next.
inline void weigh_all(const Attention& a, const Query* q, int n, int64_t from, int round, float* scores, Partial to, int width) {
    constexpr int TURN = 4;
    for (int first = 0; first < n; first += TURN) {
        const int end = std::min(n, first + TURN);
        float highest[TURN];
        for (int i = first; i < end; i++) highest[i - first] = prepare(a, q[i], from, round, scores + i * KEYS);
        for (int i = first; i < end; i++)
            weigh(highest[i - first], Seen(a, q[i], from, round).all, round, scores + i * KEYS, to.top + i, to.total + i,
                  to.out + i * width, width);
    }
}

// What many queries read of some keys, widened once for all of them.
template <class T>
const float* const* widen(const T* const* from, int count, int dim, float* room, const float** to) {
    for (int j = 0; j < count; j++, room += dim) {
        for (int d = 0; d < dim; d += WIDTH) store(room + d, widened(from[j] + d));
        to[j] = room;
    }
    return to;
}

inline void multiply(float* x, const float* by, int count) {
    for (int j = 0; j < count; j += WIDTH) store(x + j, load(x + j) * load(by + j));
}

// Asks for keys or values that lie so many further on.
template <class T>
inline void fetch_all(const T* const* x, int count, int dim, int further) {
    for (int j = 0; j < count; j++)
        for (int line = 0; line < dim * (int)sizeof(T); line += 64) fetch((const char*)(x[j] + further * dim) + line);
}

constexpr int MANY = 8;  // queries for which it pays to turn keys, or to widen them once

// Floats that ``attend`` wants beside n * KEYS for the scores.
inline int64_t widened_floats(const LayerStore& s) {
    const int keys = TURNS || s.kept != FLOATS ? s.key_dim : 0, values = s.kept != FLOATS ? s.value_dim : 0;
    return (int64_t)KEYS * (keys + values);
}

// A piece of one key/value head, for n queries that share it: keys [begin, end) are there, and nobody sees others.
// scores: n * KEYS floats; room: widened_floats().
template <class T>
void attend_kept(const Attention& a, const LayerStore& s, const RowLocation& location, int row, int head,
                 const Query* q, int n, int64_t piece, int64_t begin, int64_t end, Partial to, float* scores, float* room) {
    constexpr bool SCALED = sizeof(T) == 1, NARROW = sizeof(T) < sizeof(float);
    const int dim = s.key_dim, width = s.value_dim;
    const int64_t k_first = row * s.k_row + head * s.k_head, v_first = row * s.v_row + head * s.v_head;
    const T *keys = (const T*)s.k + k_first, *values = (const T*)s.v + v_first;
    const bool many = n >= MANY, widens = NARROW && many;
    for (int i = 0; i < n; i++) to.top[i] = -INFINITY, to.total[i] = 0;
    std::memset(to.out, 0, sizeof(float) * n * width);
    for (int64_t from = piece * PIECE; from < std::min(end, (piece + 1) * PIECE); from += KEYS) {
        if (from + KEYS <= begin) continue;
        const int count = (int)std::min<int64_t>(KEYS, end - from), round = (count + STEP - 1) / STEP * STEP;
        const T *k[KEYS], *v[KEYS];
        float k_scale[KEYS], v_scale[KEYS];
        for (int j = std::max<int64_t>(0, begin - from), run; j < count; j += run) {
            const int64_t at = location.at(from + j);
            run = (int)std::min<int64_t>(count - j, location.together(from + j));
            for (int i = 0; i < run; i++) k[j + i] = keys + (at + i) * dim, v[j + i] = values + (at + i) * width;
            for (int i = 0; SCALED && i < run; i++)
                k_scale[j + i] = s.k_scale[k_first / dim + at + i], v_scale[j + i] = s.v_scale[v_first / width + at + i];
        }
        // places that nobody sees are read all the same, so they are those of a key that is there
        const auto repeat = [&](int key, int j) {
            k[j] = k[key], v[j] = v[key];
            if (SCALED) k_scale[j] = k_scale[key], v_scale[j] = v_scale[key];
        };
        for (int j = 0; from + j < begin; j++) repeat((int)(begin - from), j);
        for (int j = count; j < round; j++) repeat(count - 1, j);
        // Few queries read all of it from memory, so what comes next is asked for while something else is computed, and a
        // little at a time: lines that are on their way have few places.
        const int chunk = many ? KEYS : 2 * STEP;
        const float* wide[KEYS];
        const bool turns = TURNS && many;
        if (turns) score_all_turned(q, n, turn_keys(k, round, dim, room), round, dim, scores);
        else if (widens) widen(k, round, dim, room, wide);
        for (int j = 0; j < round && !turns; j += chunk) {
            const int some = std::min(chunk, round - j);
            if (chunk < KEYS) fetch_all(v + j, some, width, 0);
            widens ? score_all(q, n, wide + j, some, dim, scores + j) : score_all(q, n, k + j, some, dim, scores + j);
        }
        for (int i = 0; SCALED && i < n; i++) multiply(scores + i * KEYS, k_scale, round);
        weigh_all(a, q, n, from, round, scores, to, width);
        for (int i = 0; SCALED && i < n; i++) multiply(scores + i * KEYS, v_scale, round);
        if (widens) widen(v, count, width, room + KEYS * dim, wide);
        for (int j = 0; j < count; j += chunk) {
            const int some = std::min(chunk, count - j);
            if (chunk < KEYS && from + KEYS < end) fetch_all(k + j, some, dim, KEYS);  // where they mostly lie
            widens ? add_all_values(wide + j, some, scores + j, to.out, width, n)
                   : add_all_values(v + j, some, scores + j, to.out, width, n);
        }
    }
}

inline void attend(const Attention& a, const LayerStore& s, const RowLocation& location, int row, int head,
                   const Query* q, int n, int64_t piece, int64_t begin, int64_t end, Partial to, float* scores, float* room) {
    const auto run = s.kept == FLOATS ? attend_kept<float> : s.kept == HALVES ? attend_kept<uint16_t> : attend_kept<int8_t>;
    run(a, s, location, row, head, q, n, piece, begin, end, to, scores, room);
}

// The first key a query may see.
inline int64_t first_seen(const Attention& a, int64_t index) {
    return a.window ? std::max<int64_t>(0, index - a.window + 1) : 0;
}

struct Joined {
    float top, total;  // of all scores: the highest, and the sum of what is raised to them, less the highest
};

// Join pieces in order; a sink takes weight and gives nothing.
inline Joined join(const Partial* pieces, int count, int i, int width, const float* sink, float* out) {
    float top = sink ? *sink : -INFINITY;
    for (int c = 0; c < count; c++) top = std::max(top, pieces[c].top[i]);
    float total = sink ? std::exp(*sink - top) : 0.0f;
    for (int d = 0; d < width; d += WIDTH) store(out + d, all(0));
    for (int c = 0; c < count; c++) {
        if (pieces[c].top[i] == -INFINITY) continue;
        const float share = std::exp(pieces[c].top[i] - top);
        total += pieces[c].total[i] * share;
        for (int d = 0; d < width; d += WIDTH)
            store(out + d, load(out + d) + load(pieces[c].out + i * width + d) * share);
    }
    if (total > 0)
        for (int d = 0; d < width; d += WIDTH) store(out + d, load(out + d) / total);
    return {top, total};
}

// From the scores that a watched query has written down to its weights. Keys before ``begin`` were not met.
inline void show(const Query& q, Joined joined, int64_t begin) {
    const int64_t met = begin / KEYS * KEYS, end = q.index + 1;
    std::memset(q.shown, 0, sizeof(float) * (size_t)met);
    for (int64_t j = met; j < end; j += WIDTH) {
        const floats x = load(q.shown + j), weight = exp(x - joined.top) / joined.total;
        store(q.shown + j, x == -INFINITY ? all(0) : weight);  // so for every key, where nothing is seen
    }
}

}  // namespace vantage
