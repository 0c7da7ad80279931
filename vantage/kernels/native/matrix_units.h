// Products of 8 bits by a matrix unit: AMX on x86-64 (Linux), i8mm on aarch64. They give the whole numbers that dot
// products give (bytes.h), so all that follows has the same bits.
//
// Neither has run on a processor of its own: i8mm ran under an emulator, AMX with its instructions in plain code. So they
// are compiled only with VANTAGE_MATRIX_UNITS, which whoever builds asks for (build.py).
#pragma once
#include "linear.h"
#if defined(VANTAGE_MATRIX_UNITS) && defined(VANTAGE_AVX512) && (defined(__AMX_INT8__) || defined(VANTAGE_INTRINSICS))
#define VANTAGE_AMX 1
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
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

constexpr int REGISTER_ROWS = 16;  // of a tile register

#if defined(VANTAGE_AMX)
constexpr bool HAS_TILES = true;

// Linux gives the registers, 8 KiB for each thread, to a process that asks for them; once is enough, for all threads.
inline bool tiles_permitted() {
#if defined(VANTAGE_INTRINSICS)
    return true;
#elif defined(__linux__)
    constexpr int ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18;
    static const bool permitted = !syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA);
    return permitted;
#else
    return false;
#endif
}

struct TileConfig {  // as the processor reads it
    uint8_t palette, first_row, unused[14];
    uint16_t bytes[16];  // of a row
    uint8_t rows[16];
};
static_assert(sizeof(TileConfig) == 64, "as the processor reads it");

// The registers, set up for inputs of GROUPS words; where they are not permitted, not ready. Sums are those of 16 rows and 16
// outputs. A register's row would hold 64 inputs; weights have a scale for every 32 or 16 of them, and no sum goes further.
template <int GROUPS>
struct TileRegisters {
    static_assert(PANEL == 2 && WIDTH == REGISTER_ROWS, "sums are in 0 and 1, rows in 2, weights in 3 and 4");
    const bool ready = tiles_permitted();
    TileRegisters() {
        if (!ready) return;
        alignas(64) TileConfig config{};
        config.palette = 1;
        for (int i = 0; i < 5; i++) config.rows[i] = i < 3 ? REGISTER_ROWS : GROUPS, config.bytes[i] = i == 2 ? 4 * GROUPS : 64;
        before_tiles(&config);
        _tile_loadconfig(&config);
    }
    ~TileRegisters() {
        if (ready) _tile_release();
    }
    TileRegisters(const TileRegisters&) = delete;

    // GCC before 14 does not know what these instructions read: what was written must lie in memory by then.
    static inline void before_tiles(const void* read) { asm volatile("" : : "r"(read) : "memory"); }
};

struct TileSums {
    template <int GROUPS, int M>
    static inline void add(const Panel& panel, int b, int part, const RoundedBytes* block, int64_t blocks, ints (&s)[M][PANEL]) {
        static_assert(M == REGISTER_ROWS, "all rows of a register");
        const ints(*w)[PANEL] = panel.pairs + b * GROUPS;
        ints sums[M][PANEL];
        TileRegisters<GROUPS>::before_tiles(w);
        _tile_zero(0);
        _tile_zero(1);
        _tile_loadd(2, block->x + 4 * part * GROUPS, blocks * sizeof *block);
        _tile_loadd(3, w[0], sizeof w[0]);
        _tile_loadd(4, w[0] + 1, sizeof w[0]);
        _tile_dpbssd(0, 2, 3);  // numbers without a sign have 6 bits at most
        _tile_dpbssd(1, 2, 4);
        _tile_stored(0, sums[0], sizeof sums[0]);
        _tile_stored(1, sums[0] + 1, sizeof sums[0]);
        for (int m = 0; m < M; m++)
            for (int v = 0; v < PANEL; v++) s[m][v] += sums[m][v];
    }
};
#else
constexpr bool HAS_TILES = false;
template <int GROUPS> struct TileRegisters {};
struct TileSums;
#endif

enum MatrixUnit : int { NO_UNIT, I8MM, AMX };

// The unit that products of 8 bits use, now that the system was asked.
inline MatrixUnit matrix_unit() {
#if defined(VANTAGE_I8MM)
    return I8MM;
#elif defined(VANTAGE_AMX)
    return tiles_permitted() ? AMX : NO_UNIT;
#else
    return NO_UNIT;
#endif
}

}  // namespace vantage
