// From the blocks of a GGUF tensor to the layout of formats.h: the same numbers and scales in another order.
#pragma once
#include "formats.h"

namespace vantage {

struct GGUFBlock {  // one block of one output, taken apart
    uint8_t numbers[256];
    uint16_t scale, minimum;        // half precision, or bfloat16 of MXFP4
    uint8_t factors[16], minima[16];  // of the K kinds
};

inline uint16_t word16(const uint8_t* p) { uint16_t w; std::memcpy(&w, p, 2); return w; }

inline void nibbles(const uint8_t* p, uint8_t* to) {  // 16 bytes: inputs j below and j + 16 above
    for (int j = 0; j < 16; j++) to[j] = p[j] & 15, to[j + 16] = p[j] >> 4;
}

inline void fifth_bits(const uint8_t* p, uint8_t* to) {
    uint32_t high;
    std::memcpy(&high, p, 4);
    for (int j = 0; j < 32; j++) to[j] |= (high >> j & 1) << 4;
}

inline void six_bit_scales(const uint8_t* p, uint8_t* factors, uint8_t* minima) {  // of Q4_K and Q5_K
    for (int j = 0; j < 4; j++) {
        factors[j] = p[j] & 63, minima[j] = p[j + 4] & 63;
        factors[j + 4] = (p[j + 8] & 15) | p[j] >> 6 << 4, minima[j + 4] = p[j + 8] >> 4 | p[j + 4] >> 6 << 4;
    }
}

// take<FORMAT>(block, parts) and the bytes of such a block.
template <int FORMAT> struct Source;

template <> struct Source<Q8_0> {
    static constexpr int BYTES = 34;
    static void take(const uint8_t* p, GGUFBlock& to) { to.scale = word16(p), std::memcpy(to.numbers, p + 2, 32); }
};
template <> struct Source<Q4_0> {
    static constexpr int BYTES = 18;
    static void take(const uint8_t* p, GGUFBlock& to) { to.scale = word16(p), nibbles(p + 2, to.numbers); }
};
template <> struct Source<IQ4_NL> : Source<Q4_0> {};
template <> struct Source<Q4_1> {
    static constexpr int BYTES = 20;
    static void take(const uint8_t* p, GGUFBlock& to) {
        to.scale = word16(p), to.minimum = word16(p + 2), nibbles(p + 4, to.numbers);
    }
};
template <> struct Source<Q5_0> {
    static constexpr int BYTES = 22;
    static void take(const uint8_t* p, GGUFBlock& to) {
        to.scale = word16(p), nibbles(p + 6, to.numbers), fifth_bits(p + 2, to.numbers);
    }
};
template <> struct Source<Q5_1> {
    static constexpr int BYTES = 24;
    static void take(const uint8_t* p, GGUFBlock& to) {
        to.scale = word16(p), to.minimum = word16(p + 2), nibbles(p + 8, to.numbers), fifth_bits(p + 4, to.numbers);
    }
};
template <> struct Source<MXFP4> {
    static constexpr int BYTES = 17;
    static void take(const uint8_t* p, GGUFBlock& to) {  // 2^(e - 127), halved: the table counts halves
        to.scale = *p >= 2 ? (uint16_t)((*p - 1) << 7) : (uint16_t)(0x20 << *p);
        nibbles(p + 1, to.numbers);
    }
};
template <> struct Source<Q2_K> {
    static constexpr int BYTES = 84;
    static void take(const uint8_t* p, GGUFBlock& to) {
        std::memcpy(to.factors, p, 16);  // scale and minimum share a byte, as in the form
        for (int i = 0; i < 256; i++) to.numbers[i] = p[16 + i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3;
        to.scale = word16(p + 80), to.minimum = word16(p + 82);
    }
};
template <> struct Source<Q3_K> {
    static constexpr int BYTES = 110;
    static void take(const uint8_t* p, GGUFBlock& to) {
        for (int i = 0; i < 256; i++) {
            const int low = p[32 + i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3;
            to.numbers[i] = (uint8_t)(low | (p[i % 32] >> i / 32 & 1) << 2);
        }
        const uint8_t* s = p + 96;
        for (int j = 0; j < 16; j++) {
            const int low = j < 8 ? s[j] & 15 : s[j - 8] >> 4, high = s[8 + j % 4] >> j / 4 * 2 & 3;
            to.factors[j] = (uint8_t)((low | high << 4) - 32);
        }
        to.scale = word16(p + 108);
    }
};
template <> struct Source<Q4_K> {
    static constexpr int BYTES = 144;
    static void take(const uint8_t* p, GGUFBlock& to) {
        to.scale = word16(p), to.minimum = word16(p + 2);
        six_bit_scales(p + 4, to.factors, to.minima);
        for (int i = 0; i < 4; i++)
            for (int j = 0; j < 32; j++) {
                const uint8_t both = p[16 + 32 * i + j];
                to.numbers[64 * i + j] = both & 15, to.numbers[64 * i + 32 + j] = both >> 4;
            }
    }
};
template <> struct Source<Q5_K> {
    static constexpr int BYTES = 176;
    static void take(const uint8_t* p, GGUFBlock& to) {
        to.scale = word16(p), to.minimum = word16(p + 2);
        six_bit_scales(p + 4, to.factors, to.minima);
        for (int i = 0; i < 4; i++)
            for (int j = 0; j < 32; j++) {
                const uint8_t both = p[48 + 32 * i + j], high = p[16 + j];
                to.numbers[64 * i + j] = (uint8_t)((both & 15) | (high >> 2 * i & 1) << 4);
                to.numbers[64 * i + 32 + j] = (uint8_t)(both >> 4 | (high >> (2 * i + 1) & 1) << 4);
            }
    }
};
template <> struct Source<Q6_K> {
    static constexpr int BYTES = 210;
    static void take(const uint8_t* p, GGUFBlock& to) {
        for (int i = 0; i < 2; i++)
            for (int j = 0; j < 32; j++) {
                const uint8_t a = p[64 * i + j], b = p[64 * i + 32 + j], high = p[128 + 32 * i + j];
                uint8_t* q = to.numbers + 128 * i + j;
                q[0] = (uint8_t)((a & 15) | (high & 3) << 4), q[32] = (uint8_t)((b & 15) | (high >> 2 & 3) << 4);
                q[64] = (uint8_t)(a >> 4 | (high >> 4 & 3) << 4), q[96] = (uint8_t)(b >> 4 | high >> 6 << 4);
            }
        std::memcpy(to.factors, p + 192, 16);
        to.scale = word16(p + 208);
    }
};
template <> struct Source<IQ4_XS> {
    static constexpr int BYTES = 136;
    static void take(const uint8_t* p, GGUFBlock& to) {
        to.scale = word16(p);
        const int high = word16(p + 2);
        for (int i = 0; i < 8; i++) {
            to.factors[i] = (uint8_t)(((p[4 + i / 2] >> i % 2 * 4 & 15) | (high >> 2 * i & 3) << 4) - 32);
            nibbles(p + 8 + 16 * i, to.numbers + 32 * i);
        }
    }
};

// Of 8 bytes those at even places, BITS bits of each, side by side.
template <int BITS>
inline uint64_t even_bytes(uint64_t bytes) {
    constexpr uint64_t MASK = (1ull << BITS) - 1, TWO = (1ull << 2 * BITS) - 1;
    uint64_t x = bytes & (MASK << 48 | MASK << 32 | MASK << 16 | MASK);
    x = (x | x >> (16 - BITS)) & (TWO << 32 | TWO);
    return (x | x >> (32 - 2 * BITS)) & ((1ull << 4 * BITS) - 1);
}

// BITS bits of the 32 numbers of one output, shifted down by FROM, as BITS words.
template <int BITS, int FROM>
inline void pack_words(const uint8_t* numbers, uint32_t* words) {
    if constexpr (BITS == 8) {
        for (int i = 0; i < 8; i++, numbers += 4)
            words[i] = numbers[0] | (uint32_t)numbers[2] << 8 | (uint32_t)numbers[1] << 16 | (uint32_t)numbers[3] << 24;
    } else if constexpr (BITS == 6) {
        uint32_t pairs[16];  // a number in each half
        for (int i = 0; i < 16; i++) pairs[i] = numbers[2 * i] | (uint32_t)numbers[2 * i + 1] << 16;
        for (int i = 0; i < 2; i++) {
            const uint32_t *p = pairs + 8 * i, FOUR = 0x000f000f, TWO = 0x00030003;
            const uint32_t between[3] = {p[6] & FOUR, (p[6] >> 4 & TWO) | (p[7] >> 4 & TWO) << 2, p[7] & FOUR};
            for (int w = 0; w < 3; w++) words[3 * i + w] = p[2 * w] | between[w] << 6 | p[2 * w + 1] << 10;
        }
    } else {
        constexpr int FOURS = 4 / BITS;  // four pairs, 8 numbers, fill so much of a word
        uint64_t bytes[4];
        std::memcpy(bytes, numbers, sizeof bytes);
        for (int i = 0; i < 4; i++) {
            bytes[i] >>= FROM;
            bytes[i] = even_bytes<BITS>(bytes[i]) | even_bytes<BITS>(bytes[i] >> 8) << 16;
        }
        for (int i = 0; i < BITS; i++) {
            uint64_t word = 0;
            for (int j = 0; j < FOURS; j++) word |= bytes[i * FOURS + j] << 4 * BITS * j;
            words[i] = (uint32_t)word;
        }
    }
}

// The same of all outputs of a group: words of one place side by side.
template <int BITS, int FROM>
inline void write_words(const GGUFBlock* blocks, int first, uint8_t* to) {
    uint32_t words[LANES][BITS], turned[BITS][LANES];
    for (int lane = 0; lane < LANES; lane++) pack_words<BITS, FROM>(blocks[lane].numbers + first, words[lane]);
    for (int w = 0; w < BITS; w++)
        for (int lane = 0; lane < LANES; lane++) turned[w][lane] = words[lane][w];
    std::memcpy(to, turned, sizeof turned);
}

inline bool finite_half(uint16_t h) { return (h & 0x7c00) != 0x7c00; }

// One block of a group's outputs, taken apart, to its place.
template <class F>
inline void write_block(const GGUFBlock* blocks, uint8_t* to) {
    uint16_t scales[2][LANES];
    uint8_t factors[2 * 16][LANES];
    for (int lane = 0; lane < LANES; lane++) {
        scales[0][lane] = blocks[lane].scale, scales[1][lane] = blocks[lane].minimum;
        if constexpr (F::WIDE)
            for (int s = 0; s < F::SUBS; s++)
                factors[s][lane] = blocks[lane].factors[s], factors[F::SUBS + s][lane] = blocks[lane].minima[s];
    }
    constexpr int HALVES = 2 * (1 + F::MINIMUM) * LANES;
    std::memcpy(to, scales, HALVES);
    if constexpr (F::WIDE) std::memcpy(to + HALVES, factors, F::SCALES - HALVES);
    for (int i = 0; i < F::INPUTS / BLOCK; i++) {
        uint8_t* numbers = to + F::SCALES + i * F::NUMBERS;
        write_words<F::LOW, 0>(blocks, BLOCK * i, numbers);
        if constexpr (F::HIGH != 0) write_words<F::HIGH, F::LOW>(blocks, BLOCK * i, numbers + F::LOW_BYTES);
    }
}

// Outputs [begin, end), of whole groups, each from its row of a GGUF tensor; false: a scale is not finite.
template <class F, int FORMAT>
bool repack(const uint8_t* const* rows, const Matrix& w, int64_t begin, int64_t end) {
    using S = Source<FORMAT>;
    const Groups<F> groups(w);
    bool finite = true;
    GGUFBlock blocks[LANES];
    std::memset(blocks, 0, sizeof blocks);
    for (int64_t group = begin / LANES; group < end / LANES; group++) {
        uint8_t* to = const_cast<uint8_t*>(groups.first(group));
        const int filled = (int)std::min<int64_t>(LANES, w.outputs - group * LANES);
        if (filled < LANES) std::memset(blocks, 0, sizeof blocks);  // the last group is filled up
        for (int64_t b = 0; b < groups.blocks; b++, to += groups.step(group)) {
            for (int lane = 0; lane < filled; lane++) {
                GGUFBlock& block = blocks[lane];
                S::take(rows[group * LANES + lane] + b * S::BYTES, block);
                finite &= FORMAT == MXFP4 || (finite_half(block.scale) && (!F::MINIMUM || finite_half(block.minimum)));
            }
            write_block<F>(blocks, to);
        }
    }
    return finite;
}

}  // namespace vantage
