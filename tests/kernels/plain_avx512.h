// AVX-512 in plain code, for processors without it: SIMDe's, and what Debian's version of it lacks.
#pragma once
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>

#undef _mm512_madd_epi16

namespace {

typedef float Floats512 __attribute__((vector_size(64), may_alias));
typedef int32_t Ints512 __attribute__((vector_size(64), may_alias));
typedef int16_t Shorts512 __attribute__((vector_size(64), may_alias));

inline __m512i _mm512_madd_epi16(__m512i a, __m512i b) {
    const Shorts512 x = (Shorts512)a, y = (Shorts512)b;
    Ints512 r{};
    for (int i = 0; i < 16; i++) r[i] = (int32_t)x[2 * i] * y[2 * i] + (int32_t)x[2 * i + 1] * y[2 * i + 1];
    return (__m512i)r;
}

inline __m512 _mm512_shuffle_f32x4(__m512 a, __m512 b, int quarters) {
    const Floats512 x = (Floats512)a, y = (Floats512)b;
    Floats512 r{};
    for (int i = 0; i < 16; i++) r[i] = (i < 8 ? x : y)[4 * (quarters >> i / 4 * 2 & 3) + i % 4];
    return (__m512)r;
}

inline float _mm512_reduce_max_ps(__m512 a) {
    const Floats512 v = (Floats512)a;
    float m = v[0];
    for (int i = 1; i < 16; i++) m = v[i] > m ? v[i] : m;
    return m;
}

inline int32_t _mm512_reduce_add_epi32(__m512i a) {
    const Ints512 v = (Ints512)a;
    int32_t sum = 0;
    for (int i = 0; i < 16; i++) sum += v[i];
    return sum;
}

inline __m128i _mm256_cvtepi16_epi8(__m256i a) {
    int16_t wide[16];
    int8_t narrow[16];
    std::memcpy(wide, &a, 32);
    for (int i = 0; i < 16; i++) narrow[i] = (int8_t)wide[i];
    __m128i r;
    std::memcpy(&r, narrow, 16);
    return r;
}

inline __m512 _mm512_cvtph_ps(__m256i a) {
    uint16_t h[16];
    std::memcpy(h, &a, 32);
    Floats512 r{};
    for (int i = 0; i < 16; i++) r[i] = simde_float16_to_float32(simde_uint16_as_float16(h[i]));
    return (__m512)r;
}

inline __m256i _mm512_cvtps_ph(__m512 a, int) {
    const Floats512 v = (Floats512)a;
    uint16_t h[16];
    for (int i = 0; i < 16; i++) h[i] = simde_float16_as_uint16(simde_float16_from_float32(v[i]));
    __m256i r;
    std::memcpy(&r, h, 32);
    return r;
}

inline __m512i _mm512_cvtepi8_epi32(__m128i a) {
    int8_t b[16];
    std::memcpy(b, &a, 16);
    Ints512 r{};
    for (int i = 0; i < 16; i++) r[i] = b[i];
    return (__m512i)r;
}

}  // namespace
