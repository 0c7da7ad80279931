// y = W x (+ y): weights of 4 bits, 8 bits or 32.
//
// Packed weights (PACK4, PACK8) stand in groups of 16 outputs, a vector's width, and blocks of 32 inputs:
//   per block: 16 half-precision scales, PACK4 then 16 minima; then words of 32 bits, one for each output, that
//   hold the whole numbers of inputs j and j + 16 in their lower and upper half: PACK4 of four j, PACK8 of two.
//   w = scale * n (+ minimum). SUPER groups lie side by side block by block, so that a product reads its
//   weights as one stream.
// They meet activations of 16 bits with a scale for every block of 32: an error of 1/65,534 of the block's largest,
// where 8 bits, as others have it, would make 1/254. Sums within a block are whole numbers and exact; blocks are
// added in order. So an output never depends on the number of rows, threads or neighbours: a row's result is
// that of the row alone.
#pragma once
#include <algorithm>
#include "vectors.h"

namespace vantage {

enum Format : int32_t { DENSE = 0, PACK8 = 1, PACK4 = 2 };
constexpr int AHEAD = 8192;  // bytes
constexpr int LANES = 16, BLOCK = 32, SUPER = 4;

struct Matrix {
    const void* data;
    const float* bias;  // or null
    int32_t format, outputs, inputs, unused;
};

#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int TILE = 12;  // rows of x that one pass over a panel serves
#else
constexpr int TILE = 4;
#endif

struct Eight {
    static constexpr int BYTES = 2 * LANES + LANES * BLOCK, PAIRS = 2;
    static constexpr bool MINIMUM = false;
    static inline const uint8_t* numbers(const uint8_t* block) { return block + 2 * LANES; }
    static inline i16x pair(i16x words, int t) {  // inputs j and j + 16 of every output, 16 bits each
        const i32x halves = (i32x)words;
        return (i16x)(t ? halves >> 8 : (halves << 8) >> 8);
    }
};

struct Four {
    static constexpr int BYTES = 4 * LANES + LANES * BLOCK / 2, PAIRS = 4;
    static constexpr bool MINIMUM = true;
    static inline const uint8_t* numbers(const uint8_t* block) { return block + 4 * LANES; }
    static inline i16x pair(i16x words, int t) { return (words >> 4 * t) & 0x000f000f; }
};

template <class F>
inline i16x words(const uint8_t* block, int i) {
    i16x v;
    std::memcpy(&v, F::numbers(block) + 64 * i, 64);
    return v;
}

struct Rows {  // the activations of one call
    const float* x;
    int64_t ldx;
    float* y;
    int64_t ldy;
    int m;
    bool add;
};

struct Rounded {  // the same in 16 bits: for every row and block 16 pairs (j, j + 16), a scale and a sum
    int32_t* pairs;  // (m, inputs / 2)
    float* scales;   // (m, inputs / 32)
    float* sums;     // (m, inputs / 32)
};

inline void round_row(const float* x, int inputs, const Rounded& to, int row) {
    const int blocks = inputs / BLOCK;
    for (int b = 0; b < blocks; b++) {
        const v16 low = load(x + b * BLOCK), high = load(x + b * BLOCK + LANES);
        const v16 top = max(max(low, -low), max(high, -high));
        const float most = greatest(top), inverse = most > 0 ? 32767.0f / most : 0.0f;
        // adding and subtracting 3 * 2^22 rounds to the nearest whole number
        const i16x u = __builtin_convertvector((low * inverse + 12582912.0f) - 12582912.0f, i16x);
        const i16x v = __builtin_convertvector((high * inverse + 12582912.0f) - 12582912.0f, i16x);
        const i16x both = (u & 0xffff) | (v << 16);
        std::memcpy(to.pairs + ((int64_t)row * blocks + b) * LANES, &both, 64);
        to.scales[(int64_t)row * blocks + b] = most / 32767.0f;
        to.sums[(int64_t)row * blocks + b] = sum(low + high);
    }
}

inline void finish(const Rows& r, int row, int out, int count, v16 acc, const float* bias) {
    float* y = r.y + row * r.ldy + out;
    if (count == LANES) {
        if (bias) acc += load(bias + out);
        store(y, r.add ? load(y) + acc : acc);
        return;
    }
    float a[LANES];
    store(a, acc);
    for (int i = 0; i < count; i++) y[i] = (r.add ? y[i] : 0.0f) + (bias ? a[i] + bias[out + i] : a[i]);
}

// What a block adds to an output: its whole number times both scales, and the minimum times the inputs' sum.
template <class F>
inline v16 scaled(v16 acc, i16x s, v16 d, v16 low, const Rounded& x, int64_t at) {
    acc = fused(__builtin_convertvector(s, v16), d * x.scales[at], acc);
    return F::MINIMUM ? fused(low, all(x.sums[at]), acc) : acc;
}

// A few rows: the weights are unpacked in registers. G groups side by side hide the latency of a sum.
template <class F, int G, int M>
void few(const Matrix& w, const uint8_t* first, int64_t step, int out, const Rows& r, const Rounded& x) {
    const int64_t blocks = w.inputs / BLOCK;
    v16 acc[M][G];
    for (int m = 0; m < M; m++)
        for (int g = 0; g < G; g++) acc[m][g] = all(0);
    for (int64_t b = 0; b < blocks; b++) {
        const uint8_t* base = first + b * step;
        i16x s[M][G];
        for (int m = 0; m < M; m++)
            for (int g = 0; g < G; g++) s[m][g] = i16x{};
        const int32_t* pairs = x.pairs + b * LANES;
        for (int i = 0; i < BLOCK / 2 / F::PAIRS; i++)
            for (int g = 0; g < G; g++) {
                const i16x w16 = words<F>(base + g * F::BYTES, i);
                __builtin_prefetch(F::numbers(base + g * F::BYTES) + 64 * i + AHEAD);  // the stream goes on
                for (int t = 0; t < F::PAIRS; t++) {
                    const i16x p = F::pair(w16, t);
                    for (int m = 0; m < M; m++)
                        s[m][g] = multiply_pairs(s[m][g], p, pairs[m * blocks * LANES + i * F::PAIRS + t]);
                }
            }
        for (int g = 0; g < G; g++) {
            const uint16_t* scale = (const uint16_t*)(base + g * F::BYTES);
            const v16 d = halves(scale), low = F::MINIMUM ? halves(scale + LANES) : all(0);
            for (int m = 0; m < M; m++) acc[m][g] = scaled<F>(acc[m][g], s[m][g], d, low, x, m * blocks + b);
        }
    }
    for (int g = 0; g < G; g++)
        for (int m = 0; m < M; m++)
            finish(r, m, out + g * LANES, std::min(LANES, w.outputs - out - g * LANES), acc[m][g], w.bias);
}

// Many rows: a group is unpacked once into a panel, which then meets TILE rows at a time.
template <class F>
void unpack(const Matrix& w, const uint8_t* first, int64_t step, int32_t* panel, float* scales) {
    for (int b = 0; b < w.inputs / BLOCK; b++) {
        const uint8_t* base = first + b * step;
        for (int j = 0; j < BLOCK / 2; j++) {
            const i16x p = F::pair(words<F>(base, j / F::PAIRS), j % F::PAIRS);
            std::memcpy(panel + (b * (BLOCK / 2) + j) * LANES, &p, 64);
        }
        store(scales + 2 * b * LANES, halves((const uint16_t*)base));
        store(scales + (2 * b + 1) * LANES, F::MINIMUM ? halves((const uint16_t*)base + LANES) : all(0));
    }
}

template <class F, int M>
void many(const Matrix& w, const int32_t* panel, const float* scales, int out, const Rows& r, const Rounded& x, int row) {
    const int64_t blocks = w.inputs / BLOCK;
    float total[M][LANES] __attribute__((aligned(64)));
    std::memset(total, 0, sizeof total);
    for (int64_t b = 0; b < blocks; b++) {
        i16x s[M];
        for (int m = 0; m < M; m++) s[m] = i16x{};
        const int32_t* pairs = x.pairs + (row * blocks + b) * LANES;
        for (int j = 0; j < BLOCK / 2; j++) {
            i16x p;
            std::memcpy(&p, panel + (b * (BLOCK / 2) + j) * LANES, 64);
            for (int m = 0; m < M; m++) s[m] = multiply_pairs(s[m], p, pairs[m * blocks * LANES + j]);
        }
        const v16 d = load(scales + 2 * b * LANES), low = load(scales + (2 * b + 1) * LANES);
        for (int m = 0; m < M; m++)
            store(total[m], scaled<F>(load(total[m]), s[m], d, low, x, (row + m) * blocks + b));
    }
    for (int m = 0; m < M; m++)
        finish(r, row + m, out, std::min(LANES, w.outputs - out), load(total[m]), w.bias);
}

template <class F, int M>
void few_groups(const Matrix& w, const uint8_t* first, int64_t step, int groups, int out, const Rows& r, const Rounded& x) {
    constexpr int G = M <= 2 ? 4 : M <= 4 ? 2 : 1;  // 8 running sums
    int g = 0;
    for (; g + G <= groups; g += G) few<F, G, M>(w, first + g * F::BYTES, step, out + g * LANES, r, x);
    for (; g < groups; g++) few<F, 1, M>(w, first + g * F::BYTES, step, out + g * LANES, r, x);
}

// The groups [begin, end) of a packed matrix; panel: room for inputs / 2 * LANES and inputs / 16 * LANES numbers.
template <class F>
void packed(const Matrix& w, int begin, int end, const Rows& r, const Rounded& x, float* panel) {
    const int groups = (w.outputs + LANES - 1) / LANES, blocks = w.inputs / BLOCK;
    for (int at = begin; at < end;) {
        const int super = at / SUPER * SUPER, wide = std::min(SUPER, groups - super);
        const int n = std::min(end, super + wide) - at, out = at * LANES;
        const int64_t step = (int64_t)wide * F::BYTES;
        const uint8_t* first = (const uint8_t*)w.data + (int64_t)super * blocks * F::BYTES + (at - super) * F::BYTES;
        switch (r.m) {
            case 1: few_groups<F, 1>(w, first, step, n, out, r, x); break;
            case 2: few_groups<F, 2>(w, first, step, n, out, r, x); break;
            case 3: few_groups<F, 3>(w, first, step, n, out, r, x); break;
            case 4: few_groups<F, 4>(w, first, step, n, out, r, x); break;
            case 5: few_groups<F, 5>(w, first, step, n, out, r, x); break;
            case 6: few_groups<F, 6>(w, first, step, n, out, r, x); break;
            case 7: few_groups<F, 7>(w, first, step, n, out, r, x); break;
            case 8: few_groups<F, 8>(w, first, step, n, out, r, x); break;
            default:
                int32_t* numbers = (int32_t*)panel;
                float* scales = panel + (int64_t)w.inputs / 2 * LANES;
                for (int g = 0; g < n; g++) {
                    unpack<F>(w, first + g * F::BYTES, step, numbers, scales);
                    int row = 0;
                    for (; row + TILE <= r.m; row += TILE) many<F, TILE>(w, numbers, scales, out + g * LANES, r, x, row);
                    for (; row + 4 <= r.m; row += 4) many<F, 4>(w, numbers, scales, out + g * LANES, r, x, row);
                    for (; row < r.m; row++) many<F, 1>(w, numbers, scales, out + g * LANES, r, x, row);
                }
        }
        at += n;
    }
}

// Rows of float32 weights as torch keeps them: N outputs at a time against M rows of x.
template <int N, int M>
void dense_tile(const Matrix& w, int out, const Rows& r, int row) {
    const int k = w.inputs, whole = k / LANES * LANES;
    const float* data = (const float*)w.data + (int64_t)out * k;
    v16 acc[M][N];
    for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++) acc[m][n] = all(0);
    for (int i = 0; i < whole; i += LANES) {
        v16 x[M];
        for (int m = 0; m < M; m++) x[m] = load(r.x + (row + m) * r.ldx + i);
        for (int n = 0; n < N; n++) {
            const float* p = data + (int64_t)n * k + i;
            __builtin_prefetch(p + 256);
            const v16 v = load(p);
            for (int m = 0; m < M; m++) acc[m][n] = fused(v, x[m], acc[m][n]);
        }
    }
    for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++) {
            float total = sum(acc[m][n]);
            for (int i = whole; i < k; i++) total += data[(int64_t)n * k + i] * r.x[(row + m) * r.ldx + i];
            if (w.bias) total += w.bias[out + n];
            float* y = r.y + (row + m) * r.ldy + out + n;
            *y = r.add ? *y + total : total;
        }
}

