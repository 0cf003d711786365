// A decode step of few long rows, each shared by many blocks. A row's positions are interleaved: the blocks take a unit each in
// turn, so that a block knows where its first positions lie before it knows the row's length, and its first reads are issued
// after one look at the table. The rings of the blocks that fit on a processor fill its shared memory; when one of them ends, a
// block of the next launch begins to read in its place. So memory idles only from a processor's last bytes to the first of its
// next block. To keep that short, all blocks but one post their partial results without waiting (exchange.cuh), and there may
// be fewer blocks than fit: the next launch begins on what is free while this one's partial results are combined, at once or
// when a warp of each block has finished its chunk `let_in`.
#include "decode.cuh"
#include "exchange.cuh"

// Which of a row's units a block has: every `active`-th. If `uneven`, in the last turns some blocks have two units and others
// none, instead of one each: so blocks do not all end at once, and their processors idle at different times.
struct Interleave {
    int units, active, nth;
    int even;  // turns in which all blocks have a unit
    int long_ones;

    __device__ __forceinline__ Interleave(int units, int active, int nth, bool uneven)
        : units(units), active(active), nth(nth), even(uneven ? units / active - 1 : units), long_ones(1) {
        if (uneven) long_ones = (units - even * active + 1) / 2;
    }
    __device__ __forceinline__ int unit(int turn) const {
        if (turn < even) return turn * active + nth;
        return nth < long_ones ? even * active + (turn - even) * long_ones + nth : units;
    }
    __device__ __forceinline__ int turns() const {
        if (even == units) return (units - nth + active - 1) / active;
        return even + (nth < long_ones ? 1 + (unit(even + 1) < units) : 0);
    }
};

