// Attention of new queries over the keys and values of a cache, where they lie: in one run or in blocks.
//
// Keys are cut into pieces of 128, counted from the first token of a row. Within a piece they are met 64 at a time
// with a running maximum (Milakov and Gimelshein 2018); pieces are then joined in order (Dao et al. 2023, "flash
// decoding"). What a query gets is always computed in the same steps, whether it comes alone or in a prompt, in a
// batch or not, on one thread or many: the same bits.
#pragma once
#include <algorithm>
#include <vector>
#include "vectors.h"

namespace vantage {

struct LayerStore {  // the keys and values of one layer, in floats
    float *k, *v;
    int64_t k_head, v_head;  // from one key/value head to the next
    int64_t k_row, v_row;    // from one row of the batch to the next; 0: all rows share a pool
    int32_t key_dim, value_dim;
};

struct RowLocation {  // where a row's tokens stand
    const int32_t* blocks;  // null: one after another
    int32_t block, gone;    // tokens in a block; blocks at the front that were given back
    int64_t held;           // tokens before this call
    inline int64_t at(int64_t i) const { return blocks ? (int64_t)blocks[i / block - gone] * block + i % block : i; }
};

struct Attention {
    int heads, kv_heads, window;  // window 0: none
    float scale, softcap;         // softcap 0: none
    const float *slopes, *sinks;  // or null
};

constexpr int KEYS = 64, PIECE = 128;

struct Query {  // one query head of one token
    const float* q;
    int64_t index;  // which token of its row
    float slope;
};

// What a range of keys adds up to: per query the maximum, the sum of weights and the weighted values.
struct Partial {
    float *top, *total, *out;  // (n), (n), (n, value_dim)
};

template <int N>
void add_values(const float* const* v, int keys, const float* p, float* out, int dim) {  // p: (N, KEYS)
    for (int d = 0; d < dim; d += 16) {
        v16 acc[N];
        for (int n = 0; n < N; n++) acc[n] = load(out + n * dim + d);
        for (int j = 0; j < keys; j++) {
            const v16 x = load(v[j] + d);
            for (int n = 0; n < N; n++) acc[n] = fused(x, all(p[n * KEYS + j]), acc[n]);
        }
        for (int n = 0; n < N; n++) store(out + n * dim + d, acc[n]);
    }
}

// A piece of one key/value head, for n queries that share it: keys [begin, end) are there, and nobody sees others.
// scratch: n * KEYS floats.
inline void attend(const Attention& a, const LayerStore& s, const RowLocation& location, int row, int head,
                   const Query* q, int n, int64_t piece, int64_t begin, int64_t end, Partial to, float* scores) {
    static const v16 steps = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const int dim = s.key_dim, width = s.value_dim;
    const float* keys = s.k + row * s.k_row + head * s.k_head;
    const float* values = s.v + row * s.v_row + head * s.v_head;
    for (int i = 0; i < n; i++) to.top[i] = -INFINITY, to.total[i] = 0;
    std::memset(to.out, 0, sizeof(float) * n * width);
    for (int64_t from = piece * PIECE; from < std::min(end, (piece + 1) * PIECE); from += KEYS) {
        if (from + KEYS <= begin) continue;
        const int count = (int)std::min<int64_t>(KEYS, end - from), round = (count + 15) / 16 * 16;
        const float *k[KEYS], *v[KEYS];
        for (int j = 0; j < round; j++) {
            // places that nobody sees are read all the same, so they are those of a key that is there
            const int64_t at = location.at(std::max(begin, std::min(from + j, end - 1)));
            k[j] = keys + at * dim;
            v[j] = values + at * width;
            // keys and values come from memory, in pieces of a page or less, too short for the processor to foresee
            const int64_t ahead = location.at(std::max(begin, std::min(from + KEYS + j, end - 1)));
            for (int d = 0; d < dim; d += 16) __builtin_prefetch(keys + ahead * dim + d, 0, 2);
            for (int d = 0; d < width; d += 16) __builtin_prefetch(values + ahead * width + d, 0, 2);
        }
        for (int j = 0; j < round; j++)
            for (int i = 0; i < n; i++) {
                v16 r = all(0);
                for (int d = 0; d < dim; d += 16) r = fused(load(k[j] + d), load(q[i].q + d), r);
                scores[i * KEYS + j] = sum(r);
            }
        for (int i = 0; i < n; i++) {
            float* row_scores = scores + i * KEYS;
            const float last = (float)(q[i].index + 1 - from);  // keys from here on are not seen
            const float first = a.window ? (float)(q[i].index - a.window + 1 - from) : -1.0f;
            v16 top = all(-INFINITY);
            for (int j = 0; j < round; j += 16) {
                v16 x = load(row_scores + j) * a.scale;
                if (a.softcap != 0) x = tanh(x / a.softcap) * a.softcap;
                const v16 at = steps + (float)j;
                if (q[i].slope != 0) x -= q[i].slope * ((float)(q[i].index - from) - at);
                x = at < last ? x : all(-INFINITY);
                x = at >= first ? x : all(-INFINITY);
                store(row_scores + j, x);
                top = max(top, x);
            }
            const float high = std::max(to.top[i], greatest(top));
            if (greatest(top) == -INFINITY) {  // nothing of these is seen
                std::memset(row_scores, 0, sizeof(float) * round);
                continue;
            }
            v16 total = all(0);
            for (int j = 0; j < round; j += 16) {
                const v16 x = load(row_scores + j);
                const v16 e = x == -INFINITY ? all(0) : exp(x - high);
                store(row_scores + j, e);
                total += e;
            }
            const float shrink = to.top[i] == -INFINITY ? 0.0f : std::exp(to.top[i] - high);
            if (shrink != 1.0f)
                for (int d = 0; d < width; d += 16) store(to.out + i * width + d, load(to.out + i * width + d) * shrink);
            to.total[i] = to.total[i] * shrink + sum(total);
            to.top[i] = high;
        }
        int i = 0;
        for (; i + 4 <= n; i += 4) add_values<4>(v, count, scores + i * KEYS, to.out + i * width, width);
        if (n - i == 3) add_values<3>(v, count, scores + i * KEYS, to.out + i * width, width), i = n;
        for (; i < n; i++) add_values<1>(v, count, scores + i * KEYS, to.out + i * width, width);
    }
}

// The first key a query may see, and one past the last.
inline int64_t first_seen(const Attention& a, int64_t index) {
    return a.window ? std::max<int64_t>(0, index - a.window + 1) : 0;
}

// Join pieces in order; a sink takes weight and gives nothing.
inline void join(const Partial* pieces, int count, int i, int width, const float* sink, float* out) {
    float top = sink ? *sink : -INFINITY;
    for (int c = 0; c < count; c++) top = std::max(top, pieces[c].top[i]);
    float total = sink ? std::exp(*sink - top) : 0.0f;
    for (int d = 0; d < width; d += 16) store(out + d, all(0));
    for (int c = 0; c < count; c++) {
        if (pieces[c].top[i] == -INFINITY) continue;
        const float share = std::exp(pieces[c].top[i] - top);
        total += pieces[c].total[i] * share;
        for (int d = 0; d < width; d += 16)
            store(out + d, load(out + d) + load(pieces[c].out + i * width + d) * share);
    }
    if (total > 0)
        for (int d = 0; d < width; d += 16) store(out + d, load(out + d) / total);
}

}  // namespace vantage
