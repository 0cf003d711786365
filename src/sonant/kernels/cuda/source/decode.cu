// One new position a row over its paged keys and values: norms, rotations, the write to the cache, attention.
//
// A block serves one row, one key-value head and one share of the row's positions. The query heads that share the
// key-value head are rows of one 16-row tile. Each warp has a pipeline of its own over chunks of 16 or 32 positions, so
// the loop has no barrier of the block; the warps' sums are put together at the end, and those of the blocks by whichever
// block arrives last. How many blocks share a row's positions follows from its length, which only the device knows: the
// others of the grid leave at once.
#include "gathered.cuh"
#include "heads.cuh"

constexpr int RING_UNIT = 8192;  // bytes of a warp's ring by which the host counts
constexpr int MOST_SPLITS = 64;
// after the loop, in the place of the rings
constexpr int TOTALS_BYTES = WARPS * 16 * DIM * 4;           // [WARPS, 16, DIM]
constexpr int WEIGHTS_AT = TOTALS_BYTES;                     // [WARPS, 16, 2]: highest score, sum
constexpr int FACTORS_AT = WEIGHTS_AT + WARPS * 16 * 2 * 4;  // [16, MOST_SPLITS]
constexpr int FLAG_AT = FACTORS_AT + MOST_SPLITS * 16 * 4;
static_assert(FLAG_AT + 4 <= 2 * WARPS * 2 * 16 * 256, "they fit into the least of rings");

struct DecodeArgs {
    const uint16_t *qkv, *q_weight, *k_weight, *cos, *sin;
    cached_t* cache;
    const int* tables;
    const void* positions;
    uint16_t* out;
    float* partials;     // [rows, kv_heads, splits, (share, DIM) + share + share + as much again, unused]
    uint32_t* arrivals;  // [rows, kv_heads], zero between launches
    int64_t plane;       // elements from keys to values
    int table_stride, position_stride, wide_positions, rope_stride, heads, kv_heads, block_tokens;
    uint32_t block_magic;
    int capacity;        // positions that a table has room for
    int splits;
    int least, alone;    // positions in a share of a long row, and in a row that one block has alone
    int norm, early;
    float eps, scale;    // of scores, times log2(e)
};
static_assert(sizeof(DecodeArgs) == 160, "as attention.py packs it");

// The new position's key and value, by one warp: into the cache, and to `fresh`, one behind the other.
__device__ __forceinline__ void make_position(
    const DecodeArgs& a, const uint16_t* source, const Columns& gain, const Columns& cos, const Columns& sin,
    const int* table, int at, int kv_head, uint8_t* fresh, int lane
) {
    Columns key, value;
    key.read(source + (a.heads + kv_head) * DIM, lane);
    value.read(source + (a.heads + a.kv_heads + kv_head) * DIM, lane);
    const int block = at / a.block_tokens;
    const int64_t begin = static_cast<int64_t>(read_fresh(table + block)) * a.block_tokens;
    key = make_head(key, gain, cos, sin, a.norm, a.eps);
    cached_t* to = a.cache + ((begin + at - block * a.block_tokens) * a.kv_heads + kv_head) * DIM;
    put_cached(fresh, to, key, lane);
    put_cached(fresh + ROW_BYTES, to + a.plane, value, lane);
}

// … and as sixteen positions, keys and then values, where nothing is on its way to. Values after the first must be zeros.
constexpr int FRESH_BYTES = 16 * ROW_BYTES;
__device__ __forceinline__ void lay_out(uint8_t* stage, const uint8_t* fresh, int lane) {
    for (int byte = lane * 4; byte < FRESH_BYTES; byte += 128)
        *reinterpret_cast<uint32_t*>(stage + FRESH_BYTES + byte) = 0;
    __syncwarp();  // zeros were written by other lanes than the values that follow
    if (lane < 2 * PIECES) {
        const int value = lane / PIECES, piece = lane % PIECES;
        move16(stage + value * FRESH_BYTES + place<ROW_BYTES>(0, piece), fresh + lane * 16);
    }
    __syncwarp();  // each lane reads what all have laid out
}

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

