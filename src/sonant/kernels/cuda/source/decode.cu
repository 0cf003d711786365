// One new position a row over its paged keys and values: norms, rotations, the write to the cache, attention.
//
// A block serves one row, one key-value head and one share of the row's positions. The query heads that share the
// key-value head are rows of one 16-row tile. Each warp has a pipeline of its own over chunks of 16 positions, so the
// loop has no barrier of the block; the warps' sums are put together at the end, and those of the blocks by whichever
// block arrives last. How many blocks share a row's positions follows from its length, which only the device knows: the
// others of the grid leave at once.
#include "paged.cuh"

#ifndef STAGES
#define STAGES (HEAD_DIM == 128 ? 3 : 6)
#endif

constexpr int STAGE_BYTES = 2 * CHUNK_BYTES;
constexpr int RING_BYTES = STAGES * STAGE_BYTES;           // of one warp
constexpr int QUERIES_AT = WARPS * RING_BYTES;             // [16, DIM], as tiles of keys lie
constexpr int FLAG_AT = QUERIES_AT + 16 * ROW_BYTES;
constexpr int UNIT = WARPS * CHUNK;                        // positions that all warps take in one turn
constexpr int MOST_SPLITS = 64;
// after the loop, in the place of the rings
constexpr int TOTALS_BYTES = WARPS * 16 * DIM * 4;         // [WARPS, 16, DIM]
constexpr int WEIGHTS_AT = TOTALS_BYTES;                   // [WARPS, 16, 2]: highest score, sum
constexpr int FACTORS_AT = WEIGHTS_AT + WARPS * 16 * 2 * 4;  // [2, MOST_SPLITS, 16], then [16] sums
static_assert(FACTORS_AT + (2 * MOST_SPLITS + 1) * 16 * 4 <= QUERIES_AT, "they fit there");

struct DecodeArgs {
    const uint16_t *qkv, *q_weight, *k_weight, *cos, *sin;
    uint16_t* cache;
    const int* tables;
    const void* positions;
    uint16_t* out;
    float* partials;     // [rows, kv_heads, splits, (share, DIM) + share + share]
    uint32_t* arrivals;  // [rows, kv_heads], zero between launches
    int64_t plane;       // elements from keys to values
    int table_stride, position_stride, wide_positions, rope_stride, heads, kv_heads, block_tokens;
    uint32_t block_magic;
    int capacity;        // positions that a table has room for
    int splits, least_units, norm, early;
    float eps, scale;    // of scores, times log2(e)
};
static_assert(sizeof(DecodeArgs) == 160, "as attention.py packs it");

// A head of the fused projection, normed and rotated, each result rounded where the reference rounds it. A lane has the
// columns that a rotation mixes: E of the first half and the same of the second.
constexpr int HALF = DIM / 2, E = HALF / 32;

__device__ __forceinline__ void make_head(
    const uint16_t* source, const uint16_t* gain, const uint16_t* cos, const uint16_t* sin, const DecodeArgs& a,
    int lane, uint16_t (&first)[E], uint16_t (&second)[E]
) {
    float x[E], y[E], squares = 0.0f;
#pragma unroll
    for (int e = 0; e < E; e++) {
        x[e] = bf16(source[lane * E + e]);
        y[e] = bf16(source[HALF + lane * E + e]);
        squares += x[e] * x[e] + y[e] * y[e];
    }
    if (a.norm) {
#pragma unroll
        for (int step = 16; step; step >>= 1) squares += __shfl_xor_sync(ALL, squares, step);
        const float scale = rsqrtf(squares / DIM + a.eps);
#pragma unroll
        for (int e = 0; e < E; e++) {
            x[e] = rounded(bf16(gain[lane * E + e]) * rounded(x[e] * scale));
            y[e] = rounded(bf16(gain[HALF + lane * E + e]) * rounded(y[e] * scale));
        }
    }
#pragma unroll
    for (int e = 0; e < E; e++) {
        const int c = lane * E + e, d = HALF + c;
        first[e] = to_bf16(rounded(x[e] * bf16(cos[c])) + rounded(-y[e] * bf16(sin[c])));
        second[e] = to_bf16(rounded(y[e] * bf16(cos[d])) + rounded(x[e] * bf16(sin[d])));
    }
}

