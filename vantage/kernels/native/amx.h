// Products of many rows by AMX (x86-64), whose registers hold 16 rows: of activations, of weights, and of their sums.
//
// An activation of 16 bits is two bytes, 256 * high + low. So two products of bytes give the whole numbers that
// multiply_pairs gives, and a prompt has the bits of a single row (linear.h). With 8 bits (bytes.h) one product does.
// A register would hold 64 inputs; weights have a scale for every 32 or 16 of them, and no sum goes further. What limits it is
// not the unit but scaling the sums: while it multiplies one block, vectors scale the one before.
#pragma once
#include <utility>
#include "bytes.h"
#if defined(VANTAGE_AMX) && defined(__linux__) && !defined(VANTAGE_INTRINSICS)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace vantage {

struct TileBlock {  // 32 activations of 16 rows
    int8_t high[REGISTER_ROWS][BLOCK];  // of every four in the order 0, 2, 1, 3; with 8 bits the whole activation
    uint8_t low[REGISTER_ROWS][BLOCK];
    float scale[REGISTER_ROWS];
    float sums[3][REGISTER_ROWS];      // of all inputs, and of each half, times scale
    int32_t totals[3][REGISTER_ROWS];  // the same in whole numbers
};
static_assert(sizeof(TileBlock) <= REGISTER_ROWS * sizeof(RoundedBlock), "they lie in the same place");

// ``wide``: activations have 16 bits.
using TileProduct = void(const Matrix& w, int begin, int end, const Rows& r, const TileBlock* x, bool wide, float* room);

#if defined(VANTAGE_AMX)
constexpr bool HAS_TILES = true;
constexpr int TILE_CONFIG_BYTES = 64;

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

// GCC before 14 does not know what these instructions read and write: memory must be in order around them.
inline void memory_in_order() { asm volatile("" : : : "memory"); }

struct TileConfig {  // as the processor reads it
    uint8_t palette, first_row, unused[14];
    uint16_t bytes[16];  // of a row
    uint8_t rows[16];
};
static_assert(sizeof(TileConfig) == TILE_CONFIG_BYTES, "as the processor reads it");

// Registers 0 to 3: sums of 16 rows and 16 outputs; 4 and 5: rows, of GROUPS words of four inputs; 6: weights.
template <int GROUPS>
struct TileRegisters {
    static_assert(WIDTH == REGISTER_ROWS, "a vector is a row of sums");
    TileRegisters() {
        alignas(TILE_CONFIG_BYTES) TileConfig config{};
        config.palette = 1;
        for (int i = 0; i < 7; i++) config.rows[i] = i < 6 ? REGISTER_ROWS : GROUPS, config.bytes[i] = i == 4 || i == 5 ? 4 * GROUPS : 64;
        asm volatile("" : : "r"(&config) : "memory");
        _tile_loadconfig(&config);
    }
    ~TileRegisters() { _tile_release(); }
    TileRegisters(const TileRegisters&) = delete;
};

// f(0), f(1), … of a register's rows, inlined: what each keeps must stay in registers.
template <class Function, int... R>
inline __attribute__((always_inline)) void each_row(Function&& f, std::integer_sequence<int, R...>) {
    (f(std::integral_constant<int, R>{}), ...);
}
template <class Function>
inline __attribute__((always_inline)) void each_row(Function&& f) {
    each_row(f, std::make_integer_sequence<int, REGISTER_ROWS>{});
}

struct TileSums {
    ints high[REGISTER_ROWS], low[REGISTER_ROWS];
};

