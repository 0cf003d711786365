// What blocks that share a row's positions have gathered, put together through their own shared memory, where they are a
// cluster: each block has some of the columns, and every other one pushes its sums of these there.
#pragma once
#include "grid.cuh"
#include "shares.cuh"

constexpr int MOST_RANKS = 16;  // blocks of a cluster

// In shared memory from AT on, where nothing else lies: others may be there before this block has read its positions.
template <int AT>
struct Exchange {
    static constexpr int GATE = AT;
    static constexpr int WEIGHTS = GATE + 16;                            // [ranks, queries, 2]: highest score, sum
    static constexpr int TOTALS = WEIGHTS + MOST_RANKS * QUERIES * 8;    // [ranks, my fours of columns, 4]
    static constexpr int BYTES = TOTALS + (QUERIES * DIM / 4 + MOST_RANKS) * 16 - AT;

    // By all threads of all blocks that have positions: from here on others may push.
    static __device__ __forceinline__ void open() {
        if (threadIdx.x == 0) gate_make(GATE, 1);
        cluster_meet();
    }

    // Behind a barrier after `leave`. No block ends before all that is meant for it has come.
    template <int WARPS_HERE>
    static __device__ __forceinline__ void combine(const Results& out, int rank, int active, int share) {
        constexpr int THREADS_HERE = 32 * WARPS_HERE;
        const int fours = share * DIM / 4, most = (fours + active - 1) / active;  // of a block
        const int mine = (fours - rank + active - 1) / active;
        if (threadIdx.x == 0) gate_expect(GATE, active * (mine * 16 + share * 8));
        for (int four = threadIdx.x; four < fours; four += THREADS_HERE) {
            const Mixed mixed = of_warps<WARPS_HERE>(four);
            const int to = four % active, nth = four / active;
            push(in_block(TOTALS + (rank * most + nth) * 16, to), in_block(GATE, to), mixed.total);
        }
        for (int one = threadIdx.x; one < share * active; one += THREADS_HERE) {
            const int member = one / active, to = one % active;
            const Mixed mixed = of_warps<WARPS_HERE>(member * (DIM / 4));
            push(in_block(WEIGHTS + (rank * share + member) * 8, to), in_block(GATE, to), mixed.best, mixed.weight);
        }
        while (!gate_passed(GATE, 0)) {
        }
        put_mine<THREADS_HERE>(out, rank, active, share, mine, most);
    }

private:
    // Half a warp has the same four columns of different blocks. All threads of a warp take as many turns.
    template <int THREADS_HERE>
    static __device__ __forceinline__ void put_mine(
        const Results& out, int rank, int active, int share, int mine, int most
    ) {
        const float2* weights = reinterpret_cast<const float2*>(shared_memory + WEIGHTS);
        const float4* totals = reinterpret_cast<const float4*>(shared_memory + TOTALS);
        const int from = threadIdx.x % MOST_RANKS;
        for (int first = 0; first < mine; first += THREADS_HERE / MOST_RANKS) {
            const int nth = first + threadIdx.x / MOST_RANKS, four = min(nth, mine - 1) * active + rank;
            const bool there = from < active;
            float2 own = {lowest(), 0.0f};
            float4 total = {0.0f, 0.0f, 0.0f, 0.0f};
            if (there) own = weights[from * share + four / (DIM / 4)];
            float best = own.x;
#pragma unroll
            for (int step = MOST_RANKS / 2; step; step >>= 1) best = fmaxf(best, __shfl_xor_sync(ALL, best, step));
            const float factor = power_of_two(own.x - best);
            float weight = factor * own.y;
            if (there) add(total, factor, totals[from * most + min(nth, mine - 1)]);
#pragma unroll
            for (int step = MOST_RANKS / 2; step; step >>= 1) {
                weight += __shfl_xor_sync(ALL, weight, step);
                total.x += __shfl_xor_sync(ALL, total.x, step);
                total.y += __shfl_xor_sync(ALL, total.y, step);
                total.z += __shfl_xor_sync(ALL, total.z, step);
                total.w += __shfl_xor_sync(ALL, total.w, step);
            }
            if (from == 0 && nth < mine) out.put(four, total, 1.0f / weight);
        }
    }
};
