// One new position a row over its paged keys and values: norms, rotations, the write to the cache, attention.
//
// A block serves one row, one key-value head and one share of the row's positions. The query heads that share the key-value
// head are the columns of one tile of products (turned.cuh), or its rows if they are more than 8 (gathered.cuh). Each warp has
// a pipeline of its own over chunks of 16 or 32 positions, so the loop has no block barrier; the warps' partial results are
// combined at the end, and those of the blocks by the last to arrive. How many blocks share a row's positions follows from its
// length, which only the device knows: the grid's other blocks return at once. A block has two to six warps: many short rows
// are read fastest by many small blocks, since each then spends most of its life not reading.
#include "decode.cuh"
#include "part.cuh"

constexpr int TABLE_ROOM = 1024;  // entries of a row's table that fit in shared memory where a block HOLDS it

// The slot in the cache of a lane's position of a chunk; `held` is the row's table in shared memory, or null.
template <int CHUNK>
__device__ __forceinline__ int slot_of(const Pages& pages, const int* held, int first, int lane) {
    if (held == nullptr) return pages.slot<CHUNK>(first, lane);
    const int at = first + (lane & (CHUNK - 1));
    return pages.slot_in<CHUNK>(at < pages.end ? held[pages.block_of(at)] : 0, first, lane);
}

// Copies of all chunks that a warp's ring has room for are issued before the kernel waits for the previous one. Where few
// blocks have long rings (IN_TURN) each is issued after the one before has arrived: memory serves in order, and partial results
// that the previous kernel may still have to read would wait behind all of them. HOLDS: a block that shares a row copies all of
// its table.
template <int WARPS_HERE, int RING_BYTES, int CHUNK, bool IN_TURN, bool HOLDS>
__device__ __forceinline__ void decode(const DecodeArgs& a) {
    constexpr int CHUNK_BYTES = CHUNK * ROW_BYTES, STAGE_BYTES = 2 * CHUNK_BYTES, STAGES = RING_BYTES / STAGE_BYTES;
    constexpr int UNIT = WARPS_HERE * CHUNK;             // positions that all warps take in one iteration
    constexpr int QUERIES_AT = WARPS_HERE * RING_BYTES;  // [QUERIES, DIM], as factors of products
    constexpr int FRESH_AT = QUERIES_AT + QUERIES * WIDE_BYTES;
    constexpr int TABLE_AT = FRESH_AT + 4 * DIM;
    const int kv_head = blockIdx.x;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int share = a.heads / a.kv_heads;
    const Rows rows = {a.positions, a.position_stride, a.wide_positions, a.rows, a.capacity, a.alone, a.helpers};
    const bool helps = static_cast<int>(blockIdx.y) >= a.rows;
    Part part = {static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.z), a.splits, -1};
    Pages pages = {
        reinterpret_cast<const uint8_t*>(a.cache + static_cast<int64_t>(kv_head) * DIM), KV_BYTES * a.plane,
        static_cast<uint32_t>(a.kv_heads) * ROW_BYTES, a.tables + static_cast<int64_t>(part.row) * a.table_stride,
        a.block_tokens, a.block_magic, 0,
    };
    launch_dependents();
    if (!a.early) wait_prior();
    // The start of a row's first share is known before the row's length, and so is that of all shares where they have the least
    // size at any length: their table entries are read together with the length.
    const int least = max(1, a.least / UNIT);
    const bool fixed = !helps && (part.split == 0 || a.splits * least * UNIT >= a.capacity);
    int slots[STAGES + AHEAD];
    if (fixed) {
        const int from = part.split * least * UNIT + warp * CHUNK;
#pragma unroll
        for (int n = 0; n < STAGES + AHEAD; n++) slots[n] = pages.look_up<CHUNK>(from + n * UNIT, a.capacity, lane);
    }
    if (rows.helpers) {
        part = helped(rows, part.row, lane);
        if (part.row < 0) return;
        pages.table = a.tables + static_cast<int64_t>(part.row) * a.table_stride;
    } else {
        part.last = rows.last(part.row);
    }
    const int row = part.row, split = part.split, past = part.last;
    const int64_t result = (static_cast<int64_t>(row) * a.heads + kv_head * share) * DIM;
    const Results out = {static_cast<uint8_t*>(a.out) + result * a.out_bytes, a.out_bytes};
    // Other shares learn their start from the length: if the block HOLDS the table, all of it is read together with that.
    const int* held = nullptr;
    if (HOLDS && !fixed) {
        const int blocks = a.capacity / a.block_tokens;
        if (blocks <= TABLE_ROOM) {
            int* near = reinterpret_cast<int*>(shared_memory + TABLE_AT);
            for (int n = threadIdx.x; n < blocks; n += 32 * WARPS_HERE) near[n] = read_fresh(pages.table + n);
            __syncthreads();  // each warp looks up entries that all warps have stored
            held = near;
        }
    }
    if (past < 0) {  // no such position: nothing to attend to, nowhere to write
        wait_prior();
        if (split == 0)
            for (int four = threadIdx.x; four < share * DIM / 4; four += 32 * WARPS_HERE) out.put(four, {}, 1.0f);
        return;
    }
    const int units = past / UNIT + 1;
    const int each = past <= a.alone ? units : max(least, (units + part.splits - 1) / part.splits);
    const int active = (units + each - 1) / each;
    if (split >= active) return;  // a row's first block waits for the previous kernel, so the grid does not end before it
    const bool crowded = static_cast<int>(gridDim.x * gridDim.y) * active >= CROWD;
    const int first = split * each * UNIT;
    const int end = min(first + each * UNIT, past + 1);  // with the new position, which is not in the cache yet
    const bool has_fresh = end == past + 1 && past / CHUNK % WARPS_HERE == warp;
    pages.end = min(end, past);
    const shared_t ring = shared_base() + warp * RING_BYTES;
    const int mine = first + warp * CHUNK;  // this warp's chunks begin here and every UNIT positions
    const int chunks = end > mine ? (end - mine + UNIT - 1) / UNIT : 0;