// The sums of one vector of outputs and part b of a panel, in the registers of SET.
template <class F, bool WIDE, int SET>
inline void multiply_tile(const Panel& panel, int v, int b, const TileBlock* x) {
    constexpr int GROUPS = 8 / F::PARTS;
    const TileBlock& rows = x[b / F::PARTS];
    const int from = F::PARTS == 1 ? 0 : b % F::PARTS * 4 * GROUPS;
    _tile_loadd(6, panel.pairs[b * GROUPS] + v, sizeof panel.pairs[0]);
    _tile_loadd(4, rows.high[0] + from, BLOCK);
    if constexpr (WIDE) _tile_loadd(5, rows.low[0] + from, BLOCK);
    if constexpr (SET == 0) {
        _tile_zero(0);
        _tile_dpbssd(0, 4, 6);
        if constexpr (WIDE) {
            _tile_zero(1);
            _tile_dpbusd(1, 5, 6);
        }
    } else {
        _tile_zero(2);
        _tile_dpbssd(2, 4, 6);
        if constexpr (WIDE) {
            _tile_zero(3);
            _tile_dpbusd(3, 5, 6);
        }
    }
}

template <bool WIDE, int SET>
inline void store_tile(TileSums& to) {
    if constexpr (SET == 0) {
        _tile_stored(0, to.high, sizeof to.high[0]);
        if constexpr (WIDE) _tile_stored(1, to.low, sizeof to.low[0]);
    } else {
        _tile_stored(2, to.high, sizeof to.high[0]);
        if constexpr (WIDE) _tile_stored(3, to.low, sizeof to.low[0]);
    }
    memory_in_order();
}

template <class F, bool WIDE>
inline __attribute__((always_inline)) void scale_tile(const Panel& panel, int v, int b, const TileBlock* x, const TileSums& sums,
                                                      floats (&total)[REGISTER_ROWS]) {
    const TileBlock& rows = x[b / F::PARTS];
    const int part = F::PARTS == 1 ? 0 : 1 + b % F::PARTS;
    const floats scale = panel.scales[b][v], minimum = F::MINIMUM ? panel.minima[b][v] : all(0);
    alignas(64) int32_t first[REGISTER_ROWS];
    if constexpr (F::OFFSET != 0) {
        const ints begins = load_ints(rows.totals[part]) * -F::OFFSET;
        std::memcpy(first, &begins, sizeof first);
    }
    each_row([&](auto r) __attribute__((always_inline)) {
        ints s = sums.high[r];
        if constexpr (WIDE) s = (s << 8) + sums.low[r];
        if constexpr (F::OFFSET != 0) s += all_ints(first[r]);
        total[r] = scaled<F::MINIMUM>(total[r], s, scale, minimum, rows.scale[r], rows.sums[part][r]);
    });
}

// 16 rows and one vector of outputs. total: PANEL vectors for each row, what came before.
template <class F, bool WIDE>
void multiply_tiles(const Panel& panel, int v, int count, const TileBlock* x, floats (*total)[PANEL]) {
    floats t[REGISTER_ROWS];
    each_row([&](auto r) __attribute__((always_inline)) { t[r] = total[r][v]; });
    alignas(64) TileSums sums[2];
    multiply_tile<F, WIDE, 0>(panel, v, 0, x);
    const int last = count * F::PARTS - 1;
    for (int b = 0; b <= last; b += 2) {
        if (b < last) multiply_tile<F, WIDE, 1>(panel, v, b + 1, x);
        store_tile<WIDE, 0>(sums[0]);
        scale_tile<F, WIDE>(panel, v, b, x, sums[0], t);
        if (b == last) break;
        if (b + 1 < last) multiply_tile<F, WIDE, 0>(panel, v, b + 2, x);
        store_tile<WIDE, 1>(sums[1]);
        scale_tile<F, WIDE>(panel, v, b + 1, x, sums[1], t);
    }
    each_row([&](auto r) __attribute__((always_inline)) { total[r][v] = t[r]; });
}

template <class F, bool WIDE>
void tile_rows(const Matrix& w, int begin, int end, const Rows& r, const TileBlock* x, float* room) {
    const int64_t blocks = w.inputs / BLOCK;
    const TileRegisters<8 / F::PARTS> registers;
    many_panels<F, true>(w, begin, end, r, room, [&](Panel& panel, int vectors, int64_t k, int count, floats(*total)[PANEL]) {
        memory_in_order();
        for (int m = 0; m < r.m; m += REGISTER_ROWS)
            for (int v = 0; v < vectors; v++)
                multiply_tiles<F, WIDE>(panel, v, count, x + m / REGISTER_ROWS * blocks + k / BLOCK, total + m);
    });
}

