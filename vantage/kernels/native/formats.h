// How quantised weights are laid out for the products: GGUF's numbers and scales, unchanged, in another order.
//
// LANES outputs make a group. A group's block holds, for the inputs of one GGUF block (32, or 256 of the K kinds):
//   the scales of the LANES outputs side by side; K kinds have a half-precision scale (and one for minima) for
//   all 256 inputs, and a byte for every 16 or 32 of them;
//   then for every 32 inputs words of 32 bits, one for each output, with the lower bits of the numbers, and words
//   with their higher bits. Inputs 2p and 2p + 1 stand at the same place of a word's lower and upper half: shifted and
//   masked, a word is the pair of 16-bit numbers that multiply_pairs takes. Of 6 bits eight pairs stand in three words:
//   at the lower and at the upper end of each half, and the last two in the 4 bits that are left between them.
// SUPER groups lie side by side block by block, so that a product reads its weights as one stream.
//
//   w = scale * (n - OFFSET), or scale * n + minimum, or scale * TABLE[n].
#pragma once
#include <algorithm>
#include <type_traits>
#include "vectors.h"

namespace vantage {

enum Format : int32_t {
    DENSE, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4, F16, BF16
};

constexpr int LANES = 16, BLOCK = 32, SUPER = 4;

struct Matrix {
    const void* data;
    const float* bias;  // or null
    int32_t format, outputs, inputs, unused;
};

constexpr int8_t IQ4_TABLE[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr int8_t E2M1_TABLE[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};  // in halves

template <int LOW_, int HIGH_, int SUB_, bool WIDE_, bool MINIMUM_, int OFFSET_, int TABLE_ = 0>
struct Form {
    static constexpr int LOW = LOW_, HIGH = HIGH_;  // bits
    static constexpr int SUB = SUB_;                // inputs that share a scale
    static constexpr bool WIDE = WIDE_;             // K kinds: blocks of 256 inputs
    static constexpr bool MINIMUM = MINIMUM_;
    static constexpr int OFFSET = OFFSET_;
    static constexpr int TABLE = TABLE_;  // 1: IQ4, 2: E2M1
    static constexpr int INPUTS = WIDE ? 256 : BLOCK, SUBS = INPUTS / SUB, PARTS = BLOCK / SUB;
    static constexpr bool NIBBLES = WIDE && MINIMUM && SUB == 16;  // scale and minimum share a byte
    static constexpr int FACTORS = WIDE ? SUBS * (MINIMUM && !NIBBLES ? 2 : 1) : 0;  // bytes for each output
    static constexpr int SCALES = LANES * (2 * (1 + MINIMUM) + FACTORS);
    static constexpr int LOW_BYTES = LANES * BLOCK * LOW / 8, HIGH_BYTES = LANES * BLOCK * HIGH / 8;
    static constexpr int NUMBERS = LOW_BYTES + HIGH_BYTES;  // of 32 inputs
    static constexpr int BYTES = SCALES + INPUTS / BLOCK * NUMBERS;

    // The numbers of inputs 2P and 2P + 1 of WIDTH outputs. numbers: of these 32 inputs and the first of the outputs.
    template <int P>
    static inline ints pair(const uint8_t* numbers) {
        if constexpr (LOW == 6) return six_bits<P % 8>(numbers + 4 * LANES * 3 * (P / 8));
        constexpr int PER = 16 / LOW, AT = LOW * (P % PER);
        const ints word = load_ints(numbers + 4 * LANES * (P / PER));
        if constexpr (TABLE != 0) {
            const ints index = shifted<AT - 8>(word) & 0x0f000f00;
            return looked_up(index, TABLE == 1 ? IQ4_TABLE : E2M1_TABLE);
        } else if constexpr (LOW == 8) {
            return AT ? (ints)((shorts)word >> 8) : (ints)(((shorts)word << 8) >> 8);
        } else {
            constexpr int32_t MASK = (1 << LOW) - 1;
            // at the upper end of a half nothing stands above that would have to be masked
            const ints low = AT + LOW == 16 ? (ints)((words)word >> AT) : shifted<AT>(word) & (MASK << 16 | MASK);
            if constexpr (HIGH == 0) return low;
            constexpr int PER_HIGH = HIGH ? 16 / HIGH : 1, AT_HIGH = HIGH * (P % PER_HIGH);
            constexpr int32_t TOP = ((1 << HIGH) - 1) << LOW;
            const ints more = load_ints(numbers + LOW_BYTES + 4 * LANES * (P / PER_HIGH));
            return low | (shifted<AT_HIGH - LOW>(more) & (TOP << 16 | TOP));
        }
    }

    // The scale and the minimum of part ``sub`` of a block, for WIDTH outputs. at: the block's first byte and output.
    static inline floats scale(const uint8_t* block, int lane, int sub) {
        if constexpr (!WIDE) return TABLE == 2 ? bfloats(block + 2 * lane) : halves(block + 2 * lane);
        const ints factor = signed_bytes(block + (MINIMUM ? 4 : 2) * LANES + sub * LANES + lane);
        return halves(block + 2 * lane) * to_floats(NIBBLES ? factor & 15 : factor);
    }
    static inline floats minimum(const uint8_t* block, int lane, int sub) {
        const uint8_t* minima = block + 2 * LANES;
        if constexpr (!WIDE) return halves(minima + 2 * lane);
        const uint8_t* factors = minima + 2 * LANES + (NIBBLES ? sub : SUBS + sub) * LANES;
        const ints factor = signed_bytes(factors + lane);
        return -halves(minima + 2 * lane) * to_floats(NIBBLES ? (factor >> 4) & 15 : factor);
    }

  private:
    template <int P>
    static inline ints six_bits(const uint8_t* three) {
        const auto word = [&](int i) { return load_ints(three + 4 * LANES * i); };
        if constexpr (P < 6) return P % 2 ? (ints)((words)word(P / 2) >> 10) : word(P / 2) & 0x003f003f;
        const ints low = (word(P == 6 ? 0 : 2) >> 6) & 0x000f000f;
        return low | ((word(1) >> (P == 6 ? 2 : 4)) & 0x00300030);
    }
    template <int BY>
    static inline ints shifted(ints x) {
        if constexpr (BY >= 0) return x >> BY;
        else return x << -BY;
    }
};

using FormQ8_0 = Form<8, 0, 32, false, false, 0>;
using FormQ4_0 = Form<4, 0, 32, false, false, 8>;
using FormQ4_1 = Form<4, 0, 32, false, true, 0>;
using FormQ5_0 = Form<4, 1, 32, false, false, 16>;
using FormQ5_1 = Form<4, 1, 32, false, true, 0>;
using FormQ2_K = Form<2, 0, 16, true, true, 0>;
using FormQ3_K = Form<2, 1, 16, true, false, 4>;
using FormQ4_K = Form<4, 0, 32, true, true, 0>;
using FormQ5_K = Form<4, 1, 32, true, true, 0>;
using FormQ6_K = Form<6, 0, 16, true, false, 32>;
using FormIQ4_NL = Form<4, 0, 32, false, false, 0, 1>;
using FormIQ4_XS = Form<4, 0, 32, true, false, 0, 1>;
using FormMXFP4 = Form<4, 0, 32, false, false, 0, 2>;

// Where the groups of a matrix lie.
template <class F>
struct Groups {
    const uint8_t* data;
    int64_t count, blocks;
    explicit Groups(const Matrix& w)
        : data((const uint8_t*)w.data), count((w.outputs + LANES - 1) / LANES), blocks(w.inputs / F::INPUTS) {}
    int wide(int64_t group) const { return (int)std::min<int64_t>(SUPER, count - group / SUPER * SUPER); }
    int64_t step(int64_t group) const { return (int64_t)wide(group) * F::BYTES; }  // from a block to the next
    const uint8_t* first(int64_t group) const {
        return data + (group / SUPER * SUPER) * blocks * F::BYTES + group % SUPER * F::BYTES;
    }
    // Where the outputs before this one end, those that lie side by side with it included.
    const uint8_t* end(int64_t output) const {
        const int64_t groups = (output + LANES * SUPER - 1) / (LANES * SUPER) * SUPER;
        return data + std::min(groups, count) * blocks * F::BYTES;
    }
};

// for_each<N>(f): f(0), f(1), … with numbers that the compiler knows.
template <int I, int N, class Function>
inline void for_each_from(Function&& f) {
    if constexpr (I < N) {
        f(std::integral_constant<int, I>{});
        for_each_from<I + 1, N>(f);
    }
}

}  // namespace vantage
