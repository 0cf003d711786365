// Combines the partial results of warps and blocks that share a row's positions: those of a block's warps through
// shared memory, those of a row's blocks through the L2 cache, by the last block to arrive.
#pragma once
#include "gathered.cuh"
#include "turned.cuh"

constexpr int MOST_SPLITS = 64, MOST_WARPS = 8;
// after the loop, in the memory of the rings
constexpr int FACTORS_AT = 0;                                         // [QUERIES, MOST_SPLITS]
constexpr int FLAG_AT = FACTORS_AT + MOST_SPLITS * QUERIES * 4;       // and room up to a multiple of 16
constexpr int WEIGHTS_AT = FLAG_AT + 16;                              // [warps, QUERIES, 2]: maximum score, sum
constexpr int TOTALS_AT = WEIGHTS_AT + MOST_WARPS * QUERIES * 2 * 4;  // [warps, QUERIES, DIM]
constexpr int LEAST_RING = 2 * 8192;                                  // bytes, of one warp
static_assert(TOTALS_AT + QUERIES * DIM * 4 <= LEAST_RING, "they fit in the place of one warp's ring");
static_assert(QUERIES * DIM * 4 <= LEAST_RING, "and each more warp brings what its sums need");

// Store one warp's partial results, where all threads of the block find them.
__device__ __forceinline__ void leave(const Gathered& sums, int share, int warp, int lane) {
    float* totals = reinterpret_cast<float*>(shared_memory + TOTALS_AT);
    float* weights = reinterpret_cast<float*>(shared_memory + WEIGHTS_AT);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int member = warp * QUERIES + lane / 4 + half * 8;
        float weight = sums.weight[half];
        weight += __shfl_xor_sync(ALL, weight, 1);
        weight += __shfl_xor_sync(ALL, weight, 2);
        if (lane / 4 + half * 8 >= share) continue;
#pragma unroll
        for (int n = 0; n < DIM / 8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) totals[member * DIM + column_of(n, i, lane)] = sums.total[n][2 * half + i];
        if ((lane & 3) == 0) {
            weights[member * 2] = sums.best[half];
            weights[member * 2 + 1] = weight;
        }
    }
}

