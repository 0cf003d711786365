// What warps and blocks that share a row's positions have gathered, put together: a block's warps through shared memory, a
// row's blocks through the second-level cache, by whichever of them arrives last.
#pragma once
#include "gathered.cuh"

constexpr int MOST_SPLITS = 64;
// after the loop, in the place of the rings
constexpr int TOTALS_BYTES = WARPS * 16 * DIM * 4;           // [WARPS, 16, DIM]
constexpr int WEIGHTS_AT = TOTALS_BYTES;                     // [WARPS, 16, 2]: highest score, sum
constexpr int FACTORS_AT = WEIGHTS_AT + WARPS * 16 * 2 * 4;  // [16, MOST_SPLITS]
constexpr int FLAG_AT = FACTORS_AT + MOST_SPLITS * 16 * 4;
static_assert(FLAG_AT + 4 <= 2 * WARPS * 2 * 16 * 256, "they fit into the least of rings");

// One warp's sums, to where all threads of the block find them.
__device__ __forceinline__ void leave(const Gathered& sums, int share, int warp, int lane) {
    float* totals = reinterpret_cast<float*>(shared_memory);
    float* weights = reinterpret_cast<float*>(shared_memory + WEIGHTS_AT);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int member = warp * 16 + lane / 4 + half * 8;
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

// All warps' sums: the result, if this block has all of the row's positions, else what it leaves to the last block.
__device__ __forceinline__ void add_warps(float* own, uint16_t* out, bool alone, int share) {
    const float* totals = reinterpret_cast<const float*>(shared_memory);
    const float* weights = reinterpret_cast<const float*>(shared_memory + WEIGHTS_AT);
    for (int cell = threadIdx.x; cell < share * DIM; cell += THREADS) {
        const int member = cell / DIM;
        float best = lowest(), total = 0.0f, weight = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) best = fmaxf(best, weights[(w * 16 + member) * 2]);
#pragma unroll
        for (int w = 0; w < WARPS; w++) {  // a warp that had no chunk has a weight of 0 at minus infinity
            const float factor = power_of_two(weights[(w * 16 + member) * 2] - best);
            total += factor * totals[w * 16 * DIM + cell];
            weight += factor * weights[(w * 16 + member) * 2 + 1];
        }
        if (alone) {
            out[cell] = to_bf16(total / weight);
            continue;
        }
        own[cell] = total;
        if (cell % DIM == 0) {
            own[share * DIM + member] = best;
            own[share * DIM + share + member] = weight;
        }
    }
}

// Whether this block is the last of `active`; the count is at zero then, for the next launch.
__device__ __forceinline__ bool arrived_last(uint32_t* arrivals, int active) {
    int* is_last = reinterpret_cast<int*>(shared_memory + FLAG_AT);
    __syncthreads();  // all my threads have written
    if (threadIdx.x == 0) {
        const uint32_t most = active - 1;
        __threadfence();  // what they wrote is seen by other blocks before the count that says so
        *is_last = atomicInc(arrivals, most) == most;
        __threadfence();  // the others' sums are not read before the count
    }
    __syncthreads();  // all threads know
    return *is_last;
}

// What each block's sums count for of a query: a warp has a query, and a lane blocks lane and + 32. All sums of a query
// are relative to its block's highest score; the factors make them relative to the highest of all, and divide.
__device__ __forceinline__ void make_factors(const float* slots, int cells, int active, int share) {
    float* factors = reinterpret_cast<float*>(shared_memory + FACTORS_AT);
    const int lane = threadIdx.x % 32;
    for (int query = threadIdx.x / 32; query < share; query += WARPS) {
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

__device__ __forceinline__ void add(float4& total, float factor, const float4& more) {
    total.x += factor * more.x, total.y += factor * more.y, total.z += factor * more.z, total.w += factor * more.w;
}

// The last block's work: all blocks' sums, in an order that does not depend on who came last. A thread has four columns;
// where that leaves threads over, several have the same columns of different blocks. Sums are on their way while factors
// are made.
__device__ __forceinline__ void combine(const float* slots, int cells, int active, int share, uint16_t* out) {
    constexpr int AHEAD = 8;
    const float* factors = reinterpret_cast<const float*>(shared_memory + FACTORS_AT);
    float4* parts = reinterpret_cast<float4*>(shared_memory);
    const int fours = share * DIM / 4, width = min(fours, THREADS), turns = THREADS / width;
    const int turn = threadIdx.x / width;  // over for some where a share is no power of two
    for (int first = 0; first < fours; first += width) {
        const int four = first + threadIdx.x % width;
        const bool mine = four < fours && turn < turns;
        const float* from = slots + four * 4;
        const float* own = factors + four * 4 / DIM * MOST_SPLITS;
        float4 ahead[AHEAD], total = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int n = 0; n < AHEAD; n++) {
            const int s = turn + n * turns;
            ahead[n] = total;
            if (mine && s < active) ahead[n] = read_fresh(reinterpret_cast<const float4*>(from + s * cells));
        }
        if (first == 0) {
            make_factors(slots, cells, active, share);
            __syncthreads();  // factors are other threads'
        }
        if (mine) {
#pragma unroll
            for (int n = 0; n < AHEAD; n++) add(total, own[turn + n * turns], ahead[n]);  // a factor is 0 beyond active
#pragma unroll 4
            for (int s = turn + AHEAD * turns; s < active; s += turns)
                add(total, own[s], read_fresh(reinterpret_cast<const float4*>(from + s * cells)));
        }
        if (turns > 1) {
            parts[threadIdx.x] = total;
            __syncthreads();  // the first of them adds what the others have left
            for (int n = 1; n < turns && turn == 0; n++) add(total, 1.0f, parts[n * width + threadIdx.x]);
        }
        if (mine && turn == 0) {
            uint32_t* to = reinterpret_cast<uint32_t*>(out + four * 4);
            to[0] = pack(total.x, total.y);
            to[1] = pack(total.z, total.w);
        }
    }
}
