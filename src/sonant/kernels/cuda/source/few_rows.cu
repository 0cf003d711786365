// A product with some rows on tensor cores, with the norm before it and SwiGLU or the residual sum after it.
//
// As with one row, what counts is what comes one after another once the kernel before has ended. A block's weights are in
// shared memory before it waits. Then warps share the depth (and, of 64 rows, each takes half): every value of the input
// is read by one warp only, which copies it for itself, a few blocks of 32 ahead, so that there is no barrier until all
// is multiplied. The warps' sums meet in shared memory; those of blocks that share a depth too, in memory, as split_k.py
// has it. A lane reads 16 bytes of a line at once, of rows and of weights alike: which of a step's sixteen places in the
// depth they fill is the same for both, and so does not matter.
//
// ROWS (16, 32 or 64), LINES of weights and DEPTH of a block, SPLITS, STAGES, NORM and GATED are given when it is compiled.
// Gated, half of the lines are gates, and the columns that belong to them follow.
#include "ptx.cuh"

constexpr uint32_t ALL_LANES = 0xffffffffu;
constexpr float LOG2_E = 1.4426950408889634f;
constexpr int WARPS = 8, THREADS = 32 * WARPS;
constexpr int ROW_WARPS = ROWS == 64 ? 2 : 1, DEPTH_WARPS = WARPS / ROW_WARPS;
constexpr int WARP_ROWS = ROWS / ROW_WARPS, ROW_TILES = WARP_ROWS / 16, LINE_TILES = LINES / 8;
constexpr int BLOCK = 32, LINE_BYTES = 2 * BLOCK;  // of the depth, at a time
constexpr int BLOCKS = DEPTH / BLOCK, OWN_BLOCKS = BLOCKS / DEPTH_WARPS;
constexpr int COLUMNS = GATED ? LINES / 2 : LINES;
constexpr int WEIGHT_BYTES = LINES * DEPTH * 2, GAIN_BYTES = NORM ? DEPTH * 2 : 0;
constexpr int STAGE_BYTES = WARP_ROWS * LINE_BYTES;
// after the products, in the place of all that: [DEPTH_WARPS, ROWS, STRIDE] sums, [DEPTH_WARPS, ROWS] squares, a flag
constexpr int STRIDE = LINES + 8;  // lanes that write sums meet no bank twice
constexpr int SQUARES_AT = DEPTH_WARPS * ROWS * STRIDE, FLAG_AT = SQUARES_AT + DEPTH_WARPS * ROWS;
constexpr int CELLS = ROWS * LINES + ROWS;  // that a block leaves for the last one: sums, squares
constexpr int OWN_CELLS = (ROWS * COLUMNS + THREADS - 1) / THREADS;
static_assert(OWN_BLOCKS * DEPTH_WARPS * BLOCK == DEPTH && LINE_TILES * 8 == LINES, "whole tiles");
static_assert(STAGES <= OWN_BLOCKS, "no more blocks on the way than there are");

struct FewArgs {
    const uint16_t *x, *weight, *gain, *residual;  // without a norm or a sum: null
    uint16_t* out;
    float* partials;     // [strips, SPLITS, CELLS]
    uint32_t* arrivals;  // [strips], zero between launches
    int rows, columns, depth;  // of all blocks; gated, the weight has twice as many columns
    float eps;
};
static_assert(sizeof(FewArgs) == 72, "as few_rows.py packs it");

// All of a block's weights, and of the norm's gain what belongs to its depth: tiles of 32 by LINES.
__device__ __forceinline__ void fetch_weights(const FewArgs& a, int first, int begin) {
    for (int piece = threadIdx.x; piece < LINES * BLOCKS * 4; piece += THREADS) {
        const int line = piece / (BLOCKS * 4), at = piece % (BLOCKS * 4);  // neighbours read on along a line
        int column = first + (GATED ? line % COLUMNS : line);
        column = min(column, a.columns - 1) + (GATED ? line / COLUMNS * a.columns : 0);
        const uint16_t* from = a.weight + static_cast<int64_t>(column) * a.depth + begin + at * 8;
        copy16(shared_base() + at / 4 * (LINES * LINE_BYTES) + line * LINE_BYTES + at % 4 * 16, from, true);
    }
    if (NORM)
        for (int piece = threadIdx.x; piece < DEPTH / 8; piece += THREADS)
            copy16(shared_base() + WEIGHT_BYTES + piece * 16, a.gain + begin + piece * 8, true);
    copies_commit();
}

