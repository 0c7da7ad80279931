// y = W x (+ y): weights in GGUF's blocks (formats.h), or in float32.
//
// Quantised weights meet activations of 16 bits with a scale for every block of 32: an error of 1/65,534 of the
// block's largest, where 8 bits, as others have it, would make 1/254. Sums under one scale are whole numbers and
// exact; scaled, they are added in the order of the inputs. So an output never depends on the number of rows, threads
// or neighbours: a row's result is that of the row alone.
#pragma once
#if defined(__linux__)
#include <unistd.h>
#endif
#include "formats.h"

namespace vantage {

constexpr int AHEAD = 32768;                  // bytes, of weights that will be wanted in the second cache
constexpr int NEAR_AHEAD = 8192;              // and in the first, where it holds them beside what is worked on
constexpr int LARGE_FIRST_CACHE = 48 << 10;
constexpr int PANEL = 2;                      // vectors of outputs that many rows meet at a time
constexpr int PANEL_INPUTS = 512;             // of a panel: with a tile of rows it fits the first cache
constexpr int BYTE_PANEL_INPUTS = 768;        // the most of one that holds bytes, if that spares a panel of few inputs
constexpr int TILE = WIDTH == 8 ? 6 : 12;     // rows that meet a panel at a time: two sums for each in registers
constexpr int FEW = 12;                       // rows for which weights are unpacked in registers, four at a time
constexpr int ROWS_AHEAD = 16;                // whose outputs are asked for before they are written
constexpr int REGISTER_ROWS = 16;             // of a matrix unit (amx.h): sums of many rows have room for a multiple of it

inline int64_t in_registers(int64_t rows) { return (rows + REGISTER_ROWS - 1) / REGISTER_ROWS * REGISTER_ROWS; }

struct Rows {  // the activations of one call
    const float* x;
    int64_t ldx;
    float* y;
    int64_t ldy;
    int m;
    bool add;
    int until;            // the output at which the weights end that this thread is likely to read: those behind are another's
    const uint8_t* next;  // what it reads after them, or null
};

struct Ahead {  // what is asked for ahead: a thread's own weights, and then those of its next product
    const uint8_t *end, *next;
    // What is read so many bytes after p; p itself where that is not known.
    const uint8_t* of(const uint8_t* p, int64_t bytes) const {
        const int64_t beyond = p + bytes - end;
        return beyond < 0 ? p + bytes : next ? next + beyond : p;
    }
};

struct RoundedBlock {  // 32 activations
    int16_t x[BLOCK];
    float scale;
    float sum, sums[2];           // of x times scale: all, and each half
    int32_t total, totals[2], unused;  // the same in whole numbers
    inline ints pair(int p) const {
        int32_t word;
        std::memcpy(&word, x + 2 * p, 4);
        return all_ints(word);
    }
};

inline void round_row(const float* x, int inputs, RoundedBlock* to) {
    for (int b = 0; b < inputs / BLOCK; b++, x += BLOCK, to++) {
        floats top = all(0);
        for (int i = 0; i < BLOCK; i += WIDTH) top = max(top, max(load(x + i), -load(x + i)));
        const float most = greatest(top), inverse = most > 0 ? 32767.0f / most : 0.0f;
        ints halves[2] = {};
        for (int i = 0; i < BLOCK; i += WIDTH) {
            const ints n = __builtin_convertvector(rounded(load(x + i) * inverse), ints);
            const half_shorts narrow = __builtin_convertvector(n, half_shorts);
            std::memcpy(to->x + i, &narrow, sizeof narrow);
            halves[i / (BLOCK / 2)] += n;
        }
        to->scale = most / 32767.0f;
        for (int h = 0; h < 2; h++) to->totals[h] = sum(halves[h]), to->sums[h] = to->scale * (float)to->totals[h];
        to->total = to->totals[0] + to->totals[1], to->sum = to->scale * (float)to->total;
    }
}

inline void finish(const Rows& r, int row, int out, int count, floats acc, const float* bias) {
    float* y = r.y + row * r.ldy + out;
    if (count >= WIDTH) {
        if (bias) acc += load(bias + out);
        store(y, r.add ? load(y) + acc : acc);
        return;
    }
    for (int i = 0; i < count; i++) y[i] = (r.add ? y[i] : 0.0f) + (bias ? acc[i] + bias[out + i] : acc[i]);
}

// What the sums begin with: the offset of the numbers, times the activations.
template <int PARTS, class Block>
inline ints initial_sum(const Block& x, int part, int offset) {
    return all_ints(-offset * (PARTS == 1 ? x.total : x.totals[part]));
}

// What a part adds to an output: its whole number times both scales, and the minimum times the inputs' sum.
template <bool MINIMUM>
inline floats scaled(floats acc, ints s, floats scale, floats minimum, float x_scale, float x_sum) {
    acc = fused(to_floats(s), scale * x_scale, acc);
    return MINIMUM ? fused(minimum, all(x_sum), acc) : acc;
}
template <int PARTS, bool MINIMUM, class Block>
inline floats scaled(floats acc, ints s, floats scale, floats minimum, const Block& x, int part) {
    return scaled<MINIMUM>(acc, s, scale, minimum, x.scale, PARTS == 1 ? x.sum : x.sums[part]);
}

// Whether one row's weights are asked for into the first cache. With 48 KB (Zen 5) a product reads 64 GB/s for 56, and 43
// for 35 where both processors are one core's threads (before a block was read in its order as well). With 32 KB (Zen 4)
// it would be a fifth slower.
inline bool has_large_first_cache() {
#if defined(_SC_LEVEL1_DCACHE_SIZE)
    return sysconf(_SC_LEVEL1_DCACHE_SIZE) >= LARGE_FIRST_CACHE;
#else
    return false;
#endif
}
inline bool asks_near = has_large_first_cache();

// One row and the SUPER groups of outputs that lie side by side: a group's whole block at a time, so that memory is read in
// its order; as four streams (``few``) blocks of 256 inputs are read at two thirds of the speed (Zen 4). Processors foresee
// this order, but for the ends of pages; of blocks of 32 inputs, asking ahead costs more than it gains. Some sums side by side hide the
// latency of one. They are whole numbers: the same bits as ``few``.
template <class F>
void one_row(const Matrix& w, const Groups<F>& groups, int out, const Rows& r, const RoundedBlock* x) {
    constexpr int V = LANES / WIDTH, SUMS = V < 4 ? 4 / V : 1, BLOCKS = F::INPUTS / BLOCK;
    const uint8_t* base = groups.first(out / LANES);
    const Ahead ahead{groups.end(r.until), r.next};
    floats acc[SUPER][V];
    for (int g = 0; g < SUPER; g++)
        for (int v = 0; v < V; v++) acc[g][v] = all(0);
    for (int64_t b = 0; b < groups.blocks; b++, x += BLOCKS)
        for (int g = 0; g < SUPER; g++, base += F::BYTES) {
            const uint8_t* later = F::INPUTS > BLOCK ? ahead.of(base, asks_near ? NEAR_AHEAD : AHEAD) : nullptr;
            // not in a function of its own: GCC 12 leaves out one that does nothing but this
            for (int line = 0; line < F::SCALES && later; line += 64, later += 64) asks_near ? fetch_near(later) : fetch(later);
            for (int i = 0; i < BLOCKS; i++) {
                const uint8_t* numbers = base + F::SCALES + i * F::NUMBERS;
                for (int line = 0; line < F::NUMBERS && later; line += 64, later += 64) asks_near ? fetch_near(later) : fetch(later);
                for_each_from<0, F::PARTS>([&](auto part) {
                    ints s[SUMS][V];
                    for (int v = 0; v < V; v++) {
                        s[0][v] = F::OFFSET ? initial_sum<F::PARTS>(x[i], part, F::OFFSET) : ints{};
                        for (int k = 1; k < SUMS; k++) s[k][v] = ints{};
                    }
                    for_each_from<part * 16 / F::PARTS, (part + 1) * 16 / F::PARTS>([&](auto p) {
                        const ints a = x[i].pair(p);
                        for (int v = 0; v < V; v++) {
                            const ints pair = F::template pair<p>(numbers + 4 * v * WIDTH);
                            s[p % SUMS][v] = multiply_pairs(s[p % SUMS][v], pair, a);
                        }
                    });
                    for (int v = 0; v < V; v++) {
                        for (int k = 1; k < SUMS; k++) s[0][v] += s[k][v];
                        const int sub = i * F::PARTS + part;
                        const floats scale = F::scale(base, v * WIDTH, sub);
                        const floats minimum = F::MINIMUM ? F::minimum(base, v * WIDTH, sub) : all(0);
                        acc[g][v] = scaled<F::PARTS, F::MINIMUM>(acc[g][v], s[0][v], scale, minimum, x[i], part);
                    }
                });
            }
        }
    for (int g = 0; g < SUPER; g++)
        for (int v = 0; v < V; v++) {
            const int at = out + g * LANES + v * WIDTH;
            finish(r, 0, at, w.outputs - at, acc[g][v], w.bias);
        }
}

// A few rows: the weights are unpacked in registers. G vectors of outputs side by side hide the latency of a sum.
// lane: the first of them, in its group. ``blocks`` blocks of 32 inputs in a row of x.
template <class F, int G, int M>
void few(const Matrix& w, const Groups<F>& groups, int out, const Rows& r, const RoundedBlock* x, int64_t blocks) {
    const int64_t group = out / LANES, step = groups.step(group);
    const uint8_t* base[G];
    int lane[G];
    for (int g = 0; g < G; g++) {
        base[g] = groups.first(group) + (out % LANES + g * WIDTH) / LANES * F::BYTES;
        lane[g] = (out + g * WIDTH) % LANES;
    }
    floats acc[M][G];
    for (int m = 0; m < M; m++)
        for (int g = 0; g < G; g++) acc[m][g] = all(0);
    const Ahead ahead{groups.end(r.until), r.next};
    for (int64_t b = 0; b < groups.blocks; b++) {
        const int64_t by = ahead.of(base[0], std::max<int64_t>(1, AHEAD / step) * step) - base[0];
        for (int g = 0; g < G; g += LANES / WIDTH)
            for (int line = 0; line < F::SCALES; line += 64) fetch(base[g] + line + by);
        for (int i = 0; i < F::INPUTS / BLOCK; i++, x++) {
            const uint8_t* numbers[G];
            for (int g = 0; g < G; g++) {
                numbers[g] = base[g] + F::SCALES + i * F::NUMBERS + 4 * lane[g];
                if (g % (LANES / WIDTH) == 0)  // the stream goes on
                    for (int line = 0; line < F::NUMBERS; line += 64) fetch(numbers[g] + line + by);
            }
            for_each_from<0, F::PARTS>([&](auto part) {
                ints s[M][G];
                for (int m = 0; m < M; m++)
                    for (int g = 0; g < G; g++) s[m][g] = F::OFFSET ? initial_sum<F::PARTS>(x[m * blocks], part, F::OFFSET) : ints{};
                for_each_from<part * 16 / F::PARTS, (part + 1) * 16 / F::PARTS>([&](auto p) {
                    ints a[M];
                    for (int m = 0; m < M; m++) a[m] = x[m * blocks].pair(p);
                    for (int g = 0; g < G; g++) {
                        const ints pair = F::template pair<p>(numbers[g]);
                        for (int m = 0; m < M; m++) s[m][g] = multiply_pairs(s[m][g], pair, a[m]);
                    }
                });
                for (int g = 0; g < G; g++) {
                    const int sub = i * F::PARTS + part;
                    const floats scale = F::scale(base[g], lane[g], sub);
                    const floats minimum = F::MINIMUM ? F::minimum(base[g], lane[g], sub) : all(0);
                    for (int m = 0; m < M; m++)
                        acc[m][g] = scaled<F::PARTS, F::MINIMUM>(acc[m][g], s[m][g], scale, minimum, x[m * blocks], part);
                }
            });
        }
        for (int g = 0; g < G; g++) base[g] += step;
    }
    for (int g = 0; g < G; g++)
        for (int m = 0; m < M; m++) finish(r, m, out + g * WIDTH, w.outputs - out - g * WIDTH, acc[m][g], w.bias);
}

// Outputs [begin, end), of whole groups.
template <class F, int M>
void few_rows(const Matrix& w, int begin, int end, const Rows& r, const RoundedBlock* x, int64_t blocks) {
    constexpr int G = M == 1 ? 4 : M == 2 ? 2 : 1;
    const Groups<F> groups(w);
    for (int out = begin; out < end;) {
        // what lies side by side ends with the super group
        const int left = (out / LANES / SUPER * SUPER + groups.wide(out / LANES)) * LANES - out;
        if (M == 1 && left == SUPER * LANES && out + left <= end) {
            if constexpr (M == 1) one_row(w, groups, out, r, x);
            out += left;
        } else if (left >= G * WIDTH && out + G * WIDTH <= end) {
            few<F, G, M>(w, groups, out, r, x, blocks), out += G * WIDTH;
        } else {
            few<F, 1, M>(w, groups, out, r, x, blocks), out += WIDTH;
        }
    }
}

// Many rows: some inputs of PANEL vectors of outputs are unpacked once, and meet TILE rows at a time.
struct Panel {
    ints pairs[PANEL_INPUTS / 2][PANEL];
    floats scales[BYTE_PANEL_INPUTS / 16][PANEL], minima[BYTE_PANEL_INPUTS / 16][PANEL];
};
static_assert(BYTE_PANEL_INPUTS / 4 <= PANEL_INPUTS / 2, "bytes have room in the pairs' place");

// The inputs of each panel, nearly as many in all of them. What a matrix unit begins with and ends with in each panel is as
// long as several blocks, so that bytes are not divided for a small rest.
template <class F, bool FOURS>
inline int64_t panel_inputs(int inputs) {
    const int panels = FOURS ? std::max(1, (inputs + PANEL_INPUTS / 2) / PANEL_INPUTS) : (inputs + PANEL_INPUTS - 1) / PANEL_INPUTS;
    const int blocks = inputs / F::INPUTS;
    return (int64_t)((blocks + panels - 1) / panels) * F::INPUTS;
}

// Inputs 4P to 4P + 3 of WIDTH outputs as bytes, in the order 0, 2, 1, 3.
template <class F, int P>
inline ints four_bytes(const uint8_t* numbers) {
    constexpr int32_t BYTES = F::LOW == 8 || F::TABLE ? 0x00ff00ff : -1;  // numbers with a sign fill 16 bits
    return (F::template pair<2 * P>(numbers) & BYTES) | (F::template pair<2 * P + 1>(numbers) & BYTES) << 8;
}

// FOURS: bytes, in the first half of the pairs' place.
template <class F, bool FOURS>
void unpack(const Groups<F>& groups, int out, int vectors, int64_t begin, int64_t end, Panel& panel) {
    for (int v = 0; v < vectors; v++) {
        const int64_t group = (out + v * WIDTH) / LANES;
        const int lane = (out + v * WIDTH) % LANES;
        for (int64_t i = begin / BLOCK; i < end / BLOCK; i++) {
            constexpr int PER = F::INPUTS / BLOCK;
            const uint8_t* base = groups.first(group) + i / PER * groups.step(group);
            const uint8_t* numbers = base + F::SCALES + i % PER * F::NUMBERS + 4 * lane;
            const int64_t at = i - begin / BLOCK;
            if constexpr (FOURS) for_each_from<0, 8>([&](auto p) { panel.pairs[at * 8 + p][v] = four_bytes<F, p>(numbers); });
            else for_each_from<0, 16>([&](auto p) { panel.pairs[at * 16 + p][v] = F::template pair<p>(numbers); });
            for (int part = 0; part < F::PARTS; part++) {
                const int sub = (int)(i % PER) * F::PARTS + part;
                panel.scales[at * F::PARTS + part][v] = F::scale(base, lane, sub);
                if (F::MINIMUM) panel.minima[at * F::PARTS + part][v] = F::minimum(base, lane, sub);
            }
        }
    }
}

// total: (M, PANEL), what came before. x: the first of ``count`` blocks of the first row.
template <int PARTS, bool MINIMUM, int M>
void multiply_panel(const Panel& panel, int count, int offset, const RoundedBlock* x, int64_t blocks,
                    floats (*__restrict total)[PANEL]) {
    constexpr int PAIRS = 16 / PARTS;
    for (int b = 0; b < count * PARTS; b++) {
        const int part = PARTS == 1 ? 0 : b % 2;
        const RoundedBlock* block = x + b / PARTS;
        ints s[M][PANEL];
        for (int m = 0; m < M; m++)
            for (int v = 0; v < PANEL; v++) s[m][v] = initial_sum<PARTS>(block[m * blocks], part, offset);
        const ints(*pairs)[PANEL] = panel.pairs + b * PAIRS;
        for (int p = 0; p < PAIRS; p++) {
            ints w[PANEL];
            for (int v = 0; v < PANEL; v++) w[v] = pairs[p][v];
            for (int m = 0; m < M; m++) {
                const ints a = block[m * blocks].pair(part * PAIRS + p);
                for (int v = 0; v < PANEL; v++) s[m][v] = multiply_pairs(s[m][v], w[v], a);
            }
        }
        for (int m = 0; m < M; m++)
            for (int v = 0; v < PANEL; v++)
                total[m][v] = scaled<PARTS, MINIMUM>(total[m][v], s[m][v], panel.scales[b][v], panel.minima[b][v],
                                                     block[m * blocks], part);
    }
}

template <int PARTS, bool MINIMUM>
void multiply_rows(const Panel& panel, int rows, int count, int offset, const RoundedBlock* x, int64_t blocks,
               floats (*total)[PANEL]) {
    static_assert(TILE == 6 || TILE == 12, "every remainder has its case");
    switch (rows) {
        case 0: return;
        case 1: return multiply_panel<PARTS, MINIMUM, 1>(panel, count, offset, x, blocks, total);
        case 2: return multiply_panel<PARTS, MINIMUM, 2>(panel, count, offset, x, blocks, total);
        case 3: return multiply_panel<PARTS, MINIMUM, 3>(panel, count, offset, x, blocks, total);
        case 4: return multiply_panel<PARTS, MINIMUM, 4>(panel, count, offset, x, blocks, total);
        case 5: return multiply_panel<PARTS, MINIMUM, 5>(panel, count, offset, x, blocks, total);
        case TILE: return multiply_panel<PARTS, MINIMUM, TILE>(panel, count, offset, x, blocks, total);
    }
    multiply_panel<PARTS, MINIMUM, 6>(panel, count, offset, x, blocks, total);
    multiply_rows<PARTS, MINIMUM>(panel, rows - 6, count, offset, x + 6 * blocks, blocks, total + 6);
}

// The kinds that there are; compiled once (native.cpp), for all formats.
#if defined(VANTAGE_PART)
extern template void multiply_rows<1, false>(const Panel&, int, int, int, const RoundedBlock*, int64_t, floats (*)[PANEL]);
extern template void multiply_rows<1, true>(const Panel&, int, int, int, const RoundedBlock*, int64_t, floats (*)[PANEL]);
extern template void multiply_rows<2, false>(const Panel&, int, int, int, const RoundedBlock*, int64_t, floats (*)[PANEL]);
extern template void multiply_rows<2, true>(const Panel&, int, int, int, const RoundedBlock*, int64_t, floats (*)[PANEL]);
#endif

// Outputs [begin, end) of many rows, panel by panel. multiply(panel, vectors, k, count, total) adds to the sums of all rows
// what ``count`` blocks from input k on make.
template <class F, bool FOURS, class Multiply>
void many_panels(const Matrix& w, int begin, int end, const Rows& r, float* room, Multiply&& multiply) {
    const Groups<F> groups(w);
    Panel& panel = *(Panel*)room;
    floats(*total)[PANEL] = (floats(*)[PANEL])(room + sizeof(Panel) / sizeof(float));
    const int last = std::min(end, (w.outputs + WIDTH - 1) / WIDTH * WIDTH);
    for (int out = begin; out < last; out += PANEL * WIDTH) {
        const int vectors = std::min(PANEL, (last - out) / WIDTH);
        if (vectors < PANEL) std::memset((void*)&panel, 0, sizeof panel);
        for (int64_t m = 0; m < in_registers(r.m); m++)
            for (int v = 0; v < PANEL; v++) total[m][v] = all(0);
        for (int64_t k = 0, step = panel_inputs<F, FOURS>(w.inputs); k < w.inputs; k += step) {
            const int64_t upto = std::min<int64_t>(w.inputs, k + step);
            unpack<F, FOURS>(groups, out, vectors, k, upto, panel);
            multiply(panel, vectors, k, (int)((upto - k) / BLOCK), total);
        }
        for (int m = 0; m < r.m; m++) {
            // no processor foresees rows that lie so far apart
            if (m + ROWS_AHEAD < r.m)
                for (int i = 0; i < PANEL * WIDTH; i += 16) fetch_to_write(r.y + (m + ROWS_AHEAD) * r.ldy + out + i);
            for (int v = 0; v < vectors; v++)
                finish(r, m, out + v * WIDTH, w.outputs - out - v * WIDTH, total[m][v], w.bias);
        }
    }
}

template <class F>
void many_rows(const Matrix& w, int begin, int end, const Rows& r, const RoundedBlock* x, int64_t blocks, float* room) {
    many_panels<F, false>(w, begin, end, r, room, [&](Panel& panel, int, int64_t k, int count, floats(*total)[PANEL]) {
        for (int m = 0; m < r.m; m += TILE)
            multiply_rows<F::PARTS, F::MINIMUM>(panel, std::min(TILE, r.m - m), count, F::OFFSET,
                                                x + m * blocks + k / BLOCK, blocks, total + m);
    });
}

template <class F>
void quantised(const Matrix& w, int begin, int end, const Rows& r, const RoundedBlock* x, float* room) {
    const int64_t blocks = w.inputs / BLOCK;
    if (r.m > FEW) return many_rows<F>(w, begin, end, r, x, blocks, room);
    for (int out = begin, next; out < end; out = next) {
        next = std::min(end, (out / (SUPER * LANES) + 1) * SUPER * LANES);
        for (int m = 0; m < r.m;) {
            const int some = r.m - m >= 4 ? 4 : r.m - m >= 2 ? 2 : 1;
            const Rows rows{r.x + m * r.ldx, r.ldx, r.y + m * r.ldy, r.ldy, some, r.add, r.until, r.next};
            if (some == 4) few_rows<F, 4>(w, out, next, rows, x + m * blocks, blocks);
            else if (some == 2) few_rows<F, 2>(w, out, next, rows, x + m * blocks, blocks);
            else few_rows<F, 1>(w, out, next, rows, x + m * blocks, blocks);
            m += some;
        }
    }
}

// Rows of float32 weights as torch keeps them: N outputs at a time against M rows of x.
template <int N, int M>
void dense_tile(const Matrix& w, int out, const Rows& r, int row) {
    const int k = w.inputs, whole = k / WIDTH * WIDTH;
    const float* data = (const float*)w.data + (int64_t)out * k;
    floats acc[M][N];
    for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++) acc[m][n] = all(0);
    for (int i = 0; i < whole; i += WIDTH) {
        floats x[M];
        for (int m = 0; m < M; m++) x[m] = load(r.x + (row + m) * r.ldx + i);
        for (int n = 0; n < N; n++) {
            const float* p = data + (int64_t)n * k + i;
            fetch(p + (int64_t)N * k);  // the same place of the outputs that come next
            const floats v = load(p);
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
    int out = begin;
    const int last = std::min(end, w.outputs);
    for (; out + 4 <= last; out += 4) {
        int row = 0;
        for (; row + 2 <= r.m; row += 2) dense_tile<4, 2>(w, out, r, row);
        for (; row < r.m; row++) dense_tile<4, 1>(w, out, r, row);
    }
    for (; out < last; out++)
        for (int row = 0; row < r.m; row++) dense_tile<1, 1>(w, out, r, row);
}

// For a panel and the sums of so many rows.
inline int64_t room_floats(int64_t rows) { return (int64_t)sizeof(Panel) / 4 + in_registers(rows) * PANEL * WIDTH; }

// Row i of the matrix itself, (inputs): an embedding.
template <class F>
void unpacked_row(const Matrix& w, int64_t i, float* to) {
    const Groups<F> groups(w);
    const int64_t group = i / LANES;
    const int lane = (int)(i % LANES), first = lane / WIDTH * WIDTH, at = lane % WIDTH;
    for (int64_t b = 0; b < w.inputs / BLOCK; b++) {
        constexpr int PER = F::INPUTS / BLOCK;
        const uint8_t* base = groups.first(group) + b / PER * groups.step(group);
        const uint8_t* numbers = base + F::SCALES + b % PER * F::NUMBERS + 4 * first;
        for_each_from<0, 16>([&](auto p) {
            constexpr int part = p * F::PARTS / 16;
            const int sub = (int)(b % PER) * F::PARTS + part;
            const shorts pair = (shorts)F::template pair<p>(numbers);
            const float scale = F::scale(base, first, sub)[at];
            const float minimum = F::MINIMUM ? F::minimum(base, first, sub)[at] : 0.0f;
            for (int h = 0; h < 2; h++)
                to[b * BLOCK + 2 * p + h] = scale * (float)(pair[2 * at + h] - F::OFFSET) + minimum;
        });
    }
}

// Compiled apart for each format (format.cpp): a product, and a row of the matrix itself.
using Product = void(const Matrix& w, int begin, int end, const Rows& r, const RoundedBlock* rounded, float* room);
using Lookup = void(const Matrix& w, int64_t i, float* to);

}  // namespace vantage
