// One new position a row over its paged keys and values: norms, rotations, the write to the cache, attention.
//
// A block serves one row, one key-value head and one share of the row's positions. The query heads that share the
// key-value head are rows of one 16-row tile. Each warp has a pipeline of its own over chunks of 16 or 32 positions, so
// the loop has no barrier of the block; the warps' sums are put together at the end, and those of the blocks by whichever
// block arrives last. How many blocks share a row's positions follows from its length, which only the device knows: the
// others of the grid leave at once.
#include "heads.cuh"
#include "shares.cuh"

constexpr int RING_UNIT = 8192;  // bytes of a warp's ring by which the host counts

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
