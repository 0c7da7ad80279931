// Vectors of the processor's own width, in the compilers' vector types: 16 numbers with AVX-512, 8 with AVX2,
// 4 with NEON, SSE2 and anywhere else. Everything above is written for any width.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#if defined(VANTAGE_NO_VECTORS)  // no intrinsics at all, as on a processor that nothing here is written for
#elif defined(VANTAGE_INTRINSICS)  // AVX-512 where there is none, in plain code: for tests
#include VANTAGE_INTRINSICS
#elif defined(__AVX2__) || defined(__AVX512F__) || defined(__F16C__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace vantage {

#if defined(VANTAGE_NO_VECTORS)
constexpr int WIDTH = 4;
#elif defined(VANTAGE_INTRINSICS) || (defined(__AVX512F__) && defined(__AVX512BW__))
#define VANTAGE_AVX512 1
constexpr int WIDTH = 16;
#elif defined(__AVX2__)
#define VANTAGE_AVX2 1
constexpr int WIDTH = 8;
#else
constexpr int WIDTH = 4;
#if defined(__aarch64__)
#define VANTAGE_NEON 1
#elif defined(__SSE2__)
#define VANTAGE_SSE2 1
#endif
#endif

typedef float floats __attribute__((vector_size(4 * WIDTH)));
typedef int32_t ints __attribute__((vector_size(4 * WIDTH)));
typedef int16_t shorts __attribute__((vector_size(4 * WIDTH)));       // two for each lane of 32 bits
typedef uint16_t words __attribute__((vector_size(4 * WIDTH)));       // the same without a sign
typedef int16_t half_shorts __attribute__((vector_size(2 * WIDTH)));  // one for each
typedef int8_t bytes __attribute__((vector_size(WIDTH)));             // the same

// Asks for the line at p, into the second cache: the first has too few places for lines that are on their way. Single-row
// products that asked for it in the first ran at 12 GB/s a thread where memory gives 30 (Zen 4).
inline void fetch(const void* p) { __builtin_prefetch(p, 0, 2); }
// Into the first: for a processor where that has room (linear.h).
inline void fetch_near(const void* p) { __builtin_prefetch(p, 0, 3); }
// The same, to be written.
inline void fetch_to_write(const void* p) { __builtin_prefetch(p, 1, 3); }

inline floats load(const float* p) { floats v; std::memcpy(&v, p, sizeof v); return v; }
inline void store(float* p, floats v) { std::memcpy(p, &v, sizeof v); }
inline ints load_ints(const void* p) { ints v; std::memcpy(&v, p, sizeof v); return v; }
inline floats all(float x) { return x - floats{}; }  // x - 0 is x, for every x
inline ints all_ints(int32_t x) { return ints{} + x; }
#if defined(VANTAGE_AVX512)
inline floats max(floats a, floats b) { return (floats)_mm512_max_ps((__m512)a, (__m512)b); }
inline floats min(floats a, floats b) { return (floats)_mm512_min_ps((__m512)a, (__m512)b); }
#elif defined(VANTAGE_AVX2)
inline floats max(floats a, floats b) { return (floats)_mm256_max_ps((__m256)a, (__m256)b); }
inline floats min(floats a, floats b) { return (floats)_mm256_min_ps((__m256)a, (__m256)b); }
#else
inline floats max(floats a, floats b) { return a > b ? a : b; }
inline floats min(floats a, floats b) { return a < b ? a : b; }
#endif
inline floats to_floats(ints x) { return __builtin_convertvector(x, floats); }

