// A product of one row in shared memory with columns whose weights a warp holds in its registers: a lane has eight of
// every 256 values of the depth. DEPTH, COLUMNS of a warp and WARPS are given when it is compiled.
#pragma once
#include "ptx.cuh"

constexpr uint32_t ALL_LANES = 0xffffffffu;
constexpr float LOG2_E = 1.4426950408889634f;

constexpr int CHUNKS = DEPTH / 256;
static_assert(CHUNKS * 256 == DEPTH, "a lane has whole pieces of 16 bytes");

struct Held {
    Words words[COLUMNS][CHUNKS];

    // Columns past the end are the last one again: what comes of them is not stored.
    __device__ __forceinline__ void read(const uint16_t* weight, int first, int columns, int lane) {
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            const uint16_t* line = weight + static_cast<int64_t>(min(first + c, columns - 1)) * DEPTH + lane * 8;
#pragma unroll
            for (int k = 0; k < CHUNKS; k++) words[c][k] = read_weights(line + k * 256);
        }
    }

    __device__ __forceinline__ void add_products(float (&totals)[COLUMNS], const float (&values)[8], int k) const {
#pragma unroll
        for (int c = 0; c < COLUMNS; c++)
#pragma unroll
            for (int e = 0; e < 8; e++) totals[c] += half_word(words[c][k], e) * values[e];
    }
};

__device__ __forceinline__ void values_of(float (&values)[8], const uint16_t* row, int k, int lane) {
    const Words words = shared_words(row + k * 256 + lane * 8);
#pragma unroll
    for (int e = 0; e < 8; e++) values[e] = half_word(words, e);
}

__device__ __forceinline__ float sum_of_lanes(float value) {
#pragma unroll
    for (int step = 16; step; step >>= 1) value += __shfl_xor_sync(ALL_LANES, value, step);
    return value;
}

// Each lane's own of the sums over all lanes: lane c has that of totals[c].
__device__ __forceinline__ float own_total(const float (&totals)[COLUMNS], int lane) {
    float own = 0.0f;
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) {
        const float sum = sum_of_lanes(totals[c]);
        if (lane == c) own = sum;
    }
    return own;
}