#pragma unroll
    for (int n = 0; n < STAGES + AHEAD; n++) {
        const int from = mine + n * UNIT;
        slots[n] = fixed ? pages.slot_in<CHUNK>(slots[n], from, lane) : slot_of<CHUNK>(pages, held, from, lane);
    }
#pragma unroll
    for (int n = 0; n < STAGES; n++) {
        const shared_t to = ring + n * STAGE_BYTES;
        if (n < chunks) pages.copy<CHUNK>(to, to + CHUNK_BYTES, slots[n], lane);
        copies_commit();
        if (IN_TURN && n < STAGES - 1 && crowded) copies_wait<0>();
    }
    uint32_t q[DIM / 16][4];
    uint8_t* fresh = shared_memory + FRESH_AT;  // used by one warp only
    take_queries<WARPS_HERE, QUERIES_AT>(q, a, row, kv_head, has_fresh ? past : -1, pages.table, fresh, warp, lane);
    Sums sums;
    sums.clear();

    int stage = 0;
    for (int n = 0; n < chunks; n++) {
        copies_wait<STAGES - 1>();
        __syncwarp();  // all lanes' copies of this chunk have arrived
        const shared_t keys = ring + stage * STAGE_BYTES;
        const int from = mine + n * UNIT;
        if (has_fresh && n == chunks - 1)
            lay_in<CHUNK>(shared_memory + warp * RING_BYTES + stage * STAGE_BYTES, past - from, fresh, lane);
        sums.add<CHUNK>(q, keys, keys + CHUNK_BYTES, end - from, a.scale, lane);
        if (n + STAGES < chunks) {
            __syncwarp();  // all lanes have read it
            pages.copy<CHUNK>(keys, keys + CHUNK_BYTES, slots[STAGES], lane);
#pragma unroll
            for (int i = STAGES; i < STAGES + AHEAD - 1; i++) slots[i] = slots[i + 1];
            slots[STAGES + AHEAD - 1] = slot_of<CHUNK>(pages, held, from + (STAGES + AHEAD) * UNIT, lane);
        }
        copies_commit();  // an empty group keeps the count
        stage = stage == STAGES - 1 ? 0 : stage + 1;
    }

    __syncthreads();  // all rings have been read: their memory is reused
    leave(sums, share, warp, lane);
    __syncthreads();  // each thread now combines what all warps left
    const int cells = share * (DIM + 4);  // a multiple of 16 bytes
    const int64_t group = static_cast<int64_t>(row) * a.kv_heads + kv_head;
    float* slots_of = a.partials + group * a.splits * cells;
    add_warps<WARPS_HERE>(slots_of + static_cast<int64_t>(split) * cells, out, active == 1, share);
    if (active > 1 && arrived_last(a.arrivals + group, active)) combine<WARPS_HERE>(slots_of, cells, active, share, out);
}

// Forms with more blocks on a processor have fewer warps or shorter rings; the host chooses one for a grid. A chunk is 4 KiB of
// keys, but no more positions than a warp can look up at once; in the longest rings, which are for few blocks, it is 32
// positions, since a reduction over their scores takes no longer than over 16.
constexpr int USUAL = 4096 / ROW_BYTES < 32 ? 4096 / ROW_BYTES : 32;

#define PAGED_DECODE(WARPS_HERE, UNITS, CHUNK, IN_TURN, HOLDS, RESIDENT)                                    \
    extern "C" __global__ void __launch_bounds__(32 * WARPS_HERE, RESIDENT)                                 \
        paged_decode_##WARPS_HERE##x##UNITS(const __grid_constant__ DecodeArgs a) {                         \
        decode<WARPS_HERE, UNITS * RING_UNIT, CHUNK, IN_TURN, HOLDS>(a);                                    \
    }

PAGED_DECODE(4, 4, 32, true, true, 1)
PAGED_DECODE(6, 2, USUAL, true, false, 2)
PAGED_DECODE(4, 3, USUAL, false, false, 2)
PAGED_DECODE(2, 3, USUAL, false, false, 4)
PAGED_DECODE(2, 2, USUAL, false, false, 6)