// a * b + c, rounded once where the processor can. Compilers are told never to fuse by themselves (-ffp-contract=off):
// they would here and not there, and the same sum in two loops would differ in its last bit.
inline floats fused(floats a, floats b, floats c) {
#if defined(VANTAGE_AVX512)
    return (floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(VANTAGE_AVX2) && defined(__FMA__)
    return (floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(VANTAGE_NEON)
    return (floats)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

inline float sum(floats v) {  // always the same tree, so that a sum never depends on who else is computed
#if defined(VANTAGE_AVX512)
    const __m512 halves = _mm512_add_ps((__m512)v, _mm512_shuffle_f32x4((__m512)v, (__m512)v, 0x4e));
    __m128 x = _mm512_castps512_ps128(_mm512_add_ps(halves, _mm512_shuffle_f32x4(halves, halves, 0xb1)));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
#elif defined(VANTAGE_AVX2)
    __m128 x = _mm_add_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
#else
    return (v[0] + v[2]) + (v[1] + v[3]);
#endif
}

inline int32_t sum(ints v) {
#if defined(VANTAGE_AVX512)
    return _mm512_reduce_add_epi32((__m512i)v);
#elif defined(VANTAGE_AVX2)
    __m128i x = _mm_add_epi32(_mm256_castsi256_si128((__m256i)v), _mm256_extracti128_si256((__m256i)v, 1));
    x = _mm_add_epi32(x, _mm_shuffle_epi32(x, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(x, _mm_shuffle_epi32(x, 0xb1)));
#else
    int32_t total = 0;
    for (int i = 0; i < WIDTH; i++) total += v[i];
    return total;
#endif
}

inline float greatest(floats v) {
#if defined(VANTAGE_AVX512)
    return _mm512_reduce_max_ps((__m512)v);
#elif defined(VANTAGE_AVX2)
    __m128 x = _mm_max_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
#else
    float m = v[0];
    for (int i = 1; i < WIDTH; i++) m = v[i] > m ? v[i] : m;
    return m;
#endif
}

inline float lowest(floats v) { return -greatest(-v); }

// The first steps of sum(), of four vectors: as many numbers of each are left as fit one vector.
inline floats sums_begun(floats a, floats b, floats c, floats d) {
#if defined(VANTAGE_AVX512)
    // Halves of 256 bits, of two vectors at once: one lies as it is and one the other way round. That takes one exchange
    // where two vectors of halves would take two, and a sum does not depend on which comes first.
    const auto halves = [](floats x, floats y) {
        const __m512 own = _mm512_mask_blend_ps(0xff00, (__m512)x, (__m512)y);
        return _mm512_add_ps(own, _mm512_shuffle_f32x4((__m512)x, (__m512)y, 0x4e));
    };
    const __m512 ab = halves(a, b), cd = halves(c, d);
    return (floats)_mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
#elif defined(VANTAGE_AVX2)
    const auto halves = [](floats x, floats y) {  // as above, of 128 bits
        const __m256 own = _mm256_blend_ps((__m256)x, (__m256)y, 0xf0);
        return _mm256_add_ps(own, _mm256_permute2f128_ps((__m256)x, (__m256)y, 0x21));
    };
    const __m256 ac = halves(a, c), bd = halves(b, d);
    return (floats)_mm256_add_ps(_mm256_blend_ps(ac, bd, 0xcc), _mm256_shuffle_ps(ac, bd, 0x4e));
#else
    const floats all = {sum(a), sum(b), sum(c), sum(d)};
    return all;
#endif
}

// What is left of it: lane i is the sum() of vector i, bit for bit. begun: WIDTH / 4 of them.
inline floats sums_ended(const floats* begun) {
#if defined(VANTAGE_AVX512)
    // a quarter has four numbers of one vector of each: (x0 + x2) + (x1 + x3)
    const auto pairs = [](floats x, floats y) {
        const __m512 own = _mm512_mask_blend_ps(0xcccc, (__m512)x, (__m512)y);
        return _mm512_add_ps(own, _mm512_shuffle_ps((__m512)x, (__m512)y, 0x4e));
    };
    const __m512 a = pairs(begun[0], begun[1]), b = pairs(begun[2], begun[3]);
    const __m512 all = _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd));
    const __m512i order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
    return (floats)_mm512_permutexvar_ps(order, all);
#elif defined(VANTAGE_AVX2)
    const __m256 a = (__m256)begun[0], b = (__m256)begun[1];  // a half has pairs: two vectors of each
    const __m256 all = _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x88), _mm256_shuffle_ps(a, b, 0xdd));
    return (floats)_mm256_permute4x64_pd((__m256d)all, 0xd8);
#else
    return *begun;
#endif
}

// Lane j of vector i goes to lane i of vector j, of WIDTH vectors.
inline void turn(floats* x) {
#if defined(VANTAGE_AVX512)
    for (int i = 0; i < WIDTH; i += 4) {  // four by four numbers in every quarter
        const __m512 a = (__m512)x[i], b = (__m512)x[i + 1], c = (__m512)x[i + 2], d = (__m512)x[i + 3];
        const __m512d ab = (__m512d)_mm512_unpacklo_ps(a, b), cd = (__m512d)_mm512_unpacklo_ps(c, d);
        const __m512d above_ab = (__m512d)_mm512_unpackhi_ps(a, b), above_cd = (__m512d)_mm512_unpackhi_ps(c, d);
        x[i] = (floats)_mm512_unpacklo_pd(ab, cd), x[i + 1] = (floats)_mm512_unpackhi_pd(ab, cd);
        x[i + 2] = (floats)_mm512_unpacklo_pd(above_ab, above_cd), x[i + 3] = (floats)_mm512_unpackhi_pd(above_ab, above_cd);
    }
    for (int i = 0; i < 4; i++) {  // four by four quarters
        const __m512 a = (__m512)x[i], b = (__m512)x[i + 4], c = (__m512)x[i + 8], d = (__m512)x[i + 12];
        const __m512 ab = _mm512_shuffle_f32x4(a, b, 0x44), cd = _mm512_shuffle_f32x4(c, d, 0x44);
        const __m512 above_ab = _mm512_shuffle_f32x4(a, b, 0xee), above_cd = _mm512_shuffle_f32x4(c, d, 0xee);
        x[i] = (floats)_mm512_shuffle_f32x4(ab, cd, 0x88), x[i + 4] = (floats)_mm512_shuffle_f32x4(ab, cd, 0xdd);
        x[i + 8] = (floats)_mm512_shuffle_f32x4(above_ab, above_cd, 0x88);
        x[i + 12] = (floats)_mm512_shuffle_f32x4(above_ab, above_cd, 0xdd);
    }
#else
    floats turned[WIDTH];
    for (int i = 0; i < WIDTH; i++)
        for (int j = 0; j < WIDTH; j++) turned[j][i] = x[i][j];
    std::memcpy(x, turned, sizeof turned);
#endif
}