inline void dense(const Matrix& w, int begin, int end, const Rows& r) {
    int out = begin * LANES;
    const int last = std::min(end * LANES, w.outputs);
    for (; out + 4 <= last; out += 4) {
        int row = 0;
        for (; row + 4 <= r.m; row += 4) dense_tile<4, 4>(w, out, r, row);
        for (; row < r.m; row++) dense_tile<4, 1>(w, out, r, row);
    }
    for (; out < last; out++)
        for (int row = 0; row < r.m; row++) dense_tile<1, 1>(w, out, r, row);
}

constexpr int SPLIT_ROWS = 32;  // with so many rows for each thread they share out rows, else outputs

// One thread's share. scratch: see scratch_floats.
inline void linear(const Matrix& w, Rows r, int thread, int threads, float* scratch) {
    const int groups = (w.outputs + LANES - 1) / LANES;
    int begin = (int)((int64_t)groups * thread / threads), end = (int)((int64_t)groups * (thread + 1) / threads);
    if (w.format == DENSE) return dense(w, begin, end, r);
    if (r.m >= SPLIT_ROWS * threads) {
        const int first = (int)((int64_t)r.m * thread / threads), last = (int)((int64_t)r.m * (thread + 1) / threads);
        r.x += first * r.ldx, r.y += first * r.ldy, r.m = last - first;
        begin = 0, end = groups;
    }
    const int64_t blocks = w.inputs / BLOCK;
    float* room = scratch + (int64_t)w.inputs / 2 * LANES + blocks * 2 * LANES;
    const Rounded x{(int32_t*)room, room + r.m * blocks * LANES, room + r.m * blocks * (LANES + 1)};
    for (int m = 0; m < r.m; m++) round_row(r.x + m * r.ldx, w.inputs, x, m);
    if (w.format == PACK4) packed<Four>(w, begin, end, r, x, scratch);
    else packed<Eight>(w, begin, end, r, x, scratch);
}

