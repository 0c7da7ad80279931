// AMX's tiles in plain code, beside AVX-512 in plain code. What a processor would answer with a fault ends the program: tiles
// that were not set up, rows beyond a register's, a product of shapes that do not fit.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include "plain_avx512.h"

// One for all files of the program: what sets registers up need not be compiled where they are used.
struct PlainTiles {
    bool set_up = false;
    uint8_t rows[16];
    uint16_t bytes[16];
    int8_t data[8][16][64];
};

inline PlainTiles& plain_tiles() {
    static thread_local PlainTiles tiles;  // as every thread has registers of its own
    return tiles;
}

namespace {

inline void fault_unless(bool allowed, const char* what) {
    if (allowed) return;
    std::fprintf(stderr, "a processor with AMX would fault: %s\n", what);
    std::abort();
}

inline PlainTiles& tiles_with(int tile) {
    PlainTiles& t = plain_tiles();
    fault_unless(t.set_up && tile < 8 && t.rows[tile] && t.bytes[tile], "a tile that was not set up");
    return t;
}

inline void _tile_loadconfig(const void* config) {
    const uint8_t* from = (const uint8_t*)config;
    PlainTiles& t = plain_tiles();
    fault_unless(from[0] == 1 && from[1] == 0, "another palette, or a first row");
    for (int i = 2; i < 16; i++) fault_unless(from[i] == 0, "a byte of the configuration that must be 0");
    std::memcpy(t.bytes, from + 16, sizeof t.bytes);
    std::memcpy(t.rows, from + 48, sizeof t.rows);
    for (int i = 0; i < 16; i++) {
        fault_unless(t.rows[i] <= 16 && t.bytes[i] <= 64 && !t.rows[i] == !t.bytes[i], "a tile larger than a register");
        fault_unless(i < 8 || !t.rows[i], "a ninth tile");
    }
    std::memset(t.data, 0, sizeof t.data);
    t.set_up = true;
}

inline void _tile_release() { plain_tiles().set_up = false; }

inline void _tile_zero(int tile) { std::memset(tiles_with(tile).data[tile], 0, sizeof(int8_t[16][64])); }

inline void _tile_loadd(int tile, const void* from, int64_t step) {
    PlainTiles& t = tiles_with(tile);
    _tile_zero(tile);
    for (int i = 0; i < t.rows[tile]; i++) std::memcpy(t.data[tile][i], (const char*)from + i * step, t.bytes[tile]);
}

inline void _tile_stored(int tile, void* to, int64_t step) {
    const PlainTiles& t = tiles_with(tile);
    for (int i = 0; i < t.rows[tile]; i++) std::memcpy((char*)to + i * step, t.data[tile][i], t.bytes[tile]);
}

template <class Left>
inline void tile_product(int sums, int a, int b) {
    PlainTiles& t = tiles_with(sums);
    tiles_with(a), tiles_with(b);
    fault_unless(t.rows[sums] == t.rows[a] && t.bytes[sums] == t.bytes[b] && t.bytes[a] == 4 * t.rows[b], "shapes that do not fit");
    fault_unless(sums != a && sums != b && a != b, "one tile twice");
    for (int i = 0; i < t.rows[sums]; i++)
        for (int j = 0; j < t.bytes[sums] / 4; j++) {
            int32_t sum;
            std::memcpy(&sum, t.data[sums][i] + 4 * j, 4);
            for (int k = 0; k < t.rows[b]; k++)
                for (int n = 0; n < 4; n++) sum += (Left)t.data[a][i][4 * k + n] * t.data[b][k][4 * j + n];
            std::memcpy(t.data[sums][i] + 4 * j, &sum, 4);
        }
}

inline void _tile_dpbssd(int sums, int a, int b) { tile_product<int8_t>(sums, a, b); }
inline void _tile_dpbusd(int sums, int a, int b) { tile_product<uint8_t>(sums, a, b); }

}  // namespace
