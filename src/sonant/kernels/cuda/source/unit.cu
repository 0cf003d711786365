// A residual unit of a codec's decoder in one kernel, of 96 or 192 channels: SnakeBeta, a causal convolution of seven
// taps, SnakeBeta, one of a single tap, and the sum with what came in.
//
// Warps of the third warpgroup activate a tile's inputs and put them into shared memory once, as lines; a tap is the
// same lines from another one on, so the seven taps read nothing twice. The other two warpgroups multiply: the sums of
// the first convolution become the left side of the second in registers. Blocks stay, and take one tile after another.
#include "unit_parts.cuh"

constexpr int GROUP = 128, THREADS = 3 * GROUP, WARPS = GROUP / 32;
constexpr int CHUNK_BYTES = CHANNELS * 16;  // eight inputs of one tap's weights

__device__ __forceinline__ const uint16_t* weight_at(const UnitArgs& args, int tap, int output, int chunk) {
    const uint16_t* start = tap < TAPS ? args.wide + (output * TAPS + tap) * CHANNELS : args.point + output * CHANNELS;
    return start + 8 * chunk;
}

// Some chunks of one tap; neighbouring threads take neighbouring outputs, whose 16 bytes are neighbours in a chunk.
template <int COUNT>
__device__ __forceinline__ void copy_weights(const UnitArgs& args, shared_t to, int tap, int first, int thread,
                                             int threads) {
    for (int n = thread; n < COUNT * CHANNELS; n += threads) {
        const int chunk = n / 8 % COUNT, output = n / (8 * COUNT) * 8 + n % 8;
        copy16(to + chunk * CHUNK_BYTES + output * 16, weight_at(args, tap, output, first + chunk));
    }
}

__device__ __forceinline__ void arrive_once_a_warp(shared_t barrier) {
    if (threadIdx.x % 32 == 0) barrier_arrive(barrier);
}

// The second convolution's results, of the 64 lines from `step` on.
__device__ __forceinline__ void leave(float (&sums)[CHANNELS / 2], const UnitArgs& args, const Factors& factors,
                                      int row, int step, const Results& upper, uint4 (&residual)[CHANNELS / 32]) {
    const Results lower(args, row, step, 1);
    uint4 other[CHANNELS / 32];
    lower.read(other, args.x);
    finish(sums, residual, upper, 0, args, factors);
    finish(sums, other, lower, 1, args, factors);
}

#if CHANNELS == 96
// All weights stay in shared memory. The two warpgroups have tiles of their own, and take turns: while one multiplies,
// the other activates.
constexpr int WEIGHT_BYTES = (TAPS + 1) * CHUNKS * CHUNK_BYTES, FACTORS_AT = WEIGHT_BYTES + 2 * LINES_BYTES;
constexpr int BARRIERS_AT = FACTORS_AT + sizeof(Factors);

struct Barriers {
    shared_t base;
    __device__ shared_t full(int group) const { return base + 8 * group; }
    __device__ shared_t empty(int group) const { return base + 16 + 8 * group; }
};

__device__ __forceinline__ int tile_of(int round, int group) {
    return (2 * round + group) * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
}

__device__ __forceinline__ void multiply_tile(float (&sums)[2][CHANNELS / 2], shared_t lines, shared_t weights,
                                              int dilation) {
    const uint64_t left = matrix(lines, LINES * 16), right = matrix(weights, CHUNK_BYTES);
    products_begin();
#pragma unroll
    for (int tap = 0; tap < TAPS; tap++)
#pragma unroll
        for (int k = 0; k < CHUNKS; k += 2)
#pragma unroll
            for (int half = 0; half < 2; half++)
                multiply(sums[half], left + k * LINES + 64 * half + tap * dilation,
                         right + (tap * CHUNKS + k) * CHANNELS, tap + k > 0);
    products_commit();
}

__device__ __forceinline__ void multiply_lines(float (&sums)[CHANNELS / 2], const uint32_t (&left)[CHUNKS / 2][4],
                                               shared_t weights) {
    const uint64_t right = matrix(weights + TAPS * CHUNKS * CHUNK_BYTES, CHUNK_BYTES);
    products_begin();
#pragma unroll
    for (int k = 0; k < CHUNKS; k += 2) multiply(sums, left[k / 2], right + k * CHANNELS, k > 0);
    products_commit();
}