// This warp's rows of one block of the depth. A group is closed even where nothing is left to copy: groups are counted.
__device__ __forceinline__ void fetch_rows(const FewArgs& a, shared_t ring, int n, int first_row, int begin, int lane) {
    if (n < OWN_BLOCKS) {
        const uint16_t* from = a.x + begin + n * (DEPTH_WARPS * BLOCK) + lane % 4 * 8;
#pragma unroll
        for (int turn = 0; turn < WARP_ROWS / 8; turn++) {
            const int row = turn * 8 + lane / 4;
            const bool there = first_row + row < a.rows;
            copy16(ring + n % STAGES * STAGE_BYTES + row * LINE_BYTES + lane % 4 * 16,
                   from + static_cast<int64_t>(there ? first_row + row : 0) * a.depth, there);
        }
    }
    copies_commit();
}

struct Sums {
    float total[ROW_TILES][LINE_TILES][4];
    float square[ROW_TILES][2];

    __device__ __forceinline__ void add_squares(const Words& words, int tile, int half) {
#pragma unroll
        for (int e = 0; e < 8; e++) square[tile][half] += half_word(words, e) * half_word(words, e);
    }

    // One block of the depth: rows and weights at these places of shared memory, and the gain if there is a norm.
    __device__ __forceinline__ void add_products(const uint8_t* rows, const uint8_t* weights, const uint8_t* gain, int lane) {
        const int at = lane / 4 * LINE_BYTES + lane % 4 * 16;
        Words upper[ROW_TILES], lower[ROW_TILES], factor = {};
        if (NORM) factor = shared_words(gain + lane % 4 * 16);
#pragma unroll
        for (int tile = 0; tile < ROW_TILES; tile++) {
            upper[tile] = shared_words(rows + tile * 16 * LINE_BYTES + at);
            lower[tile] = shared_words(rows + (tile * 16 + 8) * LINE_BYTES + at);
            if (NORM) {  // its scale, a factor of the whole row, comes at the end
                add_squares(upper[tile], tile, 0);
                add_squares(lower[tile], tile, 1);
#pragma unroll
                for (int w = 0; w < 4; w++) {
                    upper[tile].word[w] = multiply_pairs(upper[tile].word[w], factor.word[w]);
                    lower[tile].word[w] = multiply_pairs(lower[tile].word[w], factor.word[w]);
                }
            }
        }
#pragma unroll
        for (int n = 0; n < LINE_TILES; n++) {
            const Words own = shared_words(weights + n * 8 * LINE_BYTES + at);
#pragma unroll
            for (int tile = 0; tile < ROW_TILES; tile++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const uint32_t left[4] = {
                        upper[tile].word[2 * half], lower[tile].word[2 * half],
                        upper[tile].word[2 * half + 1], lower[tile].word[2 * half + 1],
                    };
                    multiply(total[tile][n], left, own.word[2 * half], own.word[2 * half + 1]);
                }
        }
    }

    // To where all threads of the block find them.
    __device__ __forceinline__ void leave(int depth_warp, int first_row, int lane) {
        float* shared = reinterpret_cast<float*>(shared_memory);
#pragma unroll
        for (int tile = 0; tile < ROW_TILES; tile++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int row = depth_warp * ROWS + first_row + tile * 16 + half * 8 + lane / 4;
#pragma unroll
                for (int n = 0; n < LINE_TILES; n++) {
                    float* to = shared + row * STRIDE + n * 8 + lane % 4 * 2;
                    to[0] = total[tile][n][2 * half];
                    to[1] = total[tile][n][2 * half + 1];
                }
                if (NORM) {
                    float sum = square[tile][half];
                    sum += __shfl_xor_sync(ALL_LANES, sum, 1);
                    sum += __shfl_xor_sync(ALL_LANES, sum, 2);
                    if (lane % 4 == 0) shared[SQUARES_AT + row] = sum;
                }
            }
    }
};

// Over the block's warps: the sum of line `line` in row `row`, or with line = -1 that of the row's squares.
__device__ __forceinline__ float sum_of_warps(int row, int line) {
    const float* shared = reinterpret_cast<const float*>(shared_memory);
    float sum = 0.0f;
#pragma unroll
    for (int n = 0; n < DEPTH_WARPS; n++)
        sum += line < 0 ? shared[SQUARES_AT + n * ROWS + row] : shared[(n * ROWS + row) * STRIDE + line];
    return sum;
}

// The same over all blocks of a strip, in their order, whoever asks.
__device__ __forceinline__ float sum_of_blocks(const float* slots, int row, int line) {
    const int cell = line < 0 ? ROWS * LINES + row : row * LINES + line;
    float sum = 0.0f;
#pragma unroll
    for (int n = 0; n < SPLITS; n++) sum += read_fresh(slots + n * CELLS + cell);
    return sum;
}

