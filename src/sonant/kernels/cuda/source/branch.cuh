// The start of a residual branch: this block's share of the rows, times the norm's gains, goes into shared memory, and
// its sums of squares, which the norm needs, to the whole cluster.
#pragma once
#include "stack.cuh"

constexpr int PIECES = Projection::DEPTH / 8;  // of 16 bytes, in a block's share of a row
constexpr int LANES = PIECES < 32 ? PIECES : 32, AT_ONCE = 32 / LANES, TURNS = PIECES / LANES;
static_assert(32 % LANES == 0 && PIECES % LANES == 0, "lanes share a row evenly");

// A lane's gains of a norm. They are weights, so they may be read before the rows are ready.
struct Gains {
    Piece piece[TURNS];

    __device__ __forceinline__ void read(const uint16_t* gain, const Place& at) {
#pragma unroll
        for (int n = 0; n < TURNS; n++)
            piece[n] = read_fresh16(gain + at.rank * Projection::DEPTH + (n * LANES + at.lane % LANES) * 8);
    }
};

// A lane's part of the sums of squares of its warp's rows.
constexpr int PASSES = (ROWS + WARPS * AT_ONCE - 1) / (WARPS * AT_ONCE);
struct Squares {
    float sum[PASSES];

    // Push this block's share of each row's sum to all blocks of the cluster: the norm's factor needs all shares.
    __device__ __forceinline__ void leave(const Place& at) {
#pragma unroll
        for (int step = LANES / 2; step; step >>= 1)
#pragma unroll
            for (int pass = 0; pass < PASSES; pass++) sum[pass] += __shfl_xor_sync(ALL, sum[pass], step);
        const uint32_t to = at.lane % LANES;
#pragma unroll
        for (int pass = 0; pass < PASSES; pass++) {
            const uint32_t row = (pass * WARPS + at.warp) * AT_ONCE + at.lane / LANES;
            if (to < RANKS && row < ROWS)
                push(in_block(shared_base() + SQUARES_AT + 4 * (at.rank * ROWS + row), to),
                     in_block(shared_base() + LANDING_AT, to), sum[pass]);
        }
    }
};

// Write this block's share of x, times the gains, to shared memory. The norm's own factor needs whole rows, and is
// applied to the products' results.
__device__ __forceinline__ void open_branch(Squares& squares, const StackArgs& a, const Gains& gains, const Place& at) {
    Piece rows[PASSES][TURNS];
#pragma unroll
    for (int pass = 0; pass < PASSES; pass++) {
        const uint32_t row = min((pass * WARPS + at.warp) * AT_ONCE + at.lane / LANES, a.rows - 1);
        const uint16_t* from = a.x + row * HIDDEN + at.rank * Projection::DEPTH + at.lane % LANES * 8;
#pragma unroll
        for (int n = 0; n < TURNS; n++) rows[pass][n] = read_fresh16(from + n * LANES * 8);
    }
#pragma unroll
    for (int pass = 0; pass < PASSES; pass++) {
        const uint32_t row = (pass * WARPS + at.warp) * AT_ONCE + at.lane / LANES;
        squares.sum[pass] = 0.0f;
#pragma unroll
        for (int n = 0; n < TURNS; n++) {
            Piece scaled;
#pragma unroll
            for (int w = 0; w < 4; w++) {
                const uint32_t x = rows[pass][n].word[w], gain = gains.piece[n].word[w];
                squares.sum[pass] += low(x) * low(x) + high(x) * high(x);
                scaled.word[w] = product2(x, gain);
            }
            const uint32_t piece = n * LANES + at.lane % LANES;
            if (row < ROWS) move16(shared_memory + INPUT_AT + row * NORMED_STEP + piece * 16, &scaled);
        }
    }
}

// The factor of a row's norm, once all sums of squares have landed.
__device__ __forceinline__ float norm_factor(float eps, uint32_t row) {
    const float* squares = reinterpret_cast<const float*>(shared_memory + SQUARES_AT) + row;
    float sum = 0.0f;
#pragma unroll
    for (int rank = 0; rank < RANKS; rank++) sum += squares[rank * ROWS];
    return rsqrtf(sum * (1.0f / HIDDEN) + eps);
}
