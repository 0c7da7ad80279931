// The faster product of many rows: activations of 8 bits with a scale for every block of 32, as llama.cpp has them.
//
// A product then takes half the instructions, and errs by 1/254 of a block's largest activation. So a prompt is no
// longer computed as a single row is (linear.h): only who asks for it gets it. Weights of up to 6 bits without a sign
// can be met so; all others, and processors without such instructions, keep 16 bits. Sums under one scale come from dot
// products or from a matrix unit (matrix_units.h).
#pragma once
#include "linear.h"
#include "matrix_units.h"

namespace vantage {

// s + the sums of four products in every lane: a without a sign and of up to 7 bits, b with one.
#if defined(VANTAGE_AVX512) && (defined(__AVX512VNNI__) || defined(VANTAGE_VNNI))
constexpr bool HAS_DOT = true;
inline ints dot_bytes(ints s, ints a, ints b) {
    return (ints)_mm512_dpbusd_epi32((__m512i)s, (__m512i)a, (__m512i)b);
}
#elif defined(VANTAGE_AVX2) && defined(__AVXVNNI__)
constexpr bool HAS_DOT = true;
inline ints dot_bytes(ints s, ints a, ints b) {
    return (ints)_mm256_dpbusd_avx_epi32((__m256i)s, (__m256i)a, (__m256i)b);
}
#elif defined(VANTAGE_NEON) && defined(__ARM_FEATURE_DOTPROD)
constexpr bool HAS_DOT = true;
inline ints dot_bytes(ints s, ints a, ints b) { return (ints)vdotq_s32((int32x4_t)s, (int8x16_t)a, (int8x16_t)b); }
#else
constexpr bool HAS_DOT = false;
inline ints dot_bytes(ints s, ints, ints) { return s; }
#endif

#if defined(VANTAGE_AVX512) || defined(VANTAGE_AVX2)
constexpr bool HAS_BYTES = true;
#else
constexpr bool HAS_BYTES = HAS_DOT;
#endif

inline void round_row(const float* x, int inputs, RoundedBytes* to) {
    for (int b = 0; b < inputs / BLOCK; b++, x += BLOCK, to++) {
        floats top = all(0);
        for (int i = 0; i < BLOCK; i += WIDTH) top = max(top, max(load(x + i), -load(x + i)));
        const float most = greatest(top), inverse = most > 0 ? 127.0f / most : 0.0f;
        ints halves[2] = {};
        for (int i = 0; i < BLOCK; i += WIDTH) {
            const ints n = __builtin_convertvector(rounded(load(x + i) * inverse), ints);
            const bytes narrow = __builtin_convertvector(n, bytes);
            std::memcpy(to->x + i, &narrow, sizeof narrow);
            halves[i / (BLOCK / 2)] += n;
        }
        for (int i = 0; i < BLOCK; i += 4) {  // the two in the middle change places
            uint32_t four;
            std::memcpy(&four, to->x + i, 4);
            four = (four & 0xff0000ff) | (four & 0xff00) << 8 | (four >> 8 & 0xff00);
            std::memcpy(to->x + i, &four, 4);
        }
        to->scale = most / 127.0f;
        for (int h = 0; h < 2; h++) to->totals[h] = sum(halves[h]), to->sums[h] = to->scale * (float)to->totals[h];
        to->total = to->totals[0] + to->totals[1], to->sum = to->scale * (float)to->total;
    }
}

// s + the sums of pairs of products, in words of 16 bits: a without, b with a sign.
inline ints multiply_bytes(ints s, ints a, ints b) {
#if defined(VANTAGE_AVX512)
    return (ints)_mm512_add_epi16((__m512i)s, _mm512_maddubs_epi16((__m512i)a, (__m512i)b));
#elif defined(VANTAGE_AVX2)
    const ints x = (ints)_mm256_maddubs_epi16((__m256i)a, (__m256i)b);
    asm("vpaddw %1, %0, %0" : "+x"(s) : "x"(x));  // in order, as add_in_order()
    return s;
#else
    (void)a, (void)b;
    return s;
#endif
}

template <class F>
struct ByteForm {
    static constexpr int MOST = (1 << (F::LOW + F::HIGH)) - 1;
    static constexpr bool FITS = HAS_BYTES && F::TABLE == 0 && F::LOW + F::HIGH <= 6;
    static constexpr int GROUPS = 8 / F::PARTS;  // fours that share a scale
    // whose sums fit 16 bits, where they are not added to 32 at once
    static constexpr int HELD = HAS_DOT ? GROUPS : std::min(GROUPS, 32767 / (2 * MOST * 127));
};

// Adds the sums of the products to s, as a matrix unit does (matrix_units.h). HELD: words whose sums fit 16 bits. Compilers
// keep s in registers if it is an array, and inlined.
template <int HELD>
struct DotSums {
    static inline void arrange(Panel&, int, int) {}

