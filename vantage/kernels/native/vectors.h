// Sixteen floats at a time, in the compilers' own vector types: one source for AVX-512, AVX2, SSE2 and NEON.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#if defined(__AVX2__) || defined(__AVX512F__) || defined(__F16C__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace vantage {

typedef float v16 __attribute__((vector_size(64)));
typedef int32_t i16x __attribute__((vector_size(64)));
typedef int16_t i32x __attribute__((vector_size(64)));

inline v16 load(const float* p) { v16 v; std::memcpy(&v, p, 64); return v; }
inline void store(float* p, v16 v) { std::memcpy(p, &v, 64); }
inline v16 all(float x) { return v16{} + x; }
inline v16 max(v16 a, v16 b) { return a > b ? a : b; }

// a * b + c, rounded once where the processor can. Compilers are told never to fuse by themselves (-ffp-contract=off):
// they would here and not there, and the same sum in two loops would differ in its last bit.
inline v16 fused(v16 a, v16 b, v16 c) {
#if defined(__AVX512F__)
    return (v16)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    __m256 x[2], y[2], z[2];
    std::memcpy(x, &a, 64), std::memcpy(y, &b, 64), std::memcpy(z, &c, 64);
    x[0] = _mm256_fmadd_ps(x[0], y[0], z[0]), x[1] = _mm256_fmadd_ps(x[1], y[1], z[1]);
    std::memcpy(&c, x, 64);
    return c;
#elif defined(__aarch64__)
    float32x4_t x[4], y[4], z[4];
    std::memcpy(x, &a, 64), std::memcpy(y, &b, 64), std::memcpy(z, &c, 64);
    for (int i = 0; i < 4; i++) z[i] = vfmaq_f32(z[i], x[i], y[i]);
    std::memcpy(&c, z, 64);
    return c;
#else
    return a * b + c;
#endif
}

inline float sum(v16 v) {  // always the same tree, so that a sum never depends on who else is computed
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps((__m512)v);
#endif
    float a[16];
    store(a, v);
    for (int half = 8; half; half /= 2)
        for (int i = 0; i < half; i++) a[i] += a[i + half];
    return a[0];
}

inline float greatest(v16 v) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps((__m512)v);
#endif
    float a[16];
    store(a, v);
    float m = a[0];
    for (int i = 1; i < 16; i++) m = a[i] > m ? a[i] : m;
    return m;
}

inline float lowest(v16 v) { return -greatest(-v); }

// One bit for each lane that is at least x.
inline uint32_t reaching(v16 v, float x) {
#if defined(__AVX512F__)
    return _mm512_cmp_ps_mask((__m512)v, _mm512_set1_ps(x), _CMP_GE_OQ);
#elif defined(__AVX2__)
    __m256 half[2];
    std::memcpy(half, &v, 64);
    const __m256 y = _mm256_set1_ps(x);
    const int low = _mm256_movemask_ps(_mm256_cmp_ps(half[0], y, _CMP_GE_OQ));
    return (uint32_t)low | (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(half[1], y, _CMP_GE_OQ)) << 8;
#else
    float a[16];
    store(a, v);
    uint32_t found = 0;
    for (int i = 0; i < 16; i++) found |= (uint32_t)(a[i] >= x) << i;
    return found;
#endif
}

// s + a.low * b.low + a.high * b.high in every lane, a and b being pairs of 16-bit numbers and b the same for all.
inline i16x multiply_pairs(i16x s, i16x a, int32_t b) {
#if defined(__AVX512VNNI__)
    return (i16x)_mm512_dpwssd_epi32((__m512i)s, (__m512i)a, _mm512_set1_epi32(b));
#elif defined(__AVX512BW__)
    return s + (i16x)_mm512_madd_epi16((__m512i)a, _mm512_set1_epi32(b));
#elif defined(__AVX2__)
    __m256i low, high;
    std::memcpy(&low, &a, 32);
    std::memcpy(&high, (const char*)&a + 32, 32);
    const __m256i x = _mm256_set1_epi32(b);
    low = _mm256_madd_epi16(low, x), high = _mm256_madd_epi16(high, x);
    i16x v;
    std::memcpy(&v, &low, 32);
    std::memcpy((char*)&v + 32, &high, 32);
    return s + v;
#else
    return s + ((a << 16) >> 16) * (int32_t)(int16_t)b + (a >> 16) * (b >> 16);
#endif
}

inline v16 bits(i16x x) { v16 v; std::memcpy(&v, &x, 64); return v; }

// e^x with an error of 2 units in the last place: 2^n times a polynomial on [-ln2/2, ln2/2] (Cephes' coefficients).
inline v16 exp(v16 x) {
    x = x < -87.3f ? all(-87.3f) : x;
    x = x > 88.0f ? all(88.0f) : x;
    const v16 t = x * 1.44269504088896341f;
    const i16x n = __builtin_convertvector(t + (t < 0.0f ? all(-0.5f) : all(0.5f)), i16x);
    const v16 fn = __builtin_convertvector(n, v16);
    const v16 r = (x - fn * 0.693359375f) + fn * 2.12194440e-4f;
    v16 p = all(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    return (p * r * r + r + 1.0f) * bits((n + 127) << 23);
}

inline v16 tanh(v16 x) {
    const v16 e = exp(2.0f * (x > 9.0f ? all(9.0f) : x < -9.0f ? all(-9.0f) : x));
    return (e - 1.0f) / (e + 1.0f);
}

// Sixteen half-precision numbers. Without the instruction: by their bits, subnormal numbers included.
inline v16 halves(const uint16_t* p) {
#if defined(__AVX512F__)
    return (v16)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
#elif defined(__F16C__) && defined(__AVX__)
    v16 v;
    __m256 a = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
    __m256 b = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 8)));
    std::memcpy(&v, &a, 32);
    std::memcpy((char*)&v + 32, &b, 32);
    return v;
#else
    float out[16];
    for (int i = 0; i < 16; i++) {
        const uint32_t h = p[i], sign = (h & 0x8000u) << 16, size = h & 0x7fffu;
        uint32_t word = (size << 13) + 0x38000000u;  // the exponent's offset: 15 becomes 127
        if (size >= 0x7c00u) word += 0x38000000u;    // infinity and NaN
        float f;
        if (size < 0x0400u) f = (float)size * 5.9604644775390625e-8f;  // subnormal: multiples of 2^-24
        else std::memcpy(&f, &word, 4);
        uint32_t u;
        std::memcpy(&u, &f, 4);
        u |= sign;
        std::memcpy(&out[i], &u, 4);
    }
    return load(out);
#endif
}

}  // namespace vantage