template <int WARPS_HERE, int RING_BYTES, int CHUNK>
__device__ __forceinline__ void decode_long(const DecodeArgs& a) {
    constexpr int CHUNK_BYTES = CHUNK * ROW_BYTES, STAGE_BYTES = 2 * CHUNK_BYTES, STAGES = RING_BYTES / STAGE_BYTES;
    constexpr int UNIT = WARPS_HERE * CHUNK;             // positions that all warps take in one turn
    constexpr int QUERIES_AT = WARPS_HERE * RING_BYTES;  // [QUERIES, DIM], as factors of products
    constexpr int FRESH_AT = QUERIES_AT + QUERIES * WIDE_BYTES;
    static_assert(Exchange<WARPS_HERE>::BYTES <= QUERIES_AT, "what is put together has room in the place of the rings");
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int groups = a.rows * a.kv_heads, group = blockIdx.x % groups, nth = blockIdx.x / groups;
    const int row = group / a.kv_heads, kv_head = group % a.kv_heads, share = a.heads / a.kv_heads;
    const int blocks = (static_cast<int>(gridDim.x) - group + groups - 1) / groups;  // of this row and head
    Pages pages = {
        reinterpret_cast<const uint8_t*>(a.cache + static_cast<int64_t>(kv_head) * DIM), KV_BYTES * a.plane,
        static_cast<uint32_t>(a.kv_heads) * ROW_BYTES, a.tables + static_cast<int64_t>(row) * a.table_stride,
        a.block_tokens, a.block_magic, 0,
    };
    if (a.let_in < 0) launch_dependents();
    if (!a.early) wait_prior();
    int entries[STAGES + AHEAD];  // of the table, for this warp's next chunks
#pragma unroll
    for (int n = 0; n < STAGES + AHEAD; n++)
        entries[n] = pages.look_up<CHUNK>((n * blocks + nth) * UNIT + warp * CHUNK, a.capacity, lane);
    const int64_t last = read_position(a.positions, static_cast<int64_t>(row) * a.position_stride, a.wide_positions);
    const int past = last < 0 || last >= a.capacity ? -1 : static_cast<int>(last);
    const int64_t result = (static_cast<int64_t>(row) * a.heads + kv_head * share) * DIM;
    const Results out = {static_cast<uint8_t*>(a.out) + result * a.out_bytes, a.out_bytes};
    if (past < 0) {  // no such position: nothing to attend to, nowhere to write
        wait_prior();
        if (nth == 0)
            for (int four = threadIdx.x; four < share * DIM / 4; four += 32 * WARPS_HERE) out.put(four, {}, 1.0f);
        return;
    }
    const int units = past / UNIT + 1;
    const int active = past < a.alone ? 1 : max(1, min(blocks, units / max(1, a.least / UNIT)));
    if (nth >= active) return;  // a row's first block waits for the previous kernel, so the grid does not end before it
    const Interleave mine(units, active, nth, a.uneven && units / active > STAGES);
    const int turns = mine.turns();
    auto from_of = [&](int turn) { return (turn < turns ? mine.unit(turn) : units) * UNIT + warp * CHUNK; };
    pages.end = past;  // the new position is not in the cache yet
#pragma unroll
    for (int n = 0; n < STAGES + AHEAD; n++)
        if (active != blocks || n >= mine.even) entries[n] = pages.look_up<CHUNK>(from_of(n), past, lane);
    const bool has_last = mine.unit(turns - 1) == units - 1;
    const bool has_fresh = has_last && past / CHUNK % WARPS_HERE == warp;
    const int chunks = turns - (has_last && from_of(turns - 1) > past);
    const shared_t ring = shared_base() + warp * RING_BYTES;
    // Keys and values are copied separately and, if the grid is `crowded`, a warp has at most two such halves in flight: memory
    // serves in order, and what blocks of the previous kernel post or poll would wait behind all of them.
    const bool crowded = groups * active >= CROWD;
#pragma unroll
    for (int n = 0; n < STAGES; n++) {
        const shared_t to = ring + n * STAGE_BYTES;
        const int slot = pages.slot_in<CHUNK>(entries[n], from_of(n), lane);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (n < chunks) pages.copy_plane<CHUNK>(to + half * CHUNK_BYTES, half * pages.plane_bytes, slot, lane);
            copies_commit();
            if (crowded) copies_wait<1>();
        }
    }
    uint32_t q[DIM / 16][4];
    uint8_t* fresh = shared_memory + FRESH_AT;  // used by one warp only
    take_queries<WARPS_HERE, QUERIES_AT>(q, a, row, kv_head, has_fresh ? past : -1, pages.table, fresh, warp, lane);
    Sums sums;
    sums.clear();

    int stage = 0;
    for (int n = 0; n < chunks; n++) {
        copies_wait_for(max(STAGES - 1, 2 * (STAGES - 1) - n));  // of the first chunks each half is a group
        __syncwarp();                                            // all lanes' copies of this chunk have arrived
        const shared_t keys = ring + stage * STAGE_BYTES;
        const int from = from_of(n);
        if (has_fresh && n == chunks - 1)
            lay_in<CHUNK>(shared_memory + warp * RING_BYTES + stage * STAGE_BYTES, past - from, fresh, lane);
        sums.add<CHUNK>(q, keys, keys + CHUNK_BYTES, past + 1 - from, a.scale, lane);
        if (n + STAGES < chunks) {
            __syncwarp();  // all lanes have read it
            const int slot = pages.slot_in<CHUNK>(entries[STAGES], from_of(n + STAGES), lane);
            pages.copy<CHUNK>(keys, keys + CHUNK_BYTES, slot, lane);
#pragma unroll
            for (int i = STAGES; i < STAGES + AHEAD - 1; i++) entries[i] = entries[i + 1];
            entries[STAGES + AHEAD - 1] = pages.look_up<CHUNK>(from_of(n + STAGES + AHEAD), past, lane);
        }
        copies_commit();  // an empty group keeps the count
        if (n == a.let_in) launch_dependents();
        stage = stage == STAGES - 1 ? 0 : stage + 1;
    }

    __syncthreads();  // all rings have been read: their memory is reused
    leave(sums, share, warp, lane);
    __syncthreads();  // each thread now combines what all warps left
    const int cells = share * (DIM + 4);
    const Exchange<WARPS_HERE> exchange = {a.partials + static_cast<int64_t>(group) * a.splits * cells, cells, share};
    if (active == 1) add_warps<WARPS_HERE>(nullptr, out, true, share);
    else if (nth < active - 1) exchange.send(nth);
    else exchange.collect(active - 1, out);
}

extern "C" __global__ void __launch_bounds__(256, 1) paged_decode_long_8x3(const __grid_constant__ DecodeArgs a) {
    decode_long<8, 3 * RING_UNIT, 16>(a);
}
extern "C" __global__ void __launch_bounds__(128, 2) paged_decode_long_4x3(const __grid_constant__ DecodeArgs a) {
    decode_long<4, 3 * RING_UNIT, 16>(a);
}
