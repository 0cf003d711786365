// One warp's online softmax over chunks of positions for 9 to 16 queries, in products of 16 × 8 × 16.
#pragma once
#include "products.cuh"

// The running maximum `best`, and the running sum `weight` and accumulator `total` relative to it. A lane has rows
// lane / 4 and + 8.
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

    // Add a chunk, of which the first `valid` positions (at least one) count; the values of all others must be zeros.
    template <int CHUNK>
    __device__ __forceinline__ void add(
        const uint32_t (&q)[DIM / 16][4], shared_t keys, shared_t values, int valid, float scale, int lane
    ) {
        constexpr int TILES = CHUNK / 8;  // of scores
        float s[TILES][4];
        score<CHUNK>(s, q, keys + by_pieces(lane));
#pragma unroll
        for (int n = 0; n < TILES; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                s[n][i] = n * 8 + (lane & 3) * 2 + (i & 1) < valid ? s[n][i] * scale : lowest();
        bool higher = false;
        float shrink[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float highest = fmaxf(s[0][2 * half], s[0][2 * half + 1]);
#pragma unroll
            for (int n = 1; n < TILES; n++) highest = fmaxf(highest, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
            highest = fmaxf(highest, __shfl_xor_sync(ALL, highest, 1));
            highest = fmaxf(highest, __shfl_xor_sync(ALL, highest, 2));
            highest = fmaxf(highest, best[half]);
            higher |= highest > best[half];
            shrink[half] = power_of_two(best[half] - highest);  // 0 for the first chunk
            best[half] = highest;
            weight[half] *= shrink[half];
#pragma unroll
            for (int n = 0; n < TILES; n++)
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
        take<CHUNK>(s, values + by_rows<ROW_BYTES>(lane));
    }

    template <int CHUNK>
    static __device__ __forceinline__ void score(
        float (&s)[CHUNK / 8][4], const uint32_t (&q)[DIM / 16][4], shared_t keys
    ) {
#pragma unroll
        for (int k = 0; k < DIM / 16; k += AT_ONCE)
#pragma unroll
            for (int sixteen = 0; sixteen < CHUNK / 16; sixteen++) {
                uint32_t right[AT_ONCE][2][2];
                load_keys(right, pair(keys, k / AT_ONCE) + sixteen * 16 * ROW_BYTES);
#pragma unroll
                for (int m = 0; m < 2 * AT_ONCE; m++) {
                    const uint32_t(&b)[2] = right[m / 2][m % 2];
                    float(&sum)[4] = s[2 * sixteen + m % 2];
                    if (k + m / 2 == 0) multiply_first(sum, q[k + m / 2], b[0], b[1]);
                    else multiply(sum, q[k + m / 2], b[0], b[1]);
                }
            }
    }

    // Accumulate values times their weights.
    template <int CHUNK>
    __device__ __forceinline__ void take(const float (&s)[CHUNK / 8][4], shared_t values) {
#pragma unroll
        for (int sixteen = 0; sixteen < CHUNK / 16; sixteen++) {
            const float(&first)[4] = s[2 * sixteen];
            const float(&second)[4] = s[2 * sixteen + 1];
            const uint32_t p[4] = {pack_factors(first[0], first[1]), pack_factors(first[2], first[3]),
                                   pack_factors(second[0], second[1]), pack_factors(second[2], second[3])};
#pragma unroll
            for (int n = 0; n < DIM / 16; n += AT_ONCE) {
                uint32_t right[AT_ONCE][2][2];
                load_values(right, pair(values, n / AT_ONCE) + sixteen * 16 * ROW_BYTES);
#pragma unroll
                for (int m = 0; m < 2 * AT_ONCE; m++) {
                    const uint32_t(&b)[2] = right[m / 2][m % 2];
                    multiply(total[2 * n + m], p, b[0], b[1]);
                }
            }
        }
    }
};
