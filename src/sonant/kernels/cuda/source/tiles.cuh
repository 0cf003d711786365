// The online softmax of one warp of a prefill, over tiles of keys and values that all warps share.
#pragma once
#include "products.cuh"

constexpr int CHUNK = 16;  // positions that a warp copies of a tile
constexpr int KEYS = WARPS * CHUNK;

// One warp's state for its M tiles of 16 queries: the running maximum `best`, of scores before their scaling, and the
// running sum `weight` and accumulator `total` relative to it. A lane has rows lane / 4 and + 8 of each tile.
template <int M>
struct Gathered {
    float total[M][DIM / 8][4], best[M][2], weight[M][2];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int m = 0; m < M; m++) {
#pragma unroll
            for (int n = 0; n < DIM / 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) total[m][n][i] = 0.0f;
            best[m][0] = best[m][1] = lowest();
            weight[m][0] = weight[m][1] = 0.0f;
        }
    }

    // Turn scores into their exponentials, and make the sums and accumulators relative to the new maxima.
    __device__ __forceinline__ void weigh(float (&s)[M][KEYS / 8][4], float scale) {
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float high = best[m][half];
#pragma unroll
                for (int n = 0; n < KEYS / 8; n++) high = fmaxf(high, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
                high = fmaxf(high, __shfl_xor_sync(ALL, high, 1));
                high = fmaxf(high, __shfl_xor_sync(ALL, high, 2));
                // a query that has seen nothing yet has a maximum of minus infinity, and -inf - -inf would be NaN
                const float origin = high == lowest() ? 0.0f : high * scale;
                const float shrink = power_of_two(best[m][half] * scale - origin);
                best[m][half] = high;
                float sum = 0.0f;
#pragma unroll
                for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                    for (int i = 2 * half; i < 2 * half + 2; i++) {
                        s[m][n][i] = power_of_two(s[m][n][i] * scale - origin);
                        sum += s[m][n][i];
                    }
                weight[m][half] = weight[m][half] * shrink + sum;
                if (__any_sync(ALL, shrink != 1.0f)) {  // rare after the first tiles
#pragma unroll
                    for (int n = 0; n < DIM / 8; n++) {
                        total[m][n][2 * half] *= shrink;
                        total[m][n][2 * half + 1] *= shrink;
                    }
                }
            }
    }

    __device__ __forceinline__ void add(const float (&s)[M][KEYS / 8][4], shared_t values) {
#pragma unroll
        for (int k = 0; k < KEYS / 16; k++) {
            uint32_t p[M][4];
#pragma unroll
            for (int m = 0; m < M; m++) {
                p[m][0] = pack_factors(s[m][2 * k][0], s[m][2 * k][1]);
                p[m][1] = pack_factors(s[m][2 * k][2], s[m][2 * k][3]);
                p[m][2] = pack_factors(s[m][2 * k + 1][0], s[m][2 * k + 1][1]);
                p[m][3] = pack_factors(s[m][2 * k + 1][2], s[m][2 * k + 1][3]);
            }
#pragma unroll
            for (int n = 0; n < DIM / 16; n += AT_ONCE) {
                uint32_t right[AT_ONCE][2][2];
                load_values(right, pair(values, n / AT_ONCE) + k * 16 * ROW_BYTES);
#pragma unroll
                for (int m = 0; m < M; m++)
#pragma unroll
                    for (int i = 0; i < 2 * AT_ONCE; i++) {
                        const uint32_t(&b)[2] = right[i / 2][i % 2];
                        multiply(total[m][2 * n + i], p[m], b[0], b[1]);
                    }
            }
        }
    }

    // Write results to shared memory, from tile row `rows_at` on.
    __device__ __forceinline__ void leave(int rows_at, int lane) const {
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float sum = weight[m][half];
                sum += __shfl_xor_sync(ALL, sum, 1);
                sum += __shfl_xor_sync(ALL, sum, 2);
                const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;  // a query that saw nothing gets zeros
                const int at = rows_at + m * 16 + half * 8 + lane / 4;
#pragma unroll
                for (int n = 0; n < DIM / 8; n += AT_ONCE)
#pragma unroll
                    for (int i = 0; i < AT_ONCE; i++) {  // two neighbours of a lane's columns
                        const int column = column_of(n, i, lane);
                        const float second = KV_BYTES == 1 ? total[m][n + 1][2 * half + i] : total[m][n][2 * half + 1];
                        const uint32_t both = pack(total[m][n][2 * half + i] * inverse, second * inverse);
                        uint8_t* to = shared_memory + place<WIDE_BYTES>(at, column >> 3);
                        *reinterpret_cast<uint32_t*>(to + (column & 7) * 2) = both;
                    }
            }
    }
};

// Scores of a tile's 64 keys, not scaled.
template <int M>
__device__ __forceinline__ void score(float (&s)[M][KEYS / 8][4], shared_t queries, shared_t keys) {
#pragma unroll
    for (int k = 0; k < DIM / 16; k += AT_ONCE) {
        uint32_t q[AT_ONCE][M][4];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
#pragma unroll
            for (int m = 0; m < M; m++) load_matrices(q[i][m], pair(queries, k + i) + m * 16 * WIDE_BYTES);
#pragma unroll
        for (int n = 0; n < KEYS / 16; n++) {
            uint32_t right[AT_ONCE][2][2];
            load_keys(right, pair(keys, k / AT_ONCE) + n * 16 * ROW_BYTES);
#pragma unroll
            for (int m = 0; m < M; m++)
#pragma unroll
                for (int i = 0; i < 2 * AT_ONCE; i++) {
                    const uint32_t(&b)[2] = right[i / 2][i % 2];
                    if (k + i / 2 == 0) multiply_first(s[m][2 * n + i % 2], q[i / 2][m], b[0], b[1]);
                    else multiply(s[m][2 * n + i % 2], q[i / 2][m], b[0], b[1]);
                }
        }
    }
}
