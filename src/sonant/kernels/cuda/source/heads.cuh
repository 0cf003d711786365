// One warp prepares a head for attention: norm and rotary embedding, as in kernels/triton/norm_rope.py.
#pragma once
#include "products.cuh"

// A lane has those columns of a head that a rotation mixes: E of the first half and the same of the second.
constexpr int HALF = DIM / 2, E = HALF / 32;

struct Columns {
    uint16_t first[E], second[E];

    __device__ __forceinline__ void read(const uint16_t* from, int lane) {
#pragma unroll
        for (int e = 0; e < E; e++) {
            first[e] = from[lane * E + e];
            second[e] = from[HALF + lane * E + e];
        }
    }
};

// A head of the fused projection, normalized and rotated, rounded where the reference rounds.
__device__ __forceinline__ Columns make_head(
    const Columns& head, const Columns& gain, const Columns& cos, const Columns& sin, bool norm, float eps
) {
    float x[E], y[E], squares = 0.0f;
#pragma unroll
    for (int e = 0; e < E; e++) {
        x[e] = bf16(head.first[e]);
        y[e] = bf16(head.second[e]);
        squares += x[e] * x[e] + y[e] * y[e];
    }
    if (norm) {
#pragma unroll
        for (int step = 16; step; step >>= 1) squares += __shfl_xor_sync(ALL, squares, step);
        const float scale = rsqrtf(squares / DIM + eps);
#pragma unroll
        for (int e = 0; e < E; e++) {
            x[e] = rounded(bf16(gain.first[e]) * rounded(x[e] * scale));
            y[e] = rounded(bf16(gain.second[e]) * rounded(y[e] * scale));
        }
    }
    Columns made;
#pragma unroll
    for (int e = 0; e < E; e++) {
        made.first[e] = to_bf16(rounded(x[e] * bf16(cos.first[e])) + rounded(-y[e] * bf16(sin.first[e])));
        made.second[e] = to_bf16(rounded(y[e] * bf16(cos.second[e])) + rounded(x[e] * bf16(sin.second[e])));
    }
    return made;
}

// Store a query's value at its place among the factors of products.
__device__ __forceinline__ void put_factor(uint8_t* tile, int row, int column, uint16_t value) {
    const int at = factor_of(column);
    *reinterpret_cast<uint16_t*>(tile + place<WIDE_BYTES>(row, at / 8) + at % 8 * 2) =
        KV_BYTES == 1 ? to_factor(bf16(value)) : value;
}

__device__ __forceinline__ void put_query(uint8_t* tile, int row, const Columns& head, int lane) {
#pragma unroll
    for (int e = 0; e < E; e++) {
        put_factor(tile, row, lane * E + e, head.first[e]);
        put_factor(tile, row, HALF + lane * E + e, head.second[e]);
    }
}

// Store a key's or value's column as the cache has it, in a tile's first row and in the cache.
__device__ __forceinline__ void put_cached(uint8_t* tile, cached_t* cache, int column, uint16_t value) {
    const int byte = column * KV_BYTES;
    const cached_t held = KV_BYTES == 1 ? to_e4m3(bf16(value)) : value;
    *reinterpret_cast<cached_t*>(tile + place<ROW_BYTES>(0, byte / 16) + byte % 16) = held;
    cache[column] = held;
}

__device__ __forceinline__ void put_cached(uint8_t* tile, cached_t* cache, const Columns& head, int lane) {
#pragma unroll
    for (int e = 0; e < E; e++) {
        put_cached(tile, cache, lane * E + e, head.first[e]);
        put_cached(tile, cache, HALF + lane * E + e, head.second[e]);
    }
}