// One bit for each lane that is at least x.
inline uint32_t reaching(floats v, float x) {
#if defined(VANTAGE_AVX512)
    return _mm512_cmp_ps_mask((__m512)v, _mm512_set1_ps(x), _CMP_GE_OQ);
#elif defined(VANTAGE_AVX2)
    return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps((__m256)v, _mm256_set1_ps(x), _CMP_GE_OQ));
#else
    uint32_t lanes = 0;
    for (int i = 0; i < WIDTH; i++) lanes |= (uint32_t)(v[i] >= x) << i;
    return lanes;
#endif
}

// s + x, here and now. Left alone the compiler makes all products of a loop before it adds the first, and has no
// registers for them.
inline ints add_in_order(ints s, ints x) {
#if defined(VANTAGE_INTRINSICS)
    return s + x;
#elif defined(VANTAGE_AVX512)
    asm("vpaddd %1, %0, %0" : "+v"(s) : "v"(x));
    return s;
#elif defined(VANTAGE_AVX2)
    asm("vpaddd %1, %0, %0" : "+x"(s) : "x"(x));
    return s;
#else
    return s + x;
#endif
}

// s + a.low * b.low + a.high * b.high in every lane, a and b being pairs of 16-bit numbers.
inline ints multiply_pairs(ints s, ints a, ints b) {
#if defined(VANTAGE_AVX512) && (defined(__AVX512VNNI__) || defined(VANTAGE_VNNI))
    return (ints)_mm512_dpwssd_epi32((__m512i)s, (__m512i)a, (__m512i)b);
#elif defined(VANTAGE_AVX512)
    return add_in_order(s, (ints)_mm512_madd_epi16((__m512i)a, (__m512i)b));
#elif defined(VANTAGE_AVX2) && defined(__AVXVNNI__)
    return (ints)_mm256_dpwssd_avx_epi32((__m256i)s, (__m256i)a, (__m256i)b);
#elif defined(VANTAGE_AVX2)
    return add_in_order(s, (ints)_mm256_madd_epi16((__m256i)a, (__m256i)b));
#elif defined(VANTAGE_NEON)
    const int16x8_t x = (int16x8_t)a, y = (int16x8_t)b;
    const int32x4_t low = vmull_s16(vget_low_s16(x), vget_low_s16(y)), high = vmull_high_s16(x, y);
    return add_in_order(s, (ints)vpaddq_s32(low, high));
#elif defined(VANTAGE_SSE2)
    return add_in_order(s, (ints)__builtin_ia32_pmaddwd128((shorts)a, (shorts)b));
#else
    return s + ((a << 16) >> 16) * ((b << 16) >> 16) + (a >> 16) * (b >> 16);
#endif
}

// Four bits each, in the upper byte of every 16: the entry of a table of 16 signed bytes, widened to 16 bits.
inline ints looked_up(ints indices, const int8_t* table) {
#if defined(VANTAGE_AVX512)
    const __m512i all = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)table));
    return (ints)_mm512_srai_epi16(_mm512_shuffle_epi8(all, (__m512i)indices), 8);
#elif defined(VANTAGE_AVX2)
    const __m256i all = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)table));
    return (ints)_mm256_srai_epi16(_mm256_shuffle_epi8(all, (__m256i)indices), 8);
#elif defined(VANTAGE_NEON)
    const uint8x16_t entries = vqtbl1q_u8(vld1q_u8((const uint8_t*)table), (uint8x16_t)indices);
    return (ints)vshrq_n_s16((int16x8_t)entries, 8);
#else
    shorts words = (shorts)indices;
    for (int i = 0; i < 2 * WIDTH; i++) words[i] = table[(words[i] >> 8) & 15];
    return (ints)words;
#endif
}