// Row i of the matrix itself, (inputs): an embedding.
template <class F>
void unpacked_row(const Matrix& w, int64_t i, float* to) {
    const int64_t groups = (w.outputs + LANES - 1) / LANES, blocks = w.inputs / BLOCK, g = i / LANES, lane = i % LANES;
    const int64_t super = g / SUPER * SUPER, wide = std::min<int64_t>(SUPER, groups - super);
    for (int64_t b = 0; b < blocks; b++) {
        const uint8_t* base = (const uint8_t*)w.data + (super * blocks + b * wide + g - super) * F::BYTES;
        float d[LANES], low[LANES];
        store(d, halves((const uint16_t*)base));
        store(low, F::MINIMUM ? halves((const uint16_t*)base + LANES) : all(0));
        for (int j = 0; j < BLOCK / 2; j++) {
            const i16x both = F::pair(words<F>(base, j / F::PAIRS), j % F::PAIRS);
            to[b * BLOCK + j] = d[lane] * (float)(int16_t)both[lane] + low[lane];
            to[b * BLOCK + j + 16] = d[lane] * (float)(both[lane] >> 16) + low[lane];
        }
    }
}

// A panel with its scales, and the rounded rows.
inline int64_t scratch_floats(int inputs, int rows) {
    const int64_t blocks = inputs / BLOCK;
    return (int64_t)inputs / 2 * LANES + blocks * 2 * LANES + (int64_t)rows * blocks * (LANES + 2) + 64;
}

}  // namespace vantage
