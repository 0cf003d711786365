// What one warp gathers from chunks of 16 positions for 16 queries: an online softmax over products of 16 × 8 × 16.
#pragma once
#include "products.cuh"

// Totals over weights, relative to scores of `best`; a lane has rows lane / 4 and + 8.
struct Gathered {
    float total[DIM / 8][4], best[2], weight[2];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int n = 0; n < DIM / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) total[n][i] = 0.0f;
        best[0] = best[1] = lowest();
        weight[0] = weight[1] = 0.0f;
    }

    // A chunk of which the first `valid` positions (at least one) count; the values of all others must be zeros.
    __device__ __forceinline__ void add(
        const uint32_t (&q)[DIM / 16][4], shared_t keys, shared_t values, int valid, float scale, int lane
    ) {
        float s[2][4];
        const shared_t keys_at = keys + by_pieces(lane), values_at = values + by_rows<ROW_BYTES>(lane);
#pragma unroll
        for (int k = 0; k < DIM / 16; k += AT_ONCE) {
            uint32_t right[AT_ONCE][2][2];
            load_keys(right, pair(keys_at, k / AT_ONCE));
#pragma unroll
            for (int m = 0; m < 2 * AT_ONCE; m++) {
                const uint32_t(&b)[2] = right[m / 2][m % 2];
                if (k + m / 2 == 0) multiply_first(s[m % 2], q[k + m / 2], b[0], b[1]);
                else multiply(s[m % 2], q[k + m / 2], b[0], b[1]);
            }
        }
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                s[n][i] = n * 8 + (lane & 3) * 2 + (i & 1) < valid ? s[n][i] * scale : lowest();
        bool higher = false;
        float shrink[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float highest = fmaxf(fmaxf(s[0][2 * half], s[0][2 * half + 1]), fmaxf(s[1][2 * half], s[1][2 * half + 1]));
            highest = fmaxf(highest, __shfl_xor_sync(ALL, highest, 1));
            highest = fmaxf(highest, __shfl_xor_sync(ALL, highest, 2));
            highest = fmaxf(highest, best[half]);
            higher |= highest > best[half];
            shrink[half] = power_of_two(best[half] - highest);  // 0 for the first chunk
            best[half] = highest;
            weight[half] *= shrink[half];
#pragma unroll
            for (int n = 0; n < 2; n++)
#pragma unroll
                for (int i = 2 * half; i < 2 * half + 2; i++) {
                    s[n][i] = power_of_two(s[n][i] - highest);
                    weight[half] += s[n][i];
                }
        }
        if (__any_sync(ALL, higher)) {
#pragma unroll
            for (int n = 0; n < DIM / 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) total[n][i] *= shrink[i / 2];
        }
        const uint32_t p[4] = {pack_factors(s[0][0], s[0][1]), pack_factors(s[0][2], s[0][3]),
                               pack_factors(s[1][0], s[1][1]), pack_factors(s[1][2], s[1][3])};
#pragma unroll
        for (int n = 0; n < DIM / 16; n += AT_ONCE) {
            uint32_t right[AT_ONCE][2][2];
            load_values(right, pair(values_at, n / AT_ONCE));
#pragma unroll
            for (int m = 0; m < 2 * AT_ONCE; m++) {
                const uint32_t(&b)[2] = right[m / 2][m % 2];
                multiply(total[2 * n + m], p, b[0], b[1]);
            }
        }
    }
};