__device__ __forceinline__ void put(uint8_t* tile, int row, int column, uint16_t value) {
    *reinterpret_cast<uint16_t*>(tile + place(row, column / 8) + column % 8 * 2) = value;
}

// What one warp has gathered: totals over weights, relative to scores of `best`; a lane has rows lane / 4 and + 8.
struct Gathered {
    float total[DIM / 8][4], best[2], weight[2];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int n = 0; n < DIM / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) total[n][i] = 0.0f;
        best[0] = best[1] = lowest();
        weight[0] = weight[1] = 0.0f;
    }

    // A chunk of which the first `valid` positions (at least one) count; the values of all others must be zeros.
    __device__ __forceinline__ void add(
        const uint32_t (&q)[DIM / 16][4], shared_t keys, shared_t values, int valid, float scale, int lane
    ) {
        float s[2][4];
        const shared_t keys_at = keys + by_pieces(lane), values_at = values + by_rows(lane);
#pragma unroll
        for (int k = 0; k < DIM / 16; k++) {
            uint32_t b[4];
            load_matrices(b, pair(keys_at, k));
            if (k == 0) {
                multiply_first(s[0], q[k], b[0], b[1]);
                multiply_first(s[1], q[k], b[2], b[3]);
            } else {
                multiply(s[0], q[k], b[0], b[1]);
                multiply(s[1], q[k], b[2], b[3]);
            }
        }
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                s[n][i] = n * 8 + (lane & 3) * 2 + (i & 1) < valid ? s[n][i] * scale : lowest();
        bool higher = false;
        float shrink[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float highest = fmaxf(fmaxf(s[0][2 * half], s[0][2 * half + 1]), fmaxf(s[1][2 * half], s[1][2 * half + 1]));
            highest = fmaxf(highest, __shfl_xor_sync(ALL, highest, 1));
            highest = fmaxf(highest, __shfl_xor_sync(ALL, highest, 2));
            highest = fmaxf(highest, best[half]);
            higher |= highest > best[half];
            shrink[half] = power_of_two(best[half] - highest);  // 0 for the first chunk
            best[half] = highest;
            weight[half] *= shrink[half];
#pragma unroll
            for (int n = 0; n < 2; n++)
#pragma unroll
                for (int i = 2 * half; i < 2 * half + 2; i++) {
                    s[n][i] = power_of_two(s[n][i] - highest);
                    weight[half] += s[n][i];
                }
        }
        if (__any_sync(ALL, higher)) {
#pragma unroll
            for (int n = 0; n < DIM / 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) total[n][i] *= shrink[i / 2];
        }
        const uint32_t p[4] = {pack(s[0][0], s[0][1]), pack(s[0][2], s[0][3]), pack(s[1][0], s[1][1]),
                               pack(s[1][2], s[1][3])};
#pragma unroll
        for (int n = 0; n < DIM / 16; n++) {
            uint32_t b[4];
            load_matrices_turned(b, pair(values_at, n));
            multiply(total[2 * n], p, b[0], b[1]);
            multiply(total[2 * n + 1], p, b[2], b[3]);
        }
    }
};