    template <int GROUPS, int M>
    static inline __attribute__((always_inline)) void add(const Panel& panel, int b, int part, const RoundedBytes* block,
                                                          int64_t blocks, ints (&s)[M][PANEL]) {
        [[maybe_unused]] const ints ones = all_ints(0x00010001);
        for (int from = 0; from < GROUPS; from += HELD) {
            ints words[M][PANEL] = {};
            for (int g = from; g < from + HELD; g++) {
                ints w[PANEL];
                for (int v = 0; v < PANEL; v++) w[v] = panel.pairs[b * GROUPS + g][v];
                for (int m = 0; m < M; m++) {
                    const ints a = block[m * blocks].four(part * GROUPS + g);
                    for (int v = 0; v < PANEL; v++)
                        if constexpr (HAS_DOT) s[m][v] = dot_bytes(s[m][v], w[v], a);
                        else words[m][v] = multiply_bytes(words[m][v], w[v], a);
                }
            }
            if constexpr (!HAS_DOT)
                for (int m = 0; m < M; m++)
                    for (int v = 0; v < PANEL; v++) s[m][v] = multiply_pairs(s[m][v], words[m][v], ones);
        }
    }
};

#if defined(VANTAGE_I8MM)
template <class F> using ByteSums = MatrixSums;
#else
template <class F> using ByteSums = DotSums<ByteForm<F>::HELD>;
#endif

template <class F, class Sums, int M>
void multiply_byte_panel(const Panel& panel, int count, const RoundedBytes* x, int64_t blocks,
                         floats (*__restrict total)[PANEL]) {
    constexpr int GROUPS = ByteForm<F>::GROUPS;
    for (int b = 0; b < count * F::PARTS; b++) {
        const int part = F::PARTS == 1 ? 0 : b % 2;
        const RoundedBytes* block = x + b / F::PARTS;
        ints s[M][PANEL];
        for (int m = 0; m < M; m++)
            for (int v = 0; v < PANEL; v++)
                s[m][v] = initial_sum<F::PARTS>(block[m * blocks], part, F::OFFSET);
        Sums::template add<GROUPS, M>(panel, b, part, block, blocks, s);
        for (int m = 0; m < M; m++)
            for (int v = 0; v < PANEL; v++)
                total[m][v] = scaled<F::PARTS, F::MINIMUM>(total[m][v], s[m][v], panel.scales[b][v], panel.minima[b][v],
                                                           block[m * blocks], part);
    }
}

template <class F>
void byte_rows(const Matrix& w, int begin, int end, const Rows& r, const RoundedBytes* x, float* room) {
    using Sums = ByteSums<F>;
    constexpr int STEP = ByteForm<F>::HELD < ByteForm<F>::GROUPS ? TILE / 2 : TILE;  // two sums for each need more registers
    const int64_t blocks = w.inputs / BLOCK;
    many_panels<F, true>(w, begin, end, r, room, [&](Panel& panel, int vectors, int64_t k, int count, floats(*total)[PANEL]) {
        Sums::arrange(panel, count * 8, vectors);
        const RoundedBytes* first = x + k / BLOCK;
        int m = 0;
        for (; m + STEP <= r.m; m += STEP) multiply_byte_panel<F, Sums, STEP>(panel, count, first + m * blocks, blocks, total + m);
        for (; m < r.m; m++) multiply_byte_panel<F, Sums, 1>(panel, count, first + m * blocks, blocks, total + m);
    });
}

using ByteProduct = void(const Matrix& w, int begin, int end, const Rows& r, const RoundedBytes* rounded, float* room);

template <class F>
constexpr ByteProduct* byte_product() {
    if constexpr (ByteForm<F>::FITS) return byte_rows<F>;
    else return nullptr;
}

}  // namespace vantage