__device__ __forceinline__ void leave(const Turned& sums, int share, int warp, int lane) {
    float* totals = reinterpret_cast<float*>(shared_memory + TOTALS_AT);
    float* weights = reinterpret_cast<float*>(shared_memory + WEIGHTS_AT);
#pragma unroll
    for (int one = 0; one < 2; one++) {
        const int query = (lane & 3) * 2 + one, member = warp * QUERIES + query;
        float weight = sums.weight[one];
#pragma unroll
        for (int step = 4; step < 32; step *= 2) weight += __shfl_xor_sync(ALL, weight, step);
        if (query >= share) continue;
#pragma unroll
        for (int n = 0; n < DIM / 16; n++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                totals[member * DIM + turned_column(n, half, lane)] = sums.total[n][2 * half + one];
        if (lane < 4) {
            weights[member * 2] = sums.best[one];
            weights[member * 2 + 1] = weight;
        }
    }
}

__device__ __forceinline__ void add(float4& total, float factor, const float4& more) {
    total.x += factor * more.x, total.y += factor * more.y, total.z += factor * more.z, total.w += factor * more.w;
}

// Where a block's results go: as bfloat16, or as e4m3 for a product that takes eight bits.
struct Results {
    uint8_t* start;
    int item;  // bytes of a value

    // Store four columns.
    __device__ __forceinline__ void put(int four, const float4& total, float factor) const {
        uint32_t* to = reinterpret_cast<uint32_t*>(start + four * 4 * item);
        if (item == 1) {
            const uint32_t low = to_e4m3(total.x * factor) | to_e4m3(total.y * factor) << 8;
            to[0] = low | to_e4m3(total.z * factor) << 16 | static_cast<uint32_t>(to_e4m3(total.w * factor)) << 24;
        } else {
            to[0] = pack(total.x * factor, total.y * factor);
            to[1] = pack(total.z * factor, total.w * factor);
        }
    }
};

// Combined results of one query in four columns: the maximum `best`, and the sum and accumulators relative to it.
struct Mixed {
    float4 total;
    float best, weight;
};

// Combine what all warps left of four columns.
template <int WARPS_HERE>
__device__ __forceinline__ Mixed of_warps(int four) {
    const float4* totals = reinterpret_cast<const float4*>(shared_memory + TOTALS_AT);
    const float* weights = reinterpret_cast<const float*>(shared_memory + WEIGHTS_AT);
    const int member = four / (DIM / 4);
    Mixed mixed = {{0.0f, 0.0f, 0.0f, 0.0f}, lowest(), 0.0f};
#pragma unroll
    for (int w = 0; w < WARPS_HERE; w++) mixed.best = fmaxf(mixed.best, weights[(w * QUERIES + member) * 2]);
#pragma unroll
    for (int w = 0; w < WARPS_HERE; w++) {  // a warp without a chunk left a sum of 0 and a maximum of minus infinity
        const float factor = power_of_two(weights[(w * QUERIES + member) * 2] - mixed.best);
        add(mixed.total, factor, totals[w * QUERIES * DIM / 4 + four]);
        mixed.weight += factor * weights[(w * QUERIES + member) * 2 + 1];
    }
    return mixed;
}

// Combine all warps' partial results: to the final result if this block has all of the row's positions, else to what it
// leaves to the last block.
template <int WARPS_HERE>
__device__ __forceinline__ void add_warps(float* own, const Results& out, bool alone, int share) {
    for (int four = threadIdx.x; four < share * DIM / 4; four += 32 * WARPS_HERE) {
        const int member = four / (DIM / 4);
        const Mixed mixed = of_warps<WARPS_HERE>(four);
        if (alone) {
            out.put(four, mixed.total, 1.0f / mixed.weight);
            continue;
        }
        *reinterpret_cast<float4*>(own + four * 4) = mixed.total;
        if (four % (DIM / 4) == 0) {
            own[share * DIM + member] = mixed.best;
            own[share * DIM + share + member] = mixed.weight;
        }
    }
}

// Whether this block is the last of `active` to arrive; the counter is then back at zero, for the next launch.
__device__ __forceinline__ bool arrived_last(uint32_t* arrivals, int active) {
    int* is_last = reinterpret_cast<int*>(shared_memory + FLAG_AT);
    __syncthreads();  // all of this block's threads have written
    if (threadIdx.x == 0) {
        const uint32_t most = active - 1;
        *is_last = count(arrivals, most) == most;
    }
    __syncthreads();  // all threads know
    return *is_last;
}

// The factor of each block's sums for each query; a warp has a query, and a lane blocks lane and + 32. A block's sums
// are relative to its own maximum score; the factors make them relative to the maximum of all, and divide by the sum of
// weights.
template <int WARPS_HERE>
__device__ __forceinline__ void make_factors(const float* slots, int cells, int active, int share) {
    float* factors = reinterpret_cast<float*>(shared_memory + FACTORS_AT);
    const int lane = threadIdx.x % 32;
    for (int query = threadIdx.x / 32; query < share; query += WARPS_HERE) {
        float best[2], weight[2];
#pragma unroll
        for (int n = 0; n < 2; n++) {
            const bool there = lane + 32 * n < active;
            const float* from = slots + static_cast<int64_t>(there ? lane + 32 * n : 0) * cells + share * DIM + query;
            best[n] = there ? read_fresh(from) : lowest();
            weight[n] = there ? read_fresh(from + share) : 0.0f;
        }
        float highest = fmaxf(best[0], best[1]);
#pragma unroll
        for (int step = 16; step; step >>= 1) highest = fmaxf(highest, __shfl_xor_sync(ALL, highest, step));
        const float factor[2] = {power_of_two(best[0] - highest), power_of_two(best[1] - highest)};
        float sum = factor[0] * weight[0] + factor[1] * weight[1];
#pragma unroll
        for (int step = 16; step; step >>= 1) sum += __shfl_xor_sync(ALL, sum, step);
#pragma unroll
        for (int n = 0; n < 2; n++) factors[query * MOST_SPLITS + lane + 32 * n] = factor[n] / sum;
    }
}

// The last block adds up all blocks' sums, in an order that does not depend on which one came last. A thread has four
// columns; where that leaves threads over, several have the same columns of different blocks. Sums are being read while
// factors are computed.
template <int WARPS_HERE>
__device__ __forceinline__ void combine(const float* slots, int cells, int active, int share, const Results& out) {
    constexpr int READS = 8, THREADS_HERE = 32 * WARPS_HERE;
    const float* factors = reinterpret_cast<const float*>(shared_memory + FACTORS_AT);
    float4* parts = reinterpret_cast<float4*>(shared_memory + TOTALS_AT);
    const int fours = share * DIM / 4, width = min(fours, THREADS_HERE), turns = THREADS_HERE / width;
    const int turn = threadIdx.x / width;  // equals `turns` in threads left over where a share is no power of two
    for (int first = 0; first < fours; first += width) {
        const int four = first + threadIdx.x % width;
        const bool mine = four < fours && turn < turns;
        const float* from = slots + four * 4;
        const float* own = factors + four * 4 / DIM * MOST_SPLITS;
        float4 ahead[READS], total = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int n = 0; n < READS; n++) {
            const int s = turn + n * turns;
            ahead[n] = total;
            if (mine && s < active) ahead[n] = read_fresh(reinterpret_cast<const float4*>(from + s * cells));
        }
        if (first == 0) {
            make_factors<WARPS_HERE>(slots, cells, active, share);
            __syncthreads();  // other threads have made the factors
        }
        if (mine) {
#pragma unroll
            for (int n = 0; n < READS; n++) add(total, own[turn + n * turns], ahead[n]);  // a factor is 0 beyond active
#pragma unroll 4
            for (int s = turn + READS * turns; s < active; s += turns)
                add(total, own[s], read_fresh(reinterpret_cast<const float4*>(from + s * cells)));
        }
        if (turns > 1) {
            parts[threadIdx.x] = total;
            __syncthreads();  // the first of them adds what the others have left
            for (int n = 1; n < turns && turn == 0; n++) add(total, 1.0f, parts[n * width + threadIdx.x]);
        }
        if (mine && turn == 0) out.put(four, total, 1.0f);
    }
}
