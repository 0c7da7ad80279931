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

// Sixteen bytes at a time: bytes may alias anything, and the compiler would take them one by one.
typedef uint8_t bytes16 __attribute__((vector_size(16)));
typedef uint32_t words4 __attribute__((vector_size(16)));

inline bytes16 load16(const uint8_t* p) { bytes16 v; std::memcpy(&v, p, 16); return v; }
inline void nibbles(const uint8_t* p, uint8_t* to) {  // 16 bytes: inputs j below and j + 16 above
    const bytes16 both = load16(p), low = both & 15, high = both >> 4;
    std::memcpy(to, &low, 16), std::memcpy(to + 16, &high, 16);
}
// The bytes at these places.
template <int... PLACES>
inline words4 taken_from(bytes16 x) {
#if defined(__clang__)
    return (words4)__builtin_shufflevector(x, x, PLACES...);
#else
    return (words4)__builtin_shuffle(x, bytes16{PLACES...});
#endif
}

inline void fifth_bits(const uint8_t* p, uint8_t* to) {
    uint64_t numbers[4];
    std::memcpy(numbers, to, sizeof numbers);
    for (int i = 0; i < 4; i++) {  // a byte for each of eight bits
        const uint64_t placed = p[i] * 0x0101010101010101 & 0x8040201008040201;
        numbers[i] |= ((placed + 0x7f7f7f7f7f7f7f7f) >> 7 & 0x0101010101010101) << 4;
    }
    std::memcpy(to, numbers, sizeof numbers);
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
        uint8_t high[32], low[64];
        std::memcpy(high, p, 32), std::memcpy(low, p + 32, 64);
        for (int i = 0; i < 8; i++)
            for (int j = 0; j < 32; j++)
                to.numbers[32 * i + j] = (uint8_t)((low[i / 4 * 32 + j] >> i % 4 * 2 & 3) | (high[j] >> i & 1) << 2);
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
inline uint32_t even_bytes(uint64_t bytes) {
    constexpr uint64_t MASK = (1ull << BITS) - 1, TWO = (1ull << 2 * BITS) - 1;
    uint64_t x = bytes & (MASK << 48 | MASK << 32 | MASK << 16 | MASK);
    x = (x | x >> (16 - BITS)) & (TWO << 32 | TWO);
    return (uint32_t)(x | x >> (32 - 2 * BITS)) & (uint32_t)((1ull << 4 * BITS) - 1);
}

inline void write_word(uint32_t word, uint8_t* to) { std::memcpy(to, &word, 4); }

// BITS bits of 32 numbers, shifted down by FROM, as words of one output; LANES words apart.
template <int BITS, int FROM>
inline void write_words(const uint8_t* numbers, uint8_t* to) {
    if constexpr (BITS == 6) {
        for (int i = 0; i < 2; i++, numbers += 16, to += 4 * LANES * 3) {
            const words4 all = (words4)load16(numbers);
            uint32_t three[3] = {};
            for (int h = 0; h < 2; h++) {  // the halves: of every pair one number
                const words4 two = all >> 8 * h & 0x00ff00ff, placed = (two | two >> 6) & 0xffff;
                const uint32_t six = two[3] & 63, seven = two[3] >> 16;
                const uint32_t between[3] = {six & 15, six >> 4 | seven >> 4 << 2, seven & 15};
                for (int w = 0; w < 3; w++) three[w] |= (placed[w] | between[w] << 6) << 16 * h;
            }
            for (int w = 0; w < 3; w++) write_word(three[w], to + 4 * LANES * w);
        }
        return;
    }
    if constexpr (BITS == 8) {
        for (int i = 0; i < BLOCK; i += 16) {
            const words4 words = taken_from<0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15>(load16(numbers + i));
            for (int w = 0; w < 4; w++) write_word(words[w], to + LANES * (i + 4 * w));
        }
        return;
    }
    if constexpr (BITS == 4 && FROM == 0) {
        for (int i = 0; i < BLOCK; i += 16) {
            // of every four numbers the third goes above the first, and the fourth above the second
            const words4 fours = (words4)(load16(numbers + i) & 15);
            const words4 words = taken_from<0, 4, 1, 5, 8, 12, 9, 13, 0, 4, 1, 5, 8, 12, 9, 13>((bytes16)(fours | fours >> 12));
            for (int w = 0; w < 2; w++) write_word(words[w], to + LANES * (i / 2 + 4 * w));
        }
        return;
    }
    constexpr int PER = 16 / BITS;  // pairs in a word
    for (int i = 0; i < BLOCK / 2 / PER; i++) {
        uint32_t word = 0;
        for (int four = 0; four < PER / 4; four++) {
            uint64_t bytes;
            std::memcpy(&bytes, numbers + (i * PER + 4 * four) * 2, 8);
            bytes >>= FROM;
            word |= (even_bytes<BITS>(bytes) | even_bytes<BITS>(bytes >> 8) << 16) << 4 * BITS * four;
        }
        write_word(word, to + 4 * LANES * i);
    }
}

inline bool finite_half(uint16_t h) { return (h & 0x7c00) != 0x7c00; }

// Outputs [begin, end), of whole groups, each from its row of a GGUF tensor; false: a scale is not finite.
template <class F, int FORMAT>
bool repack(const uint8_t* const* rows, const Matrix& w, int64_t begin, int64_t end) {
    using S = Source<FORMAT>;
    const Groups<F> groups(w);
    bool finite = true;
    GGUFBlock block;
    std::memset(&block, 0, sizeof block);
    for (int64_t row = begin; row < end; row++) {
        const int64_t group = row / LANES;
        const int lane = (int)(row % LANES);
        for (int64_t b = 0; b < groups.blocks; b++) {
            uint8_t* to = const_cast<uint8_t*>(groups.first(group)) + b * groups.step(group);
            if (row < w.outputs) {
                S::take(rows[row] + b * S::BYTES, block);
                finite &= FORMAT == MXFP4 || (finite_half(block.scale) && (!F::MINIMUM || finite_half(block.minimum)));
            } else {
                std::memset(&block, 0, sizeof block);  // the last group is filled up
            }
            std::memcpy(to + 2 * lane, &block.scale, 2);
            if (F::MINIMUM) std::memcpy(to + 2 * LANES + 2 * lane, &block.minimum, 2);
            uint8_t* factors = to + (F::MINIMUM ? 4 : 2) * LANES + lane;
            if (F::WIDE)
                for (int s = 0; s < F::SUBS; s++) factors[s * LANES] = block.factors[s];
            if (F::WIDE && F::MINIMUM && !F::NIBBLES)
                for (int s = 0; s < F::SUBS; s++) factors[(F::SUBS + s) * LANES] = block.minima[s];
            for (int i = 0; i < F::INPUTS / BLOCK; i++) {
                uint8_t* numbers = to + F::SCALES + i * F::NUMBERS + 4 * lane;
                write_words<F::LOW, 0>(block.numbers + BLOCK * i, numbers);
                if constexpr (F::HIGH != 0) write_words<F::HIGH, F::LOW>(block.numbers + BLOCK * i, numbers + F::LOW_BYTES);
            }
        }
    }
    return finite;
}

}  // namespace vantage
