// Matrix units: which there are, and products of 8 bits by i8mm (aarch64). AMX (x86-64) is in amx.h. They give the whole numbers
// that dot products give (bytes.h), so all that follows has the same bits.
//
// i8mm has run under an emulator only. They are compiled with VANTAGE_MATRIX_UNITS (build.py).
#pragma once
#include "linear.h"
#if defined(VANTAGE_MATRIX_UNITS) && defined(VANTAGE_AVX512) && (defined(__AMX_INT8__) || defined(VANTAGE_INTRINSICS))
#define VANTAGE_AMX 1
#elif defined(VANTAGE_MATRIX_UNITS) && defined(VANTAGE_NEON) && defined(__ARM_FEATURE_MATMUL_INT8)
#define VANTAGE_I8MM 1
#endif

namespace vantage {

struct RoundedBytes {  // 32 activations; of every four in the order 0, 2, 1, 3
    int8_t x[BLOCK];
    float scale;
    float sum, sums[2];  // as in RoundedBlock
    int32_t total, totals[2], unused;
    inline ints four(int g) const {
        int32_t word;
        std::memcpy(&word, x + 4 * g, 4);
        return all_ints(word);
    }
};
static_assert(sizeof(RoundedBytes) <= sizeof(RoundedBlock), "they lie in the same place");

// A unit adds to s what part b of a panel, GROUPS words of four inputs, makes with M rows. ``part``: which of a block's it is.

#if defined(VANTAGE_I8MM)
struct MatrixSums {  // two rows and two outputs of eight inputs in one instruction
    // Of four outputs: eight inputs of the first two side by side, then of the last two.
    static inline void arrange(Panel& panel, int words, int vectors) {
        for (int i = 0; i < words; i += 2)
            for (int v = 0; v < vectors; v++) {
                const int32x4_t first = (int32x4_t)panel.pairs[i][v], second = (int32x4_t)panel.pairs[i + 1][v];
                panel.pairs[i][v] = (ints)vzip1q_s32(first, second);
                panel.pairs[i + 1][v] = (ints)vzip2q_s32(first, second);
            }
    }

    template <int GROUPS, int M>
    static inline void add(const Panel& panel, int b, int part, const RoundedBytes* block, int64_t blocks, ints (&s)[M][PANEL]) {
        const ints(*w)[PANEL] = panel.pairs + b * GROUPS;
        int32x4_t sums[(M + 1) / 2][PANEL][2] = {};
        for (int g = 0; g < GROUPS; g += 2)
            for (int m = 0; m < M; m += 2) {
                // a row that has no other is taken twice
                const RoundedBytes *one = block + m * blocks, *other = m + 1 < M ? one + blocks : one;
                const int from = 4 * (part * GROUPS + g);
                const int8x16_t rows = vcombine_s8(vld1_s8(one->x + from), vld1_s8(other->x + from));
                for (int v = 0; v < PANEL; v++)
                    for (int h = 0; h < 2; h++)
                        sums[m / 2][v][h] = vmmlaq_s32(sums[m / 2][v][h], rows, (int8x16_t)w[g + h][v]);
            }
        for (int m = 0; m < M; m++)
            for (int v = 0; v < PANEL; v++) {
                const int32x4_t *both = sums[m / 2][v];
                s[m][v] += m % 2 ? (ints)vcombine_s32(vget_high_s32(both[0]), vget_high_s32(both[1]))
                                 : (ints)vcombine_s32(vget_low_s32(both[0]), vget_low_s32(both[1]));
            }
    }
};
#endif

}  // namespace vantage