template <class F>
void tile_product(const Matrix& w, int begin, int end, const Rows& r, const TileBlock* x, bool wide, float* room) {
    wide ? tile_rows<F, true>(w, begin, end, r, x, room) : tile_rows<F, false>(w, begin, end, r, x, room);
}

// 32 inputs of 16 rows as round_row rounds them, to 16 bits (WIDE) or to 8. What is one number for a row is computed for
// all of them at once.
template <bool WIDE>
inline void round_tile(const float* const (&rows)[REGISTER_ROWS], TileBlock& to) {
    constexpr float MOST = WIDE ? 32767.0f : 127.0f;
    constexpr int FOUR = 4;
    const __m128i order = _mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15);
    const auto place = [&](ints numbers, void* at) {
        const bytes narrow = __builtin_convertvector(numbers, bytes);
        _mm_storeu_si128((__m128i*)at, _mm_shuffle_epi8((__m128i)narrow, order));
    };
    alignas(64) float inverse[REGISTER_ROWS];
    for (int r = 0; r < REGISTER_ROWS; r++) {
        const floats one = load(rows[r]), other = load(rows[r] + WIDTH);
        inverse[r] = greatest(max(max(one, -one), max(other, -other)));
    }
    const floats most = load(inverse), scale = most / MOST;
    store(inverse, most > all(0) ? MOST / most : all(0));
    floats begun[2][REGISTER_ROWS / FOUR];
    for (int r = 0; r < REGISTER_ROWS; r += FOUR) {
        floats halves[2][FOUR];
        for (int k = 0; k < FOUR; k++)
            for (int h = 0; h < 2; h++) {
                const floats whole = rounded(load(rows[r + k] + h * WIDTH) * inverse[r + k]);
                const ints numbers = __builtin_convertvector(whole, ints);
                place(WIDE ? numbers >> 8 : numbers, to.high[r + k] + h * WIDTH);
                if (WIDE) place(numbers, to.low[r + k] + h * WIDTH);
                halves[h][k] = whole;
            }
        for (int h = 0; h < 2; h++) begun[h][r / FOUR] = sums_begun(halves[h][0], halves[h][1], halves[h][2], halves[h][3]);
    }
    const floats first = sums_ended(begun[0]), second = sums_ended(begun[1]), totals[3] = {first + second, first, second};  // exact
    store(to.scale, scale);
    for (int part = 0; part < 3; part++) {
        const ints total = __builtin_convertvector(totals[part], ints);
        std::memcpy(to.totals[part], &total, sizeof total);
        store(to.sums[part], scale * totals[part]);
    }
}

// The rows of a product as registers take them: 16 rows of 32 inputs side by side. Rows that are missing in the last 16 are
// zeros.
template <bool WIDE>
void round_tiles(const Rows& rows, int inputs, TileBlock* to) {
    constexpr float zeros[BLOCK] = {};
    for (int m = 0; m < rows.m; m += REGISTER_ROWS)
        for (int i = 0; i < inputs; i += BLOCK, to++) {
            const float* from[REGISTER_ROWS];
            for (int r = 0; r < REGISTER_ROWS; r++) from[r] = m + r < rows.m ? rows.x + (m + r) * rows.ldx + i : zeros;
            round_tile<WIDE>(from, *to);
        }
}
#else
constexpr bool HAS_TILES = false;
inline bool tiles_permitted() { return false; }
template <bool WIDE>
void round_tiles(const Rows&, int, TileBlock*) {}
#endif

template <class F>
constexpr TileProduct* tiles_of() {
#if defined(VANTAGE_AMX)
    return tile_product<F>;
#else
    return nullptr;
#endif
}

enum MatrixUnit : int { NO_UNIT, I8MM, AMX };

// The unit that products of many rows use, now that the system was asked.
inline MatrixUnit matrix_unit() {
#if defined(VANTAGE_I8MM)
    return I8MM;
#else
    return tiles_permitted() ? AMX : NO_UNIT;
#endif
}

}  // namespace vantage
