// A causal convolution of few inputs and taps, INPUTS and TAPS, whose epilogue takes longer than its products: all
// weights of a panel of 96 columns stay in shared memory.
//
// A block has one panel. Three warpgroups have tiles of 64 steps of their own and take turns: while one multiplies, two
// activate and store. A tile's inputs lie in shared memory once, as lines; each tap reads the same lines at another
// offset.
#include "conv_parts.cuh"

constexpr int SLABS = INPUTS / DEPTH;  // of 64 inputs
constexpr int PANEL_BYTES = TAPS * SLABS * PART_BYTES, ROOM_BYTES = SLABS * LINES_BYTES;
static_assert(TILE == 64 && TAPS > 1 && !POINT && !SHORT && COLUMNS == 96 && PARTS == TAPS * SLABS && BUFFERS == GROUPS * SLABS, "what conv.py says");

struct Doors {
    shared_t base;
    __device__ shared_t there(int group) const { return base + 16 * group; }
    __device__ shared_t used(int group) const { return base + 16 * group + 8; }
    __device__ shared_t weights() const { return base + 16 * GROUPS; }
};

// The n-th of a block's tiles; a warpgroup has every third of them. Blocks of one panel share out its tiles.
__device__ __forceinline__ int tile_of(const ConvArgs& args, int n) {
    const int blocks = gridDim.x / args.column_tiles, block = blockIdx.x / args.column_tiles;
    return (n * blocks + block) * args.column_tiles + blockIdx.x % args.column_tiles;
}

// Run by one thread: copy a tile's lines, from `history` steps before its first result on. Before a row's first step
// come those of the previous piece, or silence.
__device__ __forceinline__ void bring_tile(const ConvArgs& args, Place place, shared_t lines, shared_t there) {
    const int history = (TAPS - 1) * args.dilation;
    barrier_expect(there, SLABS * (TILE + history) * LINE_BYTES);
    for (int slab = 0; slab < SLABS; slab++) {
        const shared_t to = lines + slab * LINES_BYTES;
        if (place.first == 0 && args.has_past)
            copy_part(to, args.past, slab * DEPTH, 0, place.row, there);
        else
            copy_part(to, args.recent, slab * DEPTH, place.first - history, place.row, there);
        copy_part(to + history * LINE_BYTES, args.fresh, slab * DEPTH, place.first, place.row, there);
    }
}

__device__ __forceinline__ void bring(const ConvArgs& args, Doors doors, shared_t shared) {
    barrier_expect(doors.weights(), PANEL_BYTES);
    for (int part = 0; part < TAPS * SLABS; part++)
        copy_part(shared + part * PART_BYTES, args.weight, part * DEPTH, blockIdx.x % args.column_tiles * COLUMNS, 0,
                  doors.weights());
    wait_prior();
    for (int n = 0; tile_of(args, n) < args.tiles; n++) {
        const int to = n % GROUPS;
        barrier_wait(doors.used(to), (n / GROUPS & 1) ^ 1);
        bring_tile(args, place_of(args, tile_of(args, n)), shared + LINES_AT + to * ROOM_BYTES, doors.there(to));
    }
}

__device__ __forceinline__ void multiply_tile(float (&sums)[COLUMNS / 2], shared_t lines, shared_t weights,
                                              int dilation) {
    const uint64_t left = swizzled_matrix(lines), right = swizzled_matrix(weights);
    products_begin();
#pragma unroll
    for (int tap = 0; tap < TAPS; tap++)
#pragma unroll
        for (int slab = 0; slab < SLABS; slab++)
#pragma unroll
            for (int k = 0; k < DEPTH / 16; k++)
                multiply(sums, left + slab * (LINES_BYTES / 16) + tap * dilation * TO_LINE + k * TO_INPUTS,
                         right + (tap * SLABS + slab) * (PART_BYTES / 16) + k * TO_INPUTS, tap + slab + k > 0);
    products_commit();
}

__device__ __forceinline__ void multiply_tiles(const ConvArgs& args, const Factors& factors, Doors doors,
                                               shared_t shared, int group) {
    const shared_t lines = shared + LINES_AT + group * ROOM_BYTES;
    if (group == GROUPS - 1) turn_give(1, 2 * GROUP);
    barrier_wait(doors.weights(), 0);
    int phase = 0;
    for (int n = group; tile_of(args, n) < args.tiles; n += GROUPS, phase ^= 1) {
        const Place place = place_of(args, tile_of(args, n));
        const Results results(args, place, place.first);
        float sums[COLUMNS / 2];
        barrier_wait(doors.there(group), phase);
        turn_wait(1 + group, 2 * GROUP);
        multiply_tile(sums, lines, shared, args.dilation);
        if (tile_of(args, n + 1) < args.tiles) turn_give(1 + (group + 1) % GROUPS, 2 * GROUP);
        products_wait<0>();
        settled(sums);
        if (threadIdx.x % 32 == 0) barrier_arrive(doors.used(group));
        results.finish(sums, factors);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) causal_conv(const __grid_constant__ ConvArgs args) {
    launch_dependents();
    const int thread = threadIdx.x, group = thread / GROUP;
    const shared_t shared = shared_base();
    Factors& factors = *reinterpret_cast<Factors*>(shared_memory + FACTORS_AT);
    const Doors doors = {shared + BARRIERS_AT};
    read_factors(factors, args, thread);
    if (thread < GROUPS) {
        barrier_start(doors.there(thread), 1);
        barrier_start(doors.used(thread), GROUP / 32);
    } else if (thread == GROUPS) {
        barrier_start(doors.weights(), 1);
    }
    barriers_started();
    __syncthreads();
    if (group < GROUPS) {
        more_registers<160>();
        wait_prior();
        multiply_tiles(args, factors, doors, shared, group);
        return;
    }
    fewer_registers<32>();
    if (thread == GROUPS * GROUP) bring(args, doors, shared);
}
