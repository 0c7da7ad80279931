// The kernels of some formats. Compiled once for every group of them (VANTAGE_PART), at the same time.
#include "amx.h"
#include "bytes.h"
#include "repack.h"
#include "sixteen.h"

namespace vantage {

#define VANTAGE_FORMAT(NAME)                                                                            \
    extern Product product_##NAME;                                                                      \
    extern Lookup row_##NAME;                                                                           \
    extern ByteProduct* const bytes_##NAME;                                                             \
    ByteProduct* const bytes_##NAME = byte_product<Form##NAME>();                                       \
    extern TileProduct* const tiles_##NAME;                                                             \
    TileProduct* const tiles_##NAME = tiles_of<Form##NAME>();                                           \
    bool repack_##NAME(const uint8_t* const* rows, const Matrix& w, int64_t begin, int64_t end);             \
    void product_##NAME(const Matrix& w, int begin, int end, const Rows& r, const RoundedBlock* x, float* room) { \
        quantised<Form##NAME>(w, begin, end, r, x, room);                                               \
    }                                                                                                   \
    void row_##NAME(const Matrix& w, int64_t i, float* to) { unpacked_row<Form##NAME>(w, i, to); }      \
    bool repack_##NAME(const uint8_t* const* rows, const Matrix& w, int64_t begin, int64_t end) {            \
        return repack<Form##NAME, NAME>(rows, w, begin, end);                                         \
    }

#define VANTAGE_SIXTEEN(NAME)                                                                           \
    extern Product product_##NAME;                                                                      \
    extern Lookup row_##NAME;                                                                           \
    extern ByteProduct* const bytes_##NAME;                                                             \
    ByteProduct* const bytes_##NAME = nullptr;                                                          \
    extern TileProduct* const tiles_##NAME;                                                             \
    TileProduct* const tiles_##NAME = nullptr;                                                          \
    bool repack_##NAME(const uint8_t* const* rows, const Matrix& w, int64_t begin, int64_t end);             \
    void product_##NAME(const Matrix& w, int begin, int end, const Rows& r, const RoundedBlock*, float* room) { \
        sixteen<Form##NAME>(w, begin, end, r, room);                                                    \
    }                                                                                                   \
    void row_##NAME(const Matrix& w, int64_t i, float* to) { sixteen_row<Form##NAME>(w, i, to); }       \
    bool repack_##NAME(const uint8_t* const* rows, const Matrix& w, int64_t begin, int64_t end) {            \
        return repack_sixteen<Form##NAME>(rows, w, begin, end);                                       \
    }

#if VANTAGE_PART == 1
VANTAGE_FORMAT(Q8_0)
VANTAGE_FORMAT(Q4_0)
VANTAGE_FORMAT(Q4_1)
VANTAGE_FORMAT(MXFP4)
#elif VANTAGE_PART == 2
VANTAGE_FORMAT(Q5_0)
VANTAGE_FORMAT(Q5_1)
VANTAGE_FORMAT(IQ4_NL)
VANTAGE_SIXTEEN(F16)
VANTAGE_SIXTEEN(BF16)
#elif VANTAGE_PART == 3
VANTAGE_FORMAT(Q4_K)
VANTAGE_FORMAT(Q6_K)
VANTAGE_FORMAT(IQ4_XS)
#else
VANTAGE_FORMAT(Q2_K)
VANTAGE_FORMAT(Q3_K)
VANTAGE_FORMAT(Q5_K)
#endif

}  // namespace vantage