// The last block's work: all blocks' sums, in their order, whoever came last.
__device__ __forceinline__ void combine(const float* slots, int cells, int active, int share, uint16_t* out) {
    float* factors = reinterpret_cast<float*>(shared_memory + FACTORS_AT);
    float *weights = factors + MOST_SPLITS * 16, *sums = weights + MOST_SPLITS * 16;
    for (int n = threadIdx.x; n < active * share; n += THREADS) {
        const int s = n / share, row = n - s * share;
        const float* best = slots + static_cast<int64_t>(s) * cells + share * DIM + row;
        factors[s * 16 + row] = read_fresh(best);
        weights[s * 16 + row] = read_fresh(best + share);
    }
    __syncthreads();  // one thread a row goes through what all have read
    const int row = threadIdx.x;
    if (row < share) {
        float best = lowest(), sum = 0.0f;
        for (int s = 0; s < active; s++) best = fmaxf(best, factors[s * 16 + row]);
        for (int s = 0; s < active; s++) {
            const float factor = power_of_two(factors[s * 16 + row] - best);
            factors[s * 16 + row] = factor;
            sum += factor * weights[s * 16 + row];
        }
        sums[row] = 1.0f / sum;
    }
    __syncthreads();  // factors are other threads'
    for (int cell = threadIdx.x; cell < share * DIM; cell += THREADS) {
        const int of = cell / DIM;
        float total = 0.0f;
#pragma unroll 8
        for (int s = 0; s < active; s++)
            total += factors[s * 16 + of] * read_fresh(slots + static_cast<int64_t>(s) * cells + cell);
        out[cell] = to_bf16(total * sums[of]);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) paged_decode(const __grid_constant__ DecodeArgs a) {
    const int kv_head = blockIdx.x, row = blockIdx.y, split = blockIdx.z;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int share = a.heads / a.kv_heads;
    uint16_t* out = a.out + (static_cast<int64_t>(row) * a.heads + kv_head * share) * DIM;
    launch_dependents();
    if (!a.early) wait_prior();
    const int64_t last = read_position(a.positions, static_cast<int64_t>(row) * a.position_stride, a.wide_positions);
    if (last < 0 || last >= a.capacity) {  // no such position: nothing to see, nowhere to write
        wait_prior();
        if (split == 0)
            for (int cell = threadIdx.x; cell < share * DIM; cell += THREADS) out[cell] = 0;
        return;
    }
    const int past = static_cast<int>(last), units = (past + UNIT - 1) / UNIT;
    const int each = max(a.least_units, (units + a.splits - 1) / a.splits);
    const int active = max(1, (units + each - 1) / each);
    if (split >= active) return;  // the first block of each row waits for the kernel before, so the grid does not end
    const int first = split * each * UNIT;
    const Pages pages = {
        reinterpret_cast<const uint8_t*>(a.cache + static_cast<int64_t>(kv_head) * DIM), 2 * a.plane,
        static_cast<uint32_t>(a.kv_heads) * ROW_BYTES, a.tables + static_cast<int64_t>(row) * a.table_stride,
        a.block_tokens, a.block_magic, min(first + each * UNIT, past),
    };
    const shared_t ring = shared_base() + warp * RING_BYTES;
    const int mine = first + warp * CHUNK;  // my chunks begin here and every UNIT positions
    const int chunks = pages.end > mine ? (pages.end - mine + UNIT - 1) / UNIT : 0;
    int slots[STAGES];
#pragma unroll
    for (int n = 0; n < STAGES; n++) slots[n] = pages.slot(mine + n * UNIT, lane);
#pragma unroll
    for (int n = 0; n < STAGES - 1; n++) {
        if (n < chunks) pages.copy(ring + n * STAGE_BYTES, ring + n * STAGE_BYTES + CHUNK_BYTES, slots[n], lane);
        copies_commit();
    }
    int next_slot = slots[STAGES - 1];
    if (a.early) wait_prior();

    uint8_t* queries = shared_memory + QUERIES_AT;
    const uint16_t* source = a.qkv + static_cast<int64_t>(row) * (a.heads + 2 * a.kv_heads) * DIM;
    const uint16_t *cos = a.cos + static_cast<int64_t>(row) * a.rope_stride, *sin = a.sin + (cos - a.cos);
    uint16_t left[E], right[E];
    for (int head = warp; head < 16; head += WARPS) {
        for (int e = 0; e < E; e++) left[e] = right[e] = 0;
        if (head < share) make_head(source + (kv_head * share + head) * DIM, a.q_weight, cos, sin, a, lane, left, right);
        for (int e = 0; e < E; e++) {
            put(queries, head, lane * E + e, left[e]);
            put(queries, head, HALF + lane * E + e, right[e]);
        }
    }
    // the new position is a chunk of its own, in the one stage of the first warp that no copy is under way to
    const int fresh = (STAGES - 1) * STAGE_BYTES;
    if (split == 0 && warp == WARPS - 1) {
        uint8_t *keys = shared_memory + fresh, *values = keys + CHUNK_BYTES;
        const uint16_t *key = source + (a.heads + kv_head) * DIM, *value = key + a.kv_heads * DIM;
        for (int at = lane * 4; at < CHUNK_BYTES; at += 128) *reinterpret_cast<uint32_t*>(values + at) = 0;
        make_head(key, a.k_weight, cos, sin, a, lane, left, right);
        const int block = past / a.block_tokens;
        const int64_t slot = static_cast<int64_t>(read_fresh(pages.table + block)) * a.block_tokens + past - block * a.block_tokens;
        uint16_t* to = a.cache + (slot * a.kv_heads + kv_head) * DIM;
        __syncwarp();  // zeros were written by other lanes than the values that follow
        for (int e = 0; e < E; e++) {
            const int c = lane * E + e, d = HALF + c;
            put(keys, 0, c, left[e]);
            put(keys, 0, d, right[e]);
            put(values, 0, c, value[c]);
            put(values, 0, d, value[d]);
            to[c] = left[e];
            to[d] = right[e];
            to[a.plane + c] = value[c];
            to[a.plane + d] = value[d];
        }
    }
    __syncthreads();  // every warp reads all queries; the first reads the new position, which the last has made
    uint32_t q[DIM / 16][4];
#pragma unroll
    for (int k = 0; k < DIM / 16; k++) load_matrices(q[k], pair(shared_base() + QUERIES_AT + by_rows(lane), k));
    Gathered sums;
    sums.clear();
    if (split == 0 && warp == 0) sums.add(q, ring + fresh, ring + fresh + CHUNK_BYTES, 1, a.scale, lane);

    int stage = 0;
    for (int n = 0; n < chunks; n++) {
        copies_wait<STAGES - 2>();
        __syncwarp();  // all lanes' copies of this chunk are there, and all have read the stage that is filled next
        if (n + STAGES - 1 < chunks) {
            const shared_t to = ring + (stage == 0 ? STAGES - 1 : stage - 1) * STAGE_BYTES;
            pages.copy(to, to + CHUNK_BYTES, next_slot, lane);
            next_slot = pages.slot(mine + (n + STAGES) * UNIT, lane);
        }
        copies_commit();  // an empty group keeps the count
        const shared_t keys = ring + stage * STAGE_BYTES;
        sums.add(q, keys, keys + CHUNK_BYTES, pages.end - (mine + n * UNIT), a.scale, lane);
        stage = stage == STAGES - 1 ? 0 : stage + 1;
    }

    __syncthreads();  // the rings are read to the end: their place is taken
    float* totals = reinterpret_cast<float*>(shared_memory);
    float* weights = reinterpret_cast<float*>(shared_memory + WEIGHTS_AT);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int member = lane / 4 + half * 8;
        float weight = sums.weight[half];
        weight += __shfl_xor_sync(ALL, weight, 1);
        weight += __shfl_xor_sync(ALL, weight, 2);
        if (member < share) {
            float* mine_of = totals + (warp * 16 + member) * DIM + (lane & 3) * 2;
#pragma unroll
            for (int n = 0; n < DIM / 8; n++) {
                mine_of[n * 8] = sums.total[n][2 * half];
                mine_of[n * 8 + 1] = sums.total[n][2 * half + 1];
            }
            if ((lane & 3) == 0) {
                weights[(warp * 16 + member) * 2] = sums.best[half];
                weights[(warp * 16 + member) * 2 + 1] = weight;
            }
        }
    }
    __syncthreads();  // each thread now adds what all warps left
    const int cells = share * (DIM + 2);
    const int64_t group = static_cast<int64_t>(row) * a.kv_heads + kv_head;
    float* own = a.partials + (group * a.splits + split) * cells;
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
        if (active == 1) {
            out[cell] = to_bf16(total / weight);
        } else {
            own[cell] = total;
            if (cell % DIM == 0) {
                own[share * DIM + member] = best;
                own[share * DIM + share + member] = weight;
            }
        }
    }
    if (active == 1) return;
    int* is_last = reinterpret_cast<int*>(shared_memory + FLAG_AT);
    __threadfence();  // what I wrote is seen by other blocks before the count that says so
    __syncthreads();  // … and so is what all my threads wrote
    if (threadIdx.x == 0) {
        const uint32_t most = active - 1;
        *is_last = atomicInc(a.arrivals + group, most) == most;  // which leaves it at zero for the next launch
        __threadfence();  // the others' sums are not read before the count
    }
    __syncthreads();  // all threads know
    if (*is_last) combine(a.partials + group * a.splits * cells, cells, active, share, out);
}