// All chunks that a warp's ring has room for are on their way before the kernel waits.
template <int RING_BYTES, int CHUNK>
__device__ __forceinline__ void decode(const DecodeArgs& a) {
    constexpr int CHUNK_BYTES = CHUNK * ROW_BYTES, STAGE_BYTES = 2 * CHUNK_BYTES, STAGES = RING_BYTES / STAGE_BYTES;
    constexpr int UNIT = WARPS * CHUNK;               // positions that all warps take in one turn
    constexpr int QUERIES_AT = WARPS * RING_BYTES;    // [16, DIM] of factors
    constexpr int FRESH_AT = QUERIES_AT + 16 * WIDE_BYTES;
    const int kv_head = blockIdx.x, row = blockIdx.y, split = blockIdx.z;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int share = a.heads / a.kv_heads;
    uint16_t* out = a.out + (static_cast<int64_t>(row) * a.heads + kv_head * share) * DIM;
    Pages pages = {
        reinterpret_cast<const uint8_t*>(a.cache + static_cast<int64_t>(kv_head) * DIM), KV_BYTES * a.plane,
        static_cast<uint32_t>(a.kv_heads) * ROW_BYTES, a.tables + static_cast<int64_t>(row) * a.table_stride,
        a.block_tokens, a.block_magic, 0,
    };
    launch_dependents();
    if (!a.early) wait_prior();
    // where shares are the smallest for any length, a block knows where its own begins: the table is then on its way
    // together with the row's length
    const int least = max(1, a.least / UNIT);
    const bool fixed = a.splits == 1 || a.splits * least * UNIT >= a.capacity;
    int slots[STAGES];
    if (fixed) {
        const int from = split * least * UNIT + warp * CHUNK;
#pragma unroll
        for (int n = 0; n < STAGES; n++) slots[n] = pages.look_up<CHUNK>(from + n * UNIT, a.capacity, lane);
    }
    const int64_t last = read_position(a.positions, static_cast<int64_t>(row) * a.position_stride, a.wide_positions);
    if (last < 0 || last >= a.capacity) {  // no such position: nothing to see, nowhere to write
        wait_prior();
        if (split == 0)
            for (int cell = threadIdx.x; cell < share * DIM; cell += THREADS) out[cell] = 0;
        return;
    }
    const int past = static_cast<int>(last), units = (past + UNIT - 1) / UNIT;
    const int each = past <= a.alone ? max(1, units) : max(least, (units + a.splits - 1) / a.splits);
    const int active = max(1, (units + each - 1) / each);
    if (split >= active) return;  // the first block of each row waits for the kernel before, so the grid does not end
    const int first = split * each * UNIT;
    pages.end = min(first + each * UNIT, past);
    const shared_t ring = shared_base() + warp * RING_BYTES;
    const int mine = first + warp * CHUNK;  // my chunks begin here and every UNIT positions
    const int chunks = pages.end > mine ? (pages.end - mine + UNIT - 1) / UNIT : 0;
#pragma unroll
    for (int n = 0; n < STAGES; n++) {
        const int from = mine + n * UNIT;
        slots[n] = fixed ? pages.slot_in<CHUNK>(slots[n], from, lane) : pages.slot<CHUNK>(from, lane);
    }
#pragma unroll
    for (int n = 0; n < STAGES; n++) {
        const shared_t to = ring + n * STAGE_BYTES;
        if (n < chunks) pages.copy<CHUNK>(to, to + CHUNK_BYTES, slots[n], lane);
        copies_commit();
    }
    int next_slot = pages.slot<CHUNK>(mine + STAGES * UNIT, lane);
    Columns q_gain = {}, k_gain = {}, cos, sin;
    if (a.norm) {  // weights, which no kernel writes
        q_gain.read(a.q_weight, lane);
        k_gain.read(a.k_weight, lane);
    }
    if (a.early) wait_prior();

    uint8_t* queries = shared_memory + QUERIES_AT;
    const uint16_t* source = a.qkv + static_cast<int64_t>(row) * (a.heads + 2 * a.kv_heads) * DIM;
    cos.read(a.cos + static_cast<int64_t>(row) * a.rope_stride, lane);
    sin.read(a.sin + static_cast<int64_t>(row) * a.rope_stride, lane);
    for (int head = warp; head < 16; head += WARPS) {
        Columns made = {};
        if (head < share) {
            made.read(source + (kv_head * share + head) * DIM, lane);
            made = make_head(made, q_gain, cos, sin, a.norm, a.eps);
        }
        put_query(queries, head, made, lane);
    }
    const bool has_fresh = split == 0 && warp == WARPS - 1;  // the warp that has least to do
    if (has_fresh)
        make_position(a, source, k_gain, cos, sin, pages.table, past, kv_head, shared_memory + FRESH_AT, lane);
    __syncthreads();  // every warp reads all queries
    uint32_t q[DIM / 16][4];
#pragma unroll
    for (int k = 0; k < DIM / 16; k++) {
        load_matrices(q[k], pair(shared_base() + QUERIES_AT + by_rows<WIDE_BYTES>(lane), k));
    }
    Gathered sums;
    sums.clear();

    int stage = 0;
    for (int n = 0; n < chunks; n++) {
        copies_wait<STAGES - 1>();
        __syncwarp();  // all lanes' copies of this chunk are there
        const shared_t keys = ring + stage * STAGE_BYTES;
        sums.add<CHUNK>(q, keys, keys + CHUNK_BYTES, pages.end - (mine + n * UNIT), a.scale, lane);
        if (n + STAGES < chunks) {
            __syncwarp();  // all have read it
            pages.copy<CHUNK>(keys, keys + CHUNK_BYTES, next_slot, lane);
            next_slot = pages.slot<CHUNK>(mine + (n + STAGES + 1) * UNIT, lane);
        }
        copies_commit();  // an empty group keeps the count
        stage = stage == STAGES - 1 ? 0 : stage + 1;
    }
    if (has_fresh) {  // a chunk of its own: all that was on its way to my ring has arrived and been read
        __syncwarp();
        lay_out(shared_memory + warp * RING_BYTES, shared_memory + FRESH_AT, lane);
        sums.add<16>(q, ring, ring + FRESH_BYTES, 1, a.scale, lane);
    }

    __syncthreads();  // the rings are read to the end: their place is taken
    leave(sums, share, warp, lane);
    __syncthreads();  // each thread now adds what all warps left
    const int cells = share * (DIM + 4);  // a multiple of 16 bytes
    const int64_t group = static_cast<int64_t>(row) * a.kv_heads + kv_head;
    float* slots_of = a.partials + group * a.splits * cells;
    add_warps(slots_of + static_cast<int64_t>(split) * cells, out, active == 1, share);
    if (active > 1 && arrived_last(a.arrivals + group, active)) combine(slots_of, cells, active, share, out);
}

// More blocks on a processor with shorter rings, or the reverse: which is for what grid is the host's to say. A chunk is of
// 4 KiB of keys, as far as a warp can look so many positions up at once; in the longest rings, which are for few blocks,
// of 32 positions: a sum over scores takes as long for them as for 16.
constexpr int USUAL = 4096 / ROW_BYTES < 32 ? 4096 / ROW_BYTES : 32;

extern "C" __global__ void __launch_bounds__(THREADS, 3) paged_decode_2(const __grid_constant__ DecodeArgs a) {
    decode<2 * RING_UNIT, USUAL>(a);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) paged_decode_3(const __grid_constant__ DecodeArgs a) {
    decode<3 * RING_UNIT, USUAL>(a);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) paged_decode_4(const __grid_constant__ DecodeArgs a) {
    decode<4 * RING_UNIT, 32>(a);
}
