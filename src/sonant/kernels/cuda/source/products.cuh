// Keys and values from shared memory as the right operands of products, and the orders that follow from their type.
//
// A matrix load (ldmatrix) gives each lane four bytes of a row. In bfloat16 these are the two values that a product
// needs. In eight bits they are four neighbours, of which a product takes the first two and, eight columns further on,
// the last two: so the queries' columns are put into that order as well, sixteen at a time, since a sum over columns is
// the same in any order. Values are transposed by pairs of columns; the even ones and the odd ones are then columns of
// two products.
#pragma once
#include "paged.cuh"

constexpr int AT_ONCE = 2 / KV_BYTES;  // sixteens of columns that one matrix load reads

// Load sixteen keys by AT_ONCE sixteens of columns: [sixteen, keys 0…7 or 8…15, a product's two registers].
__device__ __forceinline__ void load_keys(uint32_t (&right)[AT_ONCE][2][2], shared_t from) {
    uint32_t b[4];
    load_matrices(b, from);
#pragma unroll
    for (int n = 0; n < 2; n++) {
#if KV_BYTES == 1
        widen(right[0][n], b[2 * n]);
        widen(right[1][n], b[2 * n + 1]);
#else
        right[0][n][0] = b[2 * n];
        right[0][n][1] = b[2 * n + 1];
#endif
    }
}

// Load sixteen values by AT_ONCE sixteens of columns, of which a product has eight: [sixteen, product, its two
// registers].
__device__ __forceinline__ void load_values(uint32_t (&right)[AT_ONCE][2][2], shared_t from) {
    uint32_t b[4];
    load_matrices_turned(b, from);
#pragma unroll
    for (int n = 0; n < 2; n++) {
#if KV_BYTES == 1
        uint32_t low[2], high[2];  // positions 0…7 and 8…15, each of an even and of an odd column
        widen(low, __byte_perm(b[2 * n], 0, 0x3120));
        widen(high, __byte_perm(b[2 * n + 1], 0, 0x3120));
        right[n][0][0] = low[0], right[n][0][1] = high[0];
        right[n][1][0] = low[1], right[n][1][1] = high[1];
#else
        right[0][n][0] = b[2 * n];
        right[0][n][1] = b[2 * n + 1];
#endif
    }
}

// Which column of a head a lane has in register i of product n over values.
__device__ __forceinline__ int column_of(int n, int i, int lane) {
    return KV_BYTES == 1 ? n / 2 * 16 + (lane & 3) * 4 + (i & 1) * 2 + (n & 1) : n * 8 + (lane & 3) * 2 + (i & 1);
}

// Where a query's column lies among the factors of products over keys.
__device__ __forceinline__ int factor_of(int column) {
    return KV_BYTES == 1 ? (column & ~15) | (column & 2) << 2 | (column & 12) >> 1 | (column & 1) : column;
}

// A query's value as a factor: half precision has a smaller range than bfloat16.
__device__ __forceinline__ float in_range(float x) { return KV_BYTES == 1 ? fminf(fmaxf(x, -65504.0f), 65504.0f) : x; }
__device__ __forceinline__ uint16_t to_factor(float x) { return static_cast<uint16_t>(pack_factors(in_range(x), 0.0f)); }
