// The products of a step: a warp's input, its accumulators, and how the cluster combines them.
#pragma once
#include "weights.cuh"

// Read the right operands of a warp's products for one chunk of the depth: of its first half and of its second, two
// words for each sixteen.
template <class P, int STEP>
__device__ __forceinline__ void read_input(Piece (&right)[2][ROW_TILES], int chunk, const Place& at) {
    shared_t from = shared_base() + INPUT_AT + at.lane % 8 * STEP;
    from += 2 * ((P::group(at.warp) * P::EVERY + chunk) * CHUNK + at.lane / 8 * 8);
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int tile = 0; tile < ROW_TILES; tile++)
            load_matrices(right[half][tile].word, from + tile * 8 * STEP + half * 64);
}

// The same from global memory, for a product whose warps have no input in common, and whose columns are in the order of
// `place_of`.
template <class P>
__device__ __forceinline__ void read_input(
    Piece (&right)[2][ROW_TILES], const uint16_t* input, int rows, int chunk, const Place& at
) {
    input += at.rank * P::DEPTH + (P::group(at.warp) * P::EVERY + chunk) * CHUNK + at.lane % 4 * 8;
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int tile = 0; tile < ROW_TILES; tile++)
            right[half][tile] = read_fresh16(input + min(tile * 8 + at.lane / 4, rows - 1) * P::WIDTH + half * 32);
}

template <class P>
struct Sums {
    // A warp with one tile accumulates in two chains, since a product waits for the one before it in its chain.
    static constexpr int CHAINS = P::EACH == 1 ? 2 : 1;
    float value[P::EACH * CHAINS][ROW_TILES][4];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int n = 0; n < P::EACH * CHAINS * ROW_TILES * 4; n++)
            value[n / (ROW_TILES * 4)][n / 4 % ROW_TILES][n % 4] = 0.0f;
    }

    // Multiply a chunk of the depth, in all of this warp's tiles.
    __device__ __forceinline__ void add(
        Stream& weights, const Piece (&right)[2][ROW_TILES], const Place& at
    ) {
#pragma unroll
        for (int each = 0; each < P::EACH; each++) {
            uint32_t left[4][4];
            weights.take(left, at);
#pragma unroll
            for (int n = 0; n < 4; n++)
#pragma unroll
                for (int tile = 0; tile < ROW_TILES; tile++) {
                    const Piece& other = right[n / 2][tile];
                    multiply(value[each + n % CHAINS][tile], left[n], other.word[n % 2 * 2], other.word[n % 2 * 2 + 1]);
                }
        }
    }

    // Push the sums to the blocks that complete these columns: [rank, group, column, row] there.
    __device__ __forceinline__ void leave(const Place& at) {
        if (CHAINS == 2)
#pragma unroll
            for (int n = 0; n < ROW_TILES * 4; n++) value[0][n / 4][n % 4] += value[CHAINS - 1][n / 4][n % 4];
        constexpr int OWN = P::PAIRED ? P::COLUMNS / 2 : P::COLUMNS;
        const uint32_t part = at.rank * P::GROUPS + P::group(at.warp);
#pragma unroll
        for (int each = 0; each < P::EACH; each++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const uint32_t tile = P::PAIRED ? P::set(at.warp) : P::set(at.warp) + each * P::SETS;
                const uint32_t column = tile * 16 + half * 8 + at.lane / 4, to = column / OWN;
                const uint32_t own = column % OWN + (P::PAIRED ? each * OWN : 0);
                const shared_t gate = in_block(shared_base() + LANDING_AT, to);
                const uint32_t place = (part * P::COLUMNS + own) * ROW_STEP + at.lane % 4 * 2;
                const shared_t there = in_block(shared_base() + PARTS_AT + 4 * place, to);
#pragma unroll
                for (int row = 0; row < ROW_TILES; row++)
                    push(there + 32 * row, gate, value[each][row][2 * half], value[each][row][2 * half + 1]);
            }
    }
};

template <class P>
__device__ __forceinline__ float total(uint32_t column, uint32_t row) {
    const float* parts = reinterpret_cast<const float*>(shared_memory + PARTS_AT) + column * ROW_STEP + row;
    float sum = 0.0f;
#pragma unroll 8
    for (int part = 0; part < RANKS * P::GROUPS; part++) sum += parts[part * P::COLUMNS * ROW_STEP];
    return sum;
}