// Leave this block's sums; whether it is the last of its strip. The count is at zero then, for the next launch.
__device__ __forceinline__ bool arrives_last(float* slots, uint32_t* arrivals) {
    float* own = slots + blockIdx.y * CELLS;
    for (int cell = threadIdx.x; cell < ROWS * LINES; cell += THREADS) own[cell] = sum_of_warps(cell / LINES, cell % LINES);
    if (NORM)
        for (int row = threadIdx.x; row < ROWS; row += THREADS) own[ROWS * LINES + row] = sum_of_warps(row, -1);
    int* is_last = reinterpret_cast<int*>(shared_memory) + FLAG_AT;
    __threadfence();  // what I wrote is seen by other blocks before the count that says so
    __syncthreads();  // … and so is what all my threads wrote
    if (threadIdx.x == 0) {
        *is_last = atomicInc(arrivals, SPLITS - 1) == SPLITS - 1;
        __threadfence();  // the others' sums are not read before the count
    }
    __syncthreads();  // all threads know
    return *is_last;
}

__device__ __forceinline__ void finish(const FewArgs& a, const float* slots, const float (&before)[OWN_CELLS], int first) {
#pragma unroll
    for (int n = 0; n < OWN_CELLS; n++) {
        const int cell = n * THREADS + threadIdx.x, row = cell / COLUMNS, column = cell % COLUMNS;
        if (row >= a.rows || first + column >= a.columns) continue;
        float scale = 1.0f, other = 0.0f;
        float total = SPLITS > 1 ? sum_of_blocks(slots, row, column) : sum_of_warps(row, column);
        if (GATED) other = SPLITS > 1 ? sum_of_blocks(slots, row, COLUMNS + column) : sum_of_warps(row, COLUMNS + column);
        if (NORM) scale = rsqrtf((SPLITS > 1 ? sum_of_blocks(slots, row, -1) : sum_of_warps(row, -1)) / a.depth + a.eps);
        float result = rounded(total * scale);
        if (GATED) {
            const float silu = rounded(result / (1.0f + power_of_two(-result * LOG2_E)));
            result = rounded(silu * rounded(other * scale));
        }
        a.out[static_cast<int64_t>(row) * a.columns + first + column] = to_bf16(a.residual ? before[n] + result : result);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) few_rows(const __grid_constant__ FewArgs a) {
    launch_dependents();
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    const int depth_warp = warp % DEPTH_WARPS, first_row = warp / DEPTH_WARPS * WARP_ROWS;
    const int first = blockIdx.x * COLUMNS, begin = blockIdx.y * DEPTH;
    const int ring = WEIGHT_BYTES + GAIN_BYTES + warp * STAGES * STAGE_BYTES;  // where this warp's rows lie
    fetch_weights(a, first, begin);
    wait_prior();

    const int own = begin + depth_warp * BLOCK;
#pragma unroll
    for (int n = 0; n < STAGES; n++) fetch_rows(a, shared_base() + ring, n, first_row, own, lane);
    float before[OWN_CELLS];
#pragma unroll
    for (int n = 0; n < OWN_CELLS; n++) {
        const int cell = n * THREADS + threadIdx.x, row = cell / COLUMNS, column = first + cell % COLUMNS;
        const bool there = a.residual && row < a.rows && column < a.columns;
        before[n] = there ? bf16(read_fresh(a.residual + static_cast<int64_t>(row) * a.columns + column)) : 0.0f;
    }
    copies_wait<STAGES>();
    __syncthreads();  // the weights that all threads fetched

    Sums sums = {};
#pragma unroll 2
    for (int n = 0; n < OWN_BLOCKS; n++) {
        copies_wait<STAGES - 1>();
        __syncwarp();  // what all lanes fetched
        const int block = depth_warp + n * DEPTH_WARPS;
        sums.add_products(shared_memory + ring + n % STAGES * STAGE_BYTES, shared_memory + block * (LINES * LINE_BYTES),
                          shared_memory + WEIGHT_BYTES + block * LINE_BYTES, lane);
        __syncwarp();  // all lanes have read what is written over
        fetch_rows(a, shared_base() + ring, n + STAGES, first_row, own, lane);
    }
    __syncthreads();  // nobody reads what the sums are written over
    sums.leave(depth_warp, first_row, lane);
    __syncthreads();

    float* slots = a.partials + static_cast<int64_t>(blockIdx.x) * SPLITS * CELLS;
    if (SPLITS == 1 || arrives_last(slots, a.arrivals + blockIdx.x)) finish(a, slots, before, first);
}
