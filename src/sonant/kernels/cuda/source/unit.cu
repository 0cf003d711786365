// A residual unit of 96 channels in one kernel, over activated inputs: a causal convolution of seven taps, SnakeBeta,
// one of a single tap, the sum with the unit's input, and SnakeBeta of that.
//
// All weights stay in shared memory. A tile's inputs lie there once, as lines; each tap reads the same lines at another
// offset. Three warpgroups have tiles of their own and take turns: while one multiplies, two activate and store. The
// accumulators of the first convolution become the left operand of the second in registers. Blocks are persistent and
// process one tile after another.
#include "unit_parts.cuh"

constexpr int WEIGHT_BYTES = (TAPS + 1) * CHUNKS * CHUNK_BYTES, FACTORS_AT = WEIGHT_BYTES + GROUPS * LINES_BYTES;
constexpr int BARRIERS_AT = FACTORS_AT + sizeof(Factors);

__device__ __forceinline__ const uint16_t* weight_at(const UnitArgs& args, int tap, int output, int chunk) {
    const uint16_t* start = tap < TAPS ? args.wide + (output * TAPS + tap) * CHANNELS : args.point + output * CHANNELS;
    return start + 8 * chunk;
}

// Copy all weights of one tap; neighbouring threads take neighbouring outputs, whose 16 bytes are adjacent in a chunk.
__device__ __forceinline__ void copy_weights(const UnitArgs& args, shared_t to, int tap, int thread) {
    for (int n = thread; n < CHUNKS * CHANNELS; n += THREADS) {
        const int chunk = n / 8 % CHUNKS, output = n / (8 * CHUNKS) * 8 + n % 8;
        copy16(to + chunk * CHUNK_BYTES + output * 16, weight_at(args, tap, output, chunk));
    }
}

struct Barriers {
    shared_t base;
    __device__ shared_t there(int group) const { return base + 16 * group; }
    __device__ shared_t used(int group) const { return base + 16 * group + 8; }
};

// The n-th of a block's tiles; a warpgroup has every third of them.
__device__ __forceinline__ int tile_of(int n) {
    return n * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
}

__device__ __forceinline__ void multiply_lines(float (&sums)[CHANNELS / 2], shared_t lines, shared_t weights,
                                               int dilation) {
    const uint64_t left = half_swizzled_matrix(lines), right = matrix(weights, CHUNK_BYTES);
    products_begin();
#pragma unroll
    for (int tap = 0; tap < TAPS; tap++)
#pragma unroll
        for (int k = 0; k < CHUNKS / 2; k++)
            multiply(sums, left + k / 2 * (SLAB_BYTES / 16) + k % 2 * TO_INPUTS + tap * dilation * TO_LINE,
                     right + (tap * CHUNKS + 2 * k) * CHANNELS, tap + k > 0);
    products_commit();
}

__device__ __forceinline__ void multiply_point(float (&sums)[CHANNELS / 2], const uint32_t (&left)[CHUNKS / 2][4],
                                               shared_t weights) {
    const uint64_t right = matrix(weights + TAPS * CHUNKS * CHUNK_BYTES, CHUNK_BYTES);
    products_begin();
#pragma unroll
    for (int k = 0; k < CHUNKS / 2; k++) multiply(sums, left[k], right + 2 * k * CHANNELS, k > 0);
    products_commit();
    products_wait<0>();
    settled(sums);
}

__device__ __forceinline__ void multiply_tiles(const UnitArgs& args, const Factors& factors, Barriers barriers,
                                               shared_t weights, int group) {
    const shared_t lines = weights + WEIGHT_BYTES + group * LINES_BYTES;
    if (group == GROUPS - 1) turn_give(1, 2 * GROUP);
    int phase = 0;
    for (int n = group; tile_of(n) < args.tiles; n += GROUPS, phase ^= 1) {
        const Results results(args, place_of(args, tile_of(n)));
        float sums[CHANNELS / 2];
        uint4 residual[2][CHANNELS / 32];
        uint32_t inner[CHUNKS / 2][4];
        barrier_wait(barriers.there(group), phase);
        turn_wait(1 + group, 2 * GROUP);
        multiply_lines(sums, lines, weights, args.dilation);
        if (tile_of(n + 1) < args.tiles) turn_give(1 + (group + 1) % GROUPS, 2 * GROUP);
        results.read(residual);
        products_wait<0>();
        settled(sums);
        if (threadIdx.x % 32 == 0) barrier_arrive(barriers.used(group));
        activated(inner, sums, factors.wide_bias, factors.wave_mid, factors.scale_mid);
        settled(inner);
        multiply_point(sums, inner, weights);
        results.write(sums, residual, factors);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) residual_unit(const __grid_constant__ UnitArgs args) {
    launch_dependents();
    const int thread = threadIdx.x, group = thread / GROUP;
    const shared_t weights = shared_base();
    Factors& factors = *reinterpret_cast<Factors*>(shared_memory + FACTORS_AT);
    const Barriers barriers = {weights + BARRIERS_AT};
    for (int tap = 0; tap <= TAPS; tap++) copy_weights(args, weights + tap * CHUNKS * CHUNK_BYTES, tap, thread);
    copies_commit();
    read_factors(factors, args, thread, THREADS);
    if (thread < GROUPS) {
        barrier_start(barriers.there(thread), 1);
        barrier_start(barriers.used(thread), WARPS);
    }
    copies_wait<0>();
    show_to_products();
    barriers_started();
    __syncthreads();
    wait_prior();
    if (group < GROUPS) {
        more_registers<160>();
        multiply_tiles(args, factors, barriers, weights, group);
        return;
    }
    fewer_registers<32>();
    if (thread != GROUPS * GROUP) return;
    for (int n = 0; tile_of(n) < args.tiles; n++) {
        const int to = n % GROUPS;
        barrier_wait(barriers.used(to), n / GROUPS & 1 ^ 1);
        bring_lines(args, place_of(args, tile_of(n)), weights + WEIGHT_BYTES + to * LINES_BYTES, barriers.there(to));
    }
}
