// One warp's online softmax over chunks of positions for up to 8 queries: the products of gathered.cuh transposed, with
// positions, and then columns of values, as the 16 rows of a tile and queries as its 8 columns. So there are half as
// many products and accumulators as with mostly empty tiles of 16 queries.
#pragma once
#include "products.cuh"

// Load sixteen positions by AT_ONCE sixteens of columns, as left operands: [sixteen, a product's four registers].
__device__ __forceinline__ void load_key_rows(uint32_t (&left)[AT_ONCE][4], shared_t from) {
    uint32_t b[4];
    load_matrices(b, from);
#pragma unroll
    for (int i = 0; i < 4; i++) {
#if KV_BYTES == 1
        uint32_t both[2];
        widen(both, b[i]);
        left[i / 2][i % 2] = both[0];
        left[i / 2][i % 2 + 2] = both[1];
#else
        left[0][i] = b[i];
#endif
    }
}

// Load AT_ONCE sixteens of columns by sixteen positions; in eight bits the even columns come first.
__device__ __forceinline__ void load_value_columns(uint32_t (&left)[AT_ONCE][4], shared_t from) {
    uint32_t b[4];
    load_matrices_turned(b, from);
#pragma unroll
    for (int i = 0; i < 4; i++) {
#if KV_BYTES == 1
        uint32_t both[2];
        widen(both, __byte_perm(b[i], 0, 0x3120));
        left[i % 2][i / 2 * 2] = both[0];
        left[i % 2][i / 2 * 2 + 1] = both[1];
#else
        left[0][i] = b[i];
#endif
    }
}

// Which column of a head a lane has in registers 0 and 1 (half 0) or 2 and 3 of tile n.
__device__ __forceinline__ int turned_column(int n, int half, int lane) {
    return n * 16 + (KV_BYTES == 1 ? lane / 4 * 2 + half : lane / 4 + half * 8);
}

// The running maximum `best`, and the running sum `weight` and accumulator `total` relative to it. A lane has queries
// (lane % 4) * 2 and + 1.
struct Turned {
    float total[DIM / 16][4], best[2], weight[2];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int n = 0; n < DIM / 16; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) total[n][i] = 0.0f;
        best[0] = best[1] = lowest();
        weight[0] = weight[1] = 0.0f;
    }

    // Add a chunk, of which the first `valid` positions (at least one) count; the values of all others must be zeros.
    // The queries' first and third registers are the right operand of a product: rows 0 to 7.
    template <int CHUNK>
    __device__ __forceinline__ void add(
        const uint32_t (&q)[DIM / 16][4], shared_t keys, shared_t values, int valid, float scale, int lane
    ) {
        constexpr int TILES = CHUNK / 16;
        float s[TILES][4];
        score<TILES>(s, q, keys + by_rows<ROW_BYTES>(lane));
#pragma unroll
        for (int n = 0; n < TILES; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                s[n][i] = n * 16 + lane / 4 + i / 2 * 8 < valid ? s[n][i] * scale : lowest();
        bool higher = false;
        float shrink[2];
#pragma unroll
        for (int query = 0; query < 2; query++) {
            float highest = fmaxf(s[0][query], s[0][query + 2]);
#pragma unroll
            for (int n = 1; n < TILES; n++) highest = fmaxf(highest, fmaxf(s[n][query], s[n][query + 2]));
#pragma unroll
            for (int step = 4; step < 32; step *= 2) highest = fmaxf(highest, __shfl_xor_sync(ALL, highest, step));
            highest = fmaxf(highest, best[query]);
            higher |= highest > best[query];
            shrink[query] = power_of_two(best[query] - highest);  // 0 for the first chunk
            best[query] = highest;
            weight[query] *= shrink[query];
#pragma unroll
            for (int n = 0; n < TILES; n++)
#pragma unroll
                for (int i = query; i < 4; i += 2) {
                    s[n][i] = power_of_two(s[n][i] - highest);
                    weight[query] += s[n][i];
                }
        }
        if (__any_sync(ALL, higher)) {
#pragma unroll
            for (int n = 0; n < DIM / 16; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) total[n][i] *= shrink[i % 2];
        }
        take<TILES>(s, values + by_pieces(lane));
    }

    // Scores, in two accumulators of which neither waits for the other's products.
    template <int TILES>
    static __device__ __forceinline__ void score(float (&s)[TILES][4], const uint32_t (&q)[DIM / 16][4], shared_t keys) {
        float more[TILES][4];
#pragma unroll
        for (int k = 0; k < DIM / 16; k += AT_ONCE)
#pragma unroll
            for (int n = 0; n < TILES; n++) {
                uint32_t left[AT_ONCE][4];
                load_key_rows(left, pair(keys, k / AT_ONCE) + n * 16 * ROW_BYTES);
#pragma unroll
                for (int i = 0; i < AT_ONCE; i++) {
                    float(&sum)[4] = (k + i) % 2 ? more[n] : s[n];
                    if (k + i < 2) multiply_first(sum, left[i], q[k + i][0], q[k + i][2]);
                    else multiply(sum, left[i], q[k + i][0], q[k + i][2]);
                }
            }
#pragma unroll
        for (int n = 0; n < TILES; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) s[n][i] += more[n][i];
    }

    // Accumulate values times their weights.
    template <int TILES>
    __device__ __forceinline__ void take(const float (&s)[TILES][4], shared_t values) {
#pragma unroll
        for (int n = 0; n < TILES; n++) {
            const uint32_t first = turn(pack_factors(s[n][0], s[n][1])), second = turn(pack_factors(s[n][2], s[n][3]));
#pragma unroll
            for (int k = 0; k < DIM / 16; k += AT_ONCE) {
                uint32_t left[AT_ONCE][4];
                load_value_columns(left, pair(values, k / AT_ONCE) + n * 16 * ROW_BYTES);
#pragma unroll
                for (int i = 0; i < AT_ONCE; i++) multiply(total[k + i], left[i], first, second);
            }
        }
    }
};
