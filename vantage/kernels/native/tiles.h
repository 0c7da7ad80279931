// Attention of many queries over many keys, tile by tile with a running maximum (Dao et al. 2022): neither the scores, nor a
// mask, nor a bias is ever as large as queries times keys, and tiles that nobody sees are left out.
//
// Queries are turned once for each of their tiles, so that the scores of a tile are (keys, queries): a lane is a query.
// Maxima and sums then go over vectors and not within them, and neither keys nor weights are ever turned.
#pragma once
#include <algorithm>
#include "vectors.h"

namespace vantage {

constexpr int EDGE = 64;  // queries and keys of a tile; TILE of tiles.py

enum TileBias : int32_t { NO_BIAS, OF_DISTANCE, OF_QUERY_AND_DISTANCE, OF_QUERY_AND_KEY };

struct TileCall {
    const float *q, *k, *v;
    float *out, *lse;            // lse: or null
    const int32_t *q_at, *k_at;  // (4, rows, places): order, position, segment, first of its chunk; places fill whole tiles
    const int32_t* ranges;       // (rows, tiles of queries, 4): the keys' tiles from, whole from, whole to, to
    const float *bias, *by_key;  // (heads, length); (batch, heads, queries, length); (batch, heads, queries) and (…, keys)
    const float* sinks;          // or null
    int64_t q_step[3], k_step[3], v_step[3], out_step[3];  // from one row, head and token to the next, in numbers
    int64_t rows;                // of places: 1 or batch
    int64_t batch, heads, kv_heads, queries, keys, key_dim, value_dim;
    int64_t first, length;       // of a bias by distance: what its first entry stands for, and how many there are
    int32_t bias_kind, running;  // running: queries of a tile stand one after another
    int32_t causal, window, chunk, prefix, segments, sink_of_query;
    float scale, softcap, cool;  // cool: 1 / temperature
    int64_t query_tiles() const { return (queries + EDGE - 1) / EDGE; }
    int64_t key_tiles() const { return (keys + EDGE - 1) / EDGE; }
    int64_t padded() const { return (value_dim + 15) / 16 * 16; }
};

struct TokenPlaces {  // of one row
    const int32_t *order, *pos, *segment, *chunk;
    TokenPlaces(const int32_t* at, int64_t row, int64_t rows, int64_t tiles) {
        const int64_t plane = rows * tiles * EDGE, from = row * tiles * EDGE;
        order = at + from, pos = order + plane, segment = pos + plane, chunk = segment + plane;
    }
};

// Floats for a thread: turned queries, scores, values, what queries have got so far.
inline int64_t tile_room(const TileCall& c) { return EDGE * (c.key_dim + EDGE + 2 * c.padded()); }

// N rows of a times D vectors of b: y = a b, or y += a b. All N * D sums stay in registers. Steps are from one row of a to
// the next, and from one number of a row to the next.
template <int N, int D, bool ADD>
inline void multiply_tile(const float* a, int64_t a_row, int64_t a_next, const float* b, int64_t b_row, int depth, float* y,
                          int64_t y_row) {
    floats acc[N][D];
    for (int n = 0; n < N; n++)
        for (int i = 0; i < D; i++) acc[n][i] = ADD ? load(y + n * y_row + i * WIDTH) : all(0);
    for (int j = 0; j < depth; j++) {
        floats x[D];
        for (int i = 0; i < D; i++) x[i] = load(b + j * b_row + i * WIDTH);
        for (int n = 0; n < N; n++) {
            const floats weight = all(a[n * a_row + j * a_next]);
            for (int i = 0; i < D; i++) acc[n][i] = fused(x[i], weight, acc[n][i]);
        }
    }
    for (int n = 0; n < N; n++)
        for (int i = 0; i < D; i++) store(y + n * y_row + i * WIDTH, acc[n][i]);
}

#if defined(VANTAGE_AVX512) || defined(VANTAGE_NEON)
constexpr int TILE_ROWS = 8;  // of one product: 16 of 32 registers hold sums
#else
constexpr int TILE_ROWS = 4;  // 8 of 16
#endif

template <int D>
inline void score_lanes(const float* k, int64_t k_row, int keys, const float* turned, int dim, float* scores) {
    int n = 0;
    for (; n + TILE_ROWS <= keys; n += TILE_ROWS)
        multiply_tile<TILE_ROWS, D, false>(k + n * k_row, k_row, 1, turned, EDGE, dim, scores + n * EDGE, EDGE);
    for (; n < keys; n++) multiply_tile<1, D, false>(k + n * k_row, k_row, 1, turned, EDGE, dim, scores + n * EDGE, EDGE);
}

// (keys, queries): the scores of some keys with the queries of a tile, a multiple of WIDTH of them.
inline void score_tile(const float* k, int64_t k_row, int keys, const float* turned, int dim, int lanes, float* scores) {
    int x = 0;
    for (; x + 2 * WIDTH <= lanes; x += 2 * WIDTH) score_lanes<2>(k, k_row, keys, turned + x, dim, scores + x);
    if (x < lanes) score_lanes<1>(k, k_row, keys, turned + x, dim, scores + x);
}

// (queries, value_dim): what the weights (keys, queries) take of the values, added.
inline void gather_tile(const float* weights, int keys, const float* values, int64_t width, int queries, float* out) {
    constexpr int D = 2;
    int64_t x = 0;
    for (; x + D * WIDTH <= width; x += D * WIDTH)  // the same columns for all queries: they stay in the first cache
        for (int n = 0; n < queries; n += TILE_ROWS)
            multiply_tile<TILE_ROWS, D, true>(weights + n, 1, EDGE, values + x, width, keys, out + n * width + x, width);
    for (; x < width; x += WIDTH)
        for (int n = 0; n < queries; n += TILE_ROWS)
            multiply_tile<TILE_ROWS, 1, true>(weights + n, 1, EDGE, values + x, width, keys, out + n * width + x, width);
}

struct TileQueries {  // the queries of a tile, as scores meet them
    TokenPlaces at;
    int64_t from;            // the first of them
    const float* distances;  // of a bias by distance: of the head, or of the first query
    const float* by_query;   // EDGE numbers
    const float* by_key;
    int count;
};

// The bias of WIDTH queries, from lane i on, with one key.
inline floats bias_of(const TileCall& c, const TileQueries& q, int i, const TokenPlaces& keys, int64_t key) {
    if (c.bias_kind == OF_QUERY_AND_KEY) return load(q.by_query + i) + q.by_key[key];
    const int32_t* pos = q.at.pos + q.from + i;
    // entries go by query less key, so that queries in a run meet entries in a run
    if (c.running) return load(q.distances + (pos[0] - keys.pos[key] - c.first));
    floats out{};
    for (int lane = 0; lane < WIDTH; lane++) {
        const int64_t entry = std::max<int64_t>(0, std::min<int64_t>(c.length - 1, (int64_t)pos[lane] - keys.pos[key] - c.first));
        const int64_t own = c.bias_kind == OF_QUERY_AND_DISTANCE ? std::min(i + lane, q.count - 1) * c.length : 0;
        out[lane] = q.distances[own + entry];
    }
    return out;
}

// Which of WIDTH queries, from lane i on, see one key.
inline ints seeing(const TileCall& c, const TileQueries& q, int i, const TokenPlaces& keys, int64_t key) {
    const int32_t order = keys.order[key], segment = keys.segment[key];
    if (order < 0) return all_ints(0);
    const ints mine = load_ints(q.at.order + q.from + i), filled = mine >= 0;
    ints seen = filled;
    if (c.causal) seen &= mine >= order;
    if (c.window) seen &= (mine - order < c.window) & (order - mine < c.window);
    if (c.chunk) seen &= load_ints(q.at.chunk + q.from + i) == keys.chunk[key];
    if (c.prefix && order - segment < c.prefix) seen = filled;
    if (c.segments) seen &= load_ints(q.at.segment + q.from + i) == segment;
    return seen;
}

// Scores of a tile to weights, less than the running maximum; what came before is made smaller where that rises.
inline void weigh_tile(const TileCall& c, const TileQueries& q, const TokenPlaces& keys, int64_t from, int count, bool whole,
                       int lanes, float* scores, float* top, float* total, float* out, int64_t width) {
    for (int i = 0; i < lanes; i += WIDTH) {
        floats best = all(-INFINITY);
        for (int j = 0; j < count; j++) {
            floats x = load(scores + j * EDGE + i);
            if (c.softcap != 0) x = tanh(x) * (c.softcap * c.cool);
            if (c.bias_kind != NO_BIAS) x += bias_of(c, q, i, keys, from + j);
            if (!whole) x = seeing(c, q, i, keys, from + j) ? x : all(-INFINITY);
            store(scores + j * EDGE + i, x);
            best = max(x, best);
        }
        const floats before = load(top + i), high = max(best, before);
        const floats base = high == -INFINITY ? all(0) : high;  // of who has seen nothing yet
        floats sum_of = all(0);
        for (int j = 0; j < count; j++) {
            const floats x = load(scores + j * EDGE + i);
            floats e = exp(x - base);
            if (!whole) e = x == -INFINITY ? all(0) : e;
            store(scores + j * EDGE + i, e);
            sum_of += e;
        }
        const floats shrink = before == -INFINITY ? all(0) : exp(before - base);
        store(total + i, load(total + i) * shrink + sum_of);
        store(top + i, high);
        for (int lane = 0; lane < WIDTH; lane++)
            if (shrink[lane] != 1.0f)
                for (int64_t x = 0; x < width; x += WIDTH)
                    store(out + (i + lane) * width + x, load(out + (i + lane) * width + x) * shrink[lane]);
    }
}

// What the queries of one tile get. room: tile_room() floats.
inline void attend_tile(const TileCall& c, int64_t piece, float* room) {
    const int64_t tiles = c.query_tiles(), tile = tiles - 1 - piece % tiles;  // the last see most: they come first
    const int64_t head = piece / tiles % c.heads, b = piece / tiles / c.heads, at_row = c.rows == 1 ? 0 : b;
    const int64_t from = tile * EDGE, d = c.key_dim, e = c.value_dim, width = c.padded(), kv = head / (c.heads / c.kv_heads);
    const int64_t first = (b * c.heads + head) * c.queries + from;  // of (batch, heads, queries)
    const int count = (int)std::min<int64_t>(EDGE, c.queries - from), lanes = (count + WIDTH - 1) / WIDTH * WIDTH;
    const TokenPlaces keys(c.k_at, at_row, c.rows, c.key_tiles());
    float *turned = room, *scores = turned + EDGE * d, *values = scores + EDGE * EDGE, *out = values + EDGE * width;
    float top[EDGE], total[EDGE], by_query[EDGE] = {};
    std::fill_n(top, EDGE, -INFINITY), std::fill_n(total, EDGE, 0.0f);
    std::memset(out, 0, sizeof(float) * EDGE * width);
    const float scale = c.softcap != 0 ? c.scale / c.softcap : c.scale * c.cool;
    const float* q = c.q + b * c.q_step[0] + head * c.q_step[1] + from * c.q_step[2];
    for (int64_t x = 0; x < d; x++)
        for (int i = 0; i < EDGE; i++) turned[x * EDGE + i] = i < count ? q[i * c.q_step[2] + x] * scale : 0.0f;
    TileQueries queries{{c.q_at, at_row, c.rows, tiles}, from, nullptr, by_query, nullptr, count};
    if (c.bias_kind == OF_DISTANCE) queries.distances = c.bias + head * c.length;
    if (c.bias_kind == OF_QUERY_AND_DISTANCE) queries.distances = c.bias + first * c.length;
    if (c.bias_kind == OF_QUERY_AND_KEY) {
        std::copy_n(c.bias + first, count, by_query);
        queries.by_key = c.by_key + (b * c.heads + head) * c.keys;
    }
    const float *k = c.k + b * c.k_step[0] + kv * c.k_step[1], *v = c.v + b * c.v_step[0] + kv * c.v_step[1];
    const int32_t* range = c.ranges + (at_row * tiles + tile) * 4;
    for (int64_t t = range[0]; t < range[3]; t++) {
        const int64_t start = t * EDGE;
        const int there = (int)std::min<int64_t>(EDGE, c.keys - start);
        for (int j = 0; j < there; j++) {  // side by side; empty places are 0, whatever lies there
            const bool filled = keys.order[start + j] >= 0;
            if (filled) std::memcpy(values + j * width, v + (start + j) * c.v_step[2], sizeof(float) * e);
            std::memset(values + j * width + (filled ? e : 0), 0, sizeof(float) * (filled ? width - e : width));
        }
        score_tile(k + start * c.k_step[2], c.k_step[2], there, turned, (int)d, lanes, scores);
        weigh_tile(c, queries, keys, start, there, t >= range[1] && t < range[2], lanes, scores, top, total, out, width);
        gather_tile(scores, there, values, width, count, out);
    }
    for (int i = 0; i < count; i++) {
        float* to = c.out + b * c.out_step[0] + head * c.out_step[1] + (from + i) * c.out_step[2];
        float high = top[i], sum_of = total[i];
        if (c.sinks) {  // a sink takes weight and gives nothing
            const float sink = c.sinks[c.sink_of_query ? first + i : head];
            high = std::max(high, sink);
            sum_of = top[i] == -INFINITY ? 0.0f : sum_of * std::exp(top[i] - high);
            sum_of += sink == -INFINITY ? 0.0f : std::exp(sink - high);
        }
        const float share = top[i] == -INFINITY ? 0.0f : std::exp(top[i] - high) / sum_of;
        for (int64_t x = 0; x < e; x++) to[x] = out[i * width + x] * share;
        if (c.lse) c.lse[first + i] = sum_of > 0 ? high + std::log(sum_of) : -INFINITY;
    }
}

}  // namespace vantage