__device__ __forceinline__ void consume(const UnitArgs& args, const Factors& factors, Barriers barriers,
                                        shared_t weights, int group) {
    const shared_t lines = weights + WEIGHT_BYTES + group * LINES_BYTES;
    if (group == 1) turn_give(1, 2 * GROUP);
    for (int round = 0; tile_of(round, group) < args.tiles; round++) {
        float sums[2][CHANNELS / 2];
        barrier_wait(barriers.full(group), round & 1);
        turn_wait(1 + group, 2 * GROUP);
        multiply_tile(sums, lines, weights, args.dilation);
        if (tile_of(round + group, 1 - group) < args.tiles) turn_give(2 - group, 2 * GROUP);
        const Place place = place_of(args, tile_of(round, group));
        products_wait<0>();
        settled(sums[0]);
        settled(sums[1]);
        arrive_once_a_warp(barriers.empty(group));
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t inner[CHUNKS / 2][4];
            float results[CHANNELS / 2];
            uint4 residual[CHANNELS / 32];
            activated(inner, sums[half], factors);
            settled(inner);
            multiply_lines(results, inner, weights);
            const Results upper(args, place.row, place.first + 64 * half, 0);
            upper.read(residual, args.x);
            products_wait<0>();
            settled(results);
            leave(results, args, factors, place.row, place.first + 64 * half, upper, residual);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) residual_unit(const __grid_constant__ UnitArgs args) {
    launch_dependents();
    const int thread = threadIdx.x, group = thread / GROUP;
    const shared_t weights = shared_base();
    Factors& factors = *reinterpret_cast<Factors*>(shared_memory + FACTORS_AT);
    const Barriers barriers = {weights + BARRIERS_AT};
    for (int tap = 0; tap <= TAPS; tap++)
        copy_weights<CHUNKS>(args, weights + tap * CHUNKS * CHUNK_BYTES, tap, 0, thread, THREADS);
    copies_commit();
    read_factors(factors, args, thread, THREADS);
    if (thread < 2) {
        barrier_start(barriers.full(thread), FILLERS);
        barrier_start(barriers.empty(thread), WARPS);
    }
    copies_wait<0>();
    show_to_products();
    __syncthreads();
    wait_prior();
    if (group < 2) {
        consume(args, factors, barriers, weights, group);
    } else if (thread - 2 * GROUP < FILLERS) {
        const Filler filler(args, factors, thread - 2 * GROUP);
        for (int n = 0; tile_of(n / 2, n % 2) < args.tiles; n++) {
            fetch(args, tile_of(n / 2 + 1, n % 2), thread - 2 * GROUP);
            filler.fill(tile_of(n / 2, n % 2), weights + WEIGHT_BYTES + n % 2 * LINES_BYTES, barriers.full(n % 2),
                        barriers.empty(n % 2), n < 2 ? -1 : (n / 2 - 1) & 1);
        }
    }
}

#else
// Weights come by in parts of a sixth of a tap, through a ring. The two warpgroups share a tile's lines and the parts,
// 64 lines each; the next tile's lines are filled meanwhile.
constexpr int PART = 4, SHARE = CHUNKS / PART, PARTS = SHARE * (TAPS + 1), PART_BYTES = PART * CHUNK_BYTES, RING = 6;
constexpr int AHEAD = 4;  // parts on their way
constexpr int LINES_AT = RING * PART_BYTES, FACTORS_AT = LINES_AT + 2 * LINES_BYTES;
constexpr int BARRIERS_AT = FACTORS_AT + sizeof(Factors);

struct Barriers {
    shared_t base;
    __device__ shared_t full(int buffer) const { return base + 8 * buffer; }
    __device__ shared_t empty(int buffer) const { return base + 16 + 8 * buffer; }
    __device__ shared_t arrived(int slot) const { return base + 32 + 8 * slot; }
    __device__ shared_t used(int slot) const { return base + 32 + 8 * RING + 8 * slot; }
};

// One warp's: part after part, tile after tile. A part is told of when `AHEAD` others after it are on their way.
__device__ __forceinline__ void bring_weights(const UnitArgs& args, Barriers barriers, shared_t ring, int tiles) {
    const int lane = threadIdx.x % 32, end = tiles * PARTS;
    for (int n = 0; n < end + AHEAD; n++) {
        if (n < end) {
            const int slot = n % RING, tap = n % PARTS / SHARE;
            const shared_t to = ring + slot * PART_BYTES + lane / 8 * CHUNK_BYTES + lane % 8 * 16;
            const uint16_t* from = weight_at(args, tap, lane % 8, n % SHARE * PART + lane / 8);
            if (n >= RING) barrier_wait(barriers.used(slot), (n / RING - 1) & 1);
            if (tap < TAPS) {
#pragma unroll
                for (int i = 0; i < CHANNELS / 8; i++) copy16(to + i * 128, from + i * 8 * TAPS * CHANNELS);
            } else {
#pragma unroll
                for (int i = 0; i < CHANNELS / 8; i++) copy16(to + i * 128, from + i * 8 * CHANNELS);
            }
        }
        copies_commit();
        if (n < AHEAD) continue;
        copies_wait<AHEAD>();
        show_to_products();
        barrier_arrive(barriers.arrived((n - AHEAD) % RING));
    }
}

__device__ __forceinline__ void consume(const UnitArgs& args, const Factors& factors, Barriers barriers, shared_t ring,
                                        int group, int tiles) {
    int part = 0;  // of all that came by
    const auto next_part = [&]() {  // and the one before it is not needed any more
        barrier_wait(barriers.arrived(part % RING), part / RING & 1);
        return matrix(ring + part % RING * PART_BYTES, CHUNK_BYTES);
    };
    const auto give_back = [&](int which) { arrive_once_a_warp(barriers.used(which % RING)); };
    for (int n = 0; n < tiles; n++) {
        const Place place = place_of(args, n * gridDim.x + blockIdx.x);
        const uint64_t left = matrix(ring + LINES_AT + n % 2 * LINES_BYTES, LINES * 16) + 64 * group;
        float sums[CHANNELS / 2] = {};
        settled(sums);
        barrier_wait(barriers.full(n % 2), n / 2 & 1);
        for (int tap = 0; tap < TAPS; tap++)
#pragma unroll
            for (int piece = 0; piece < SHARE; piece++, part++) {
                const uint64_t right = next_part();
                products_begin();
#pragma unroll
                for (int k = 0; k < PART; k += 2)
                    multiply(sums, left + (piece * PART + k) * LINES + tap * args.dilation, right + k * CHANNELS, 1);
                products_commit();
                products_wait<1>();
                if (tap + piece > 0) give_back(part - 1);
            }
        products_wait<0>();
        settled(sums);
        give_back(part - 1);
        arrive_once_a_warp(barriers.empty(n % 2));
        uint32_t inner[CHUNKS / 2][4];
        activated(inner, sums, factors);
        settled(inner);
        float results[CHANNELS / 2] = {};
        settled(results);
#pragma unroll
        for (int piece = 0; piece < SHARE; piece++, part++) {
            const uint64_t right = next_part();
            products_begin();
#pragma unroll
            for (int k = 0; k < PART; k += 2)
                multiply(results, inner[(piece * PART + k) / 2], right + k * CHANNELS, 1);
            products_commit();
            products_wait<1>();
            if (piece > 0) give_back(part - 1);
        }
        const int step = place.first + 64 * group;
        const Results upper(args, place.row, step, 0);
        uint4 residual[CHANNELS / 32];
        upper.read(residual, args.x);
        products_wait<0>();
        settled(results);
        give_back(part - 1);
        leave(results, args, factors, place.row, step, upper, residual);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) residual_unit(const __grid_constant__ UnitArgs args) {
    launch_dependents();
    const int thread = threadIdx.x, group = thread / GROUP;
    const shared_t ring = shared_base();
    Factors& factors = *reinterpret_cast<Factors*>(shared_memory + FACTORS_AT);
    const Barriers barriers = {ring + BARRIERS_AT};
    read_factors(factors, args, thread, THREADS);
    if (thread < 2) {
        barrier_start(barriers.full(thread), FILLERS);
        barrier_start(barriers.empty(thread), 2 * WARPS);
    } else if (thread < 2 + RING) {
        barrier_start(barriers.arrived(thread - 2), 32);
        barrier_start(barriers.used(thread - 2), 2 * WARPS);
    }
    __syncthreads();
    const int grid = gridDim.x, tiles = (args.tiles - static_cast<int>(blockIdx.x) + grid - 1) / grid;
    if (group < 2) {
        more_registers<200>();
        wait_prior();
        consume(args, factors, barriers, ring, group, tiles);
        return;
    }
    fewer_registers<104>();
    if (thread - 2 * GROUP >= FILLERS) {
        bring_weights(args, barriers, ring, tiles);
        wait_prior();
        return;
    }
    wait_prior();
    const Filler filler(args, factors, thread - 2 * GROUP);
    for (int n = 0; n < tiles; n++) {
        fetch(args, (n + 2) * grid + blockIdx.x, thread - 2 * GROUP);
        filler.fill(n * grid + blockIdx.x, ring + LINES_AT + n % 2 * LINES_BYTES, barriers.full(n % 2),
                    barriers.empty(n % 2), n < 2 ? -1 : (n / 2 - 1) & 1);
    }
}
#endif