// To the nearest whole number, of two the even one: for numbers up to 2^22, by adding and subtracting 3 * 2^22.
inline floats rounded(floats x) { return (x + 12582912.0f) - 12582912.0f; }

inline floats bits(ints x) { floats v; std::memcpy(&v, &x, sizeof v); return v; }

// e^x with an error of 2 units in the last place: 2^n times a polynomial on [-ln2/2, ln2/2] (Cephes' coefficients).
inline floats exp(floats x) {
    x = min(all(88.0f), max(all(-87.3f), x));  // in this order what is no number stays so
    const floats fn = rounded(x * 1.44269504088896341f);
    const ints n = __builtin_convertvector(fn, ints);
    const floats r = fused(fn, all(2.12194440e-4f), fused(fn, all(-0.693359375f), x));
    floats p = all(1.9875691500e-4f);
    p = fused(p, r, all(1.3981999507e-3f));
    p = fused(p, r, all(8.3334519073e-3f));
    p = fused(p, r, all(4.1665795894e-2f));
    p = fused(p, r, all(1.6666665459e-1f));
    p = fused(p, r, all(5.0000001201e-1f));
    return fused(p * r, r, r + 1.0f) * bits((n + 127) << 23);
}

inline floats tanh(floats x) {
    const floats e = exp(2.0f * max(all(-9.0f), min(all(9.0f), x)));
    return (e - 1.0f) / (e + 1.0f);
}

inline float half(uint16_t h) {  // by its bits, subnormal numbers included
    const uint32_t sign = (h & 0x8000u) << 16, size = h & 0x7fffu;
    uint32_t word = (size << 13) + 0x38000000u;  // the exponent's offset: 15 becomes 127
    if (size >= 0x7c00u) word += 0x38000000u;    // infinity and NaN
    float f;
    if (size < 0x0400u) f = (float)size * 5.9604644775390625e-8f;  // subnormal: multiples of 2^-24
    else std::memcpy(&f, &word, 4);
    uint32_t u;
    std::memcpy(&u, &f, 4);
    u |= sign;
    std::memcpy(&f, &u, 4);
    return f;
}

inline uint16_t to_half(float f) {  // to the nearest, of two the even one
    uint32_t u;
    std::memcpy(&u, &f, 4);
    const uint16_t sign = (uint16_t)(u >> 16 & 0x8000u);
    u &= 0x7fffffffu;
    if (u > 0x7f800000u) return sign | 0x7e00u;
    if (u >= 0x477ff000u) return sign | 0x7c00u;  // 65,520 and more
    if (u < 0x38800000u) {                        // subnormal: multiples of 2^-24
        const float steps = std::fabs(f) * 16777216.0f;
        return (uint16_t)(sign | (uint32_t)((steps + 12582912.0f) - 12582912.0f));
    }
    return (uint16_t)(sign | (u + 0xfffu + (u >> 13 & 1) - 0x38000000u) >> 13);
}

// WIDTH numbers, as half precision.
inline void store_halves(void* p, floats v) {
#if defined(VANTAGE_AVX512)
    _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT));
#elif defined(VANTAGE_AVX2) && defined(__F16C__)
    _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT));
#elif defined(VANTAGE_NEON)
    vst1_u16((uint16_t*)p, vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)v)));
#else
    uint16_t h[WIDTH];
    for (int i = 0; i < WIDTH; i++) h[i] = to_half(v[i]);
    std::memcpy(p, h, sizeof h);
#endif
}

// WIDTH half-precision numbers.
inline floats halves(const void* p) {
#if defined(VANTAGE_AVX512)
    return (floats)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
#elif defined(VANTAGE_AVX2) && defined(__F16C__)
    return (floats)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
#elif defined(VANTAGE_NEON)
    return (floats)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16((const uint16_t*)p)));
#else
    uint16_t h[WIDTH];
    std::memcpy(h, p, sizeof h);
    floats out{};
    for (int i = 0; i < WIDTH; i++) out[i] = half(h[i]);
    return out;
#endif
}

// WIDTH numbers of bfloat16: the upper halves of float32.
inline floats bfloats(const void* p) {
    typedef uint16_t half_words __attribute__((vector_size(2 * WIDTH)));
    half_words w;
    std::memcpy(&w, p, sizeof w);
    return bits(__builtin_convertvector(w, ints) << 16);
}

// WIDTH signed bytes.
inline ints signed_bytes(const void* p) {
#if defined(VANTAGE_AVX512)
    return (ints)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p));
#elif defined(VANTAGE_AVX2)
    return (ints)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p));
#else
    int8_t b[WIDTH];
    std::memcpy(b, p, sizeof b);
    ints out{};
    for (int i = 0; i < WIDTH; i++) out[i] = b[i];
    return out;
#endif
}

}  // namespace vantage
