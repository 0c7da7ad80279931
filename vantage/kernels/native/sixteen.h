// y = W x (+ y) with weights of 16 bits, half precision or bfloat16, as the file has them.
//
// A group's block holds, for each of 32 inputs, the numbers of its LANES outputs side by side. They are widened in
// registers and meet activations in float32; products are added in the order of the inputs, one sum for each output.
// So an output never depends on the number of rows, threads or neighbours here either.
#pragma once
#include "linear.h"

namespace vantage {

template <bool BRAIN>
struct SixteenBits {
    static constexpr int INPUTS = BLOCK, BYTES = 2 * LANES * BLOCK;

    // Those of WIDTH outputs for one of the 32 inputs.
    static inline floats weights(const uint8_t* block, int input, int lane) {
        const uint8_t* at = block + 2 * (input * LANES + lane);
        return BRAIN ? bfloats(at) : halves(at);
    }
    static inline float weight(uint16_t bits) {
        if (!BRAIN) return half(bits);
        const uint32_t word = (uint32_t)bits << 16;
        float f;
        std::memcpy(&f, &word, 4);
        return f;
    }
    static inline bool finite(uint16_t bits) {
        const int exponent = BRAIN ? 0x7f80 : 0x7c00;
        return (bits & exponent) != exponent;
    }
};

using FormF16 = SixteenBits<false>;
using FormBF16 = SixteenBits<true>;

constexpr int FAR_AHEAD = 65536;  // bytes; nearer was tried with quantised weights alone (linear.h)

// A few rows: G vectors of outputs side by side hide the latency of a sum.
template <class F, int G, int M>
void few_sixteen(const Matrix& w, const Groups<F>& groups, int out, const Rows& r) {
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
    const float* x = r.x;
    for (int64_t b = 0; b < groups.blocks; b++, x += BLOCK) {
        for (int i = 0; i < BLOCK; i++) {
            for (int g = 0; g < G; g += LANES / WIDTH) fetch(base[g] + 2 * LANES * i + FAR_AHEAD);
            floats v[M];
            for (int m = 0; m < M; m++) v[m] = all(x[m * r.ldx + i]);
            for (int g = 0; g < G; g++) {
                const floats weights = F::weights(base[g], i, lane[g]);
                for (int m = 0; m < M; m++) acc[m][g] = fused(weights, v[m], acc[m][g]);
            }
        }
        for (int g = 0; g < G; g++) base[g] += step;
    }
    for (int g = 0; g < G; g++)
        for (int m = 0; m < M; m++) finish(r, m, out + g * WIDTH, w.outputs - out - g * WIDTH, acc[m][g], w.bias);
}

// Outputs [begin, end), of whole groups.
template <class F, int M>
void few_sixteen_rows(const Matrix& w, int begin, int end, const Rows& r) {
    constexpr int G = M == 1 ? 4 : 2;
    const Groups<F> groups(w);
    for (int out = begin; out < end;) {
        const int left = (out / LANES / SUPER * SUPER + groups.wide(out / LANES)) * LANES - out;
        if (left >= G * WIDTH && out + G * WIDTH <= end) few_sixteen<F, G, M>(w, groups, out, r), out += G * WIDTH;
        else few_sixteen<F, 1, M>(w, groups, out, r), out += WIDTH;
    }
}

// Many rows: some inputs of PANEL vectors of outputs are widened once, and meet TILE rows at a time.
constexpr int WIDE_INPUTS = 256;
struct WidePanel {
    floats weights[WIDE_INPUTS][PANEL];
};
static_assert(sizeof(WidePanel) <= sizeof(Panel), "it lies where a panel lies");

template <int M>
void multiply_wide(const WidePanel& panel, int inputs, const float* x, int64_t ldx, floats (*total)[PANEL]) {
    floats acc[M][PANEL];
    for (int m = 0; m < M; m++)
        for (int v = 0; v < PANEL; v++) acc[m][v] = total[m][v];
    for (int i = 0; i < inputs; i++) {
        floats w[PANEL];
        for (int v = 0; v < PANEL; v++) w[v] = panel.weights[i][v];
        for (int m = 0; m < M; m++) {
            const floats a = all(x[m * ldx + i]);
            for (int v = 0; v < PANEL; v++) acc[m][v] = fused(w[v], a, acc[m][v]);
        }
    }
    for (int m = 0; m < M; m++)
        for (int v = 0; v < PANEL; v++) total[m][v] = acc[m][v];
}

template <class F>
void many_sixteen(const Matrix& w, int begin, int end, const Rows& r, float* room) {
    const Groups<F> groups(w);
    WidePanel& panel = *(WidePanel*)room;
    floats(*total)[PANEL] = (floats(*)[PANEL])(room + sizeof(Panel) / sizeof(float));
    const int last = std::min(end, (w.outputs + WIDTH - 1) / WIDTH * WIDTH);
    for (int out = begin; out < last; out += PANEL * WIDTH) {
        const int vectors = std::min(PANEL, (last - out) / WIDTH);
        if (vectors < PANEL) std::memset((void*)&panel, 0, sizeof panel);
        for (int m = 0; m < r.m; m++)
            for (int v = 0; v < PANEL; v++) total[m][v] = all(0);
        for (int k = 0; k < w.inputs; k += WIDE_INPUTS) {
            const int count = std::min(w.inputs - k, WIDE_INPUTS);
            for (int v = 0; v < vectors; v++) {
                const int64_t group = (out + v * WIDTH) / LANES;
                const uint8_t* base = groups.first(group) + k / BLOCK * groups.step(group);
                for (int i = 0; i < count; i++)
                    panel.weights[i][v] =
                        F::weights(base + i / BLOCK * groups.step(group), i % BLOCK, (out + v * WIDTH) % LANES);
            }
            int m = 0;
            for (; m + 6 <= r.m; m += 6) multiply_wide<6>(panel, count, r.x + m * r.ldx + k, r.ldx, total + m);
            for (; m + 2 <= r.m; m += 2) multiply_wide<2>(panel, count, r.x + m * r.ldx + k, r.ldx, total + m);
            for (; m < r.m; m++) multiply_wide<1>(panel, count, r.x + m * r.ldx + k, r.ldx, total + m);
        }
        for (int m = 0; m < r.m; m++)
            for (int v = 0; v < vectors; v++)
                finish(r, m, out + v * WIDTH, w.outputs - out - v * WIDTH, total[m][v], w.bias);
    }
}

template <class F>
void sixteen(const Matrix& w, int begin, int end, const Rows& r, float* room) {
    if (r.m > FEW) return many_sixteen<F>(w, begin, end, r, room);
    for (int out = begin, next; out < end; out = next) {
        next = std::min(end, (out / (SUPER * LANES) + 1) * SUPER * LANES);
        for (int m = 0; m < r.m;) {
            const int some = r.m - m >= 4 ? 4 : r.m - m >= 2 ? 2 : 1;
            const Rows rows{r.x + m * r.ldx, r.ldx, r.y + m * r.ldy, r.ldy, some, r.add, r.until, r.next};
            if (some == 4) few_sixteen_rows<F, 4>(w, out, next, rows);
            else if (some == 2) few_sixteen_rows<F, 2>(w, out, next, rows);
            else few_sixteen_rows<F, 1>(w, out, next, rows);
            m += some;
        }
    }
}

template <class F>
void sixteen_row(const Matrix& w, int64_t i, float* to) {
    const Groups<F> groups(w);
    const int64_t group = i / LANES;
    const uint8_t* base = groups.first(group) + 2 * (i % LANES);
    for (int64_t b = 0; b < groups.blocks; b++, base += groups.step(group))
        for (int k = 0; k < BLOCK; k++) {
            uint16_t bits;
            std::memcpy(&bits, base + 2 * LANES * k, 2);
            to[b * BLOCK + k] = F::weight(bits);
        }
}

// Outputs [begin, end), of whole groups, each from its row of a tensor; false: a number is not finite.
template <class F>
bool repack_sixteen(const uint8_t* const* rows, const Matrix& w, int64_t begin, int64_t end) {
    const Groups<F> groups(w);
    bool finite = true;
    for (int64_t row = begin; row < end; row++) {
        const int64_t group = row / LANES;
        uint8_t* to = const_cast<uint8_t*>(groups.first(group)) + 2 * (row % LANES);
        for (int64_t b = 0; b < groups.blocks; b++, to += groups.step(group)) {
            uint16_t numbers[BLOCK] = {};  // the last group is filled up
            if (row < w.outputs) std::memcpy(numbers, rows[row] + 2 * b * BLOCK, sizeof numbers);
            for (int k = 0; k < BLOCK; k++) {
                finite &= F::finite(numbers[k]);
                std::memcpy(to + 2 * LANES * k, numbers + k, 2);
            }
        }
    }
    return finite;
}

}  // namespace vantage
