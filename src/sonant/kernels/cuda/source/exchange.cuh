// One of the blocks that share a row's positions combines their partial results: all others post theirs, and that one polls
// until all have arrived. Memory without a post is EMPTY, bits that no instruction leaves in a sum, so there is no counter and
// no fence; the block that has read it makes it EMPTY again for the next launch. The block that polls is the last of them in
// the grid: all others have begun before it.
#pragma once
#include "grid.cuh"
#include "shares.cuh"

// Merge another partial result into `own`.
__device__ __forceinline__ void join(Mixed& own, const float4& total, float best, float weight) {
    const float highest = fmaxf(own.best, best);
    const float factor = power_of_two(own.best - highest), other = power_of_two(best - highest);
    own.total.x *= factor, own.total.y *= factor, own.total.z *= factor, own.total.w *= factor;
    add(own.total, other, total);
    own.weight = own.weight * factor + weight * other;
    own.best = highest;
}

// For all threads of a block, behind a barrier after `leave`. `posted`: `cells` floats of each part, totals as `leave` orders
// them and then four words of each query, of which two are its maximum score and its sum.
template <int WARPS_HERE>
struct Exchange {
    static constexpr int THREADS_HERE = 32 * WARPS_HERE;
    static constexpr int LOOKED_FOR = 32 / WARPS_HERE;  // parts that a thread polls at once: fewer threads have more of them
    static constexpr int JOINED_AT = TOTALS_AT + WARPS_HERE * QUERIES * DIM * 4;  // [threads]
    static constexpr int BYTES = JOINED_AT + THREADS_HERE * sizeof(Mixed);

    float* posted;
    int cells, share;

    __device__ __forceinline__ float* totals(int part, int four) const { return posted + part * cells + four * 4; }
    __device__ __forceinline__ float* weights(int part, int four) const {
        return posted + part * cells + share * DIM + four / (DIM / 4) * 4;
    }

    __device__ __forceinline__ void send(int part) const {
        for (int four = threadIdx.x; four < share * DIM / 4; four += THREADS_HERE) {
            const Mixed mixed = of_warps<WARPS_HERE>(four);
            post(totals(part, four), mixed.total);
            if (four % (DIM / 4) == 0) post(weights(part, four), {mixed.best, mixed.weight, 0.0f, 0.0f});
        }
    }

    // Combine the other parts with this block's own. A thread has four columns; where that leaves threads over, several have
    // the same columns of different parts.
    __device__ __forceinline__ void collect(int parts, const Results& out) const {
        const int fours = share * DIM / 4, width = min(fours, THREADS_HERE), turns = THREADS_HERE / width;
        const int turn = threadIdx.x / width;
        Mixed* joined = reinterpret_cast<Mixed*>(shared_memory + JOINED_AT);
        for (int first = 0; first < fours; first += width) {
            const int four = first + threadIdx.x % width;
            const bool has = four < fours && turn < turns;
            Mixed own = {{0.0f, 0.0f, 0.0f, 0.0f}, lowest(), 0.0f};
            if (has && turn == 0) own = of_warps<WARPS_HERE>(four);
            if (has)
                for (int part = turn; part < parts; part += turns * LOOKED_FOR) take(own, part, turns, parts, four);
            if (turns > 1) joined[threadIdx.x] = own;
            __syncthreads();  // all have stored what they joined, and have read the weights, which are emptied below
            for (int n = 1; n < turns && turn == 0; n++) {
                const Mixed other = joined[n * width + threadIdx.x];
                join(own, other.total, other.best, other.weight);
            }
            if (has && turn == 0) out.put(four, own.total, 1.0f / own.weight);
            if (has)
                for (int part = turn; part < parts; part += turns) {
                    post(totals(part, four), {empty(), empty(), empty(), empty()});
                    if (four % (DIM / 4) == 0) post(weights(part, four), {empty(), empty(), empty(), empty()});
                }
        }
    }

private:
    __device__ __forceinline__ void take(Mixed& own, int first, int step, int parts, int four) const {
        const float* from[2 * LOOKED_FOR];
        float4 found[2 * LOOKED_FOR];
#pragma unroll
        for (int n = 0; n < LOOKED_FOR; n++) {
            const int part = first + n * step < parts ? first + n * step : first;  // the first again where there are no more
            from[2 * n] = totals(part, four);
            from[2 * n + 1] = weights(part, four);
        }
        await_posts(found, from);
#pragma unroll
        for (int n = 0; n < LOOKED_FOR; n++)
            if (first + n * step < parts) join(own, found[2 * n], found[2 * n + 1].x, found[2 * n + 1].y);
    }
};
