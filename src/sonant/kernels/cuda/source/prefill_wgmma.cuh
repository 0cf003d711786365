// For `prefill_wgmma.cu`: arguments, the layout of shared memory, and the warp that copies keys and values.
#pragma once
#include "hopper.cuh"

#ifndef HEAD_DIM
#define HEAD_DIM 128
#endif

constexpr int DIM = HEAD_DIM, HALVES = DIM / 64;  // 64 columns are a line of 128 bytes, the unit of swizzling
constexpr int KEYS = 128, STAGES = 2, ITEMS = 2;
constexpr int LINE_BYTES = 128, LINES_BYTES = KEYS * LINE_BYTES, TILE_BYTES = HALVES * LINES_BYTES;
constexpr int GROUP = 128, QUERIES_BYTES = 64 * LINE_BYTES * HALVES;  // of a warpgroup
constexpr int NOBODY = 0x7fffffff;  // the position of a query beyond the last: nothing is masked, no result is written
constexpr uint32_t ALL = 0xffffffffu;
static_assert(DIM == 64 || DIM == 128, "one or two lines of 128 bytes for each position");

struct PrefillWgmmaArgs {
    TensorMap keys, values;  // pages as rows; their positions as lines
    const uint16_t* q;
    const int* tables;
    const void* positions;  // [rows, length]
    uint16_t* out;
    uint32_t* taken;        // counts items beyond the blocks' first ones; zero between launches
    int table_stride, wide_positions, rows, length, heads, kv_heads, block_tokens;
    int capacity;           // positions that may be read at all
    float scale;            // of scores, times log2(e)
};
static_assert(sizeof(PrefillWgmmaArgs) == 384, "as prefill_wgmma.py packs it");

// One row's queries for one key-value head, as many as a block has at once.
struct alignas(16) Item {
    int row, kv_head;  // a row of -1: there are no more
    int first;         // query: heads that share the key-value head lie side by side, position after position
    int end;           // positions before this are seen by at least one of them
};

template <int GROUPS>
struct Room {
    static constexpr int QUERIES = 64 * GROUPS, KEYS_AT = GROUPS * QUERIES_BYTES, VALUES_AT = KEYS_AT + STAGES * TILE_BYTES;
    static constexpr int ITEMS_AT = VALUES_AT + STAGES * TILE_BYTES, BARRIERS_AT = ITEMS_AT + ITEMS * sizeof(Item);
    static constexpr int BARRIERS = 2 * ITEMS + 4 * STAGES, BYTES = BARRIERS_AT + 8 * BARRIERS;
    static constexpr int WARPS = 4 * GROUPS;  // that multiply

    shared_t base;
    __device__ shared_t queries(int group) const { return base + group * QUERIES_BYTES; }
    __device__ shared_t keys(int stage) const { return base + KEYS_AT + stage * TILE_BYTES; }
    __device__ shared_t values(int stage) const { return base + VALUES_AT + stage * TILE_BYTES; }
    __device__ Item* item(int slot) const { return reinterpret_cast<Item*>(shared_memory + ITEMS_AT) + slot; }
    __device__ shared_t barrier(int n) const { return base + BARRIERS_AT + 8 * n; }
    __device__ shared_t item_there(int slot) const { return barrier(slot); }
    __device__ shared_t item_used(int slot) const { return barrier(ITEMS + slot); }
    __device__ shared_t keys_there(int stage) const { return barrier(2 * ITEMS + stage); }
    __device__ shared_t keys_used(int stage) const { return barrier(2 * ITEMS + STAGES + stage); }
    __device__ shared_t values_there(int stage) const { return barrier(2 * ITEMS + 2 * STAGES + stage); }
    __device__ shared_t values_used(int stage) const { return barrier(2 * ITEMS + 3 * STAGES + stage); }
};

// A position in a ring of SIZE slots: the slot, and the parity of how often the ring was gone through before.
template <int SIZE>
struct Cursor {
    int slot = 0, round = 0;
    __device__ __forceinline__ void next() {
        if (++slot == SIZE) slot = 0, round ^= 1;
    }
};

// The position of a query, which is the last that it sees; the query must exist.
__device__ __forceinline__ int position_of(const PrefillWgmmaArgs& a, int row, int at) {
    const int64_t index = static_cast<int64_t>(row) * a.length + at;
    const int64_t told = a.wide_positions ? read_fresh(static_cast<const int64_t*>(a.positions) + index)
                                          : static_cast<int64_t>(read_fresh(static_cast<const int*>(a.positions) + index));
    return told < 0 ? -1 : told < a.capacity ? static_cast<int>(told) : a.capacity - 1;
}

// The warp that copies what the others multiply: item after item, and of each one tile of keys and values after another.
template <int GROUPS>
struct Supply {
    static constexpr int QUERIES = Room<GROUPS>::QUERIES;
    const PrefillWgmmaArgs& a;
    Room<GROUPS> room;
    int lane;
    Cursor<ITEMS> item = {};
    Cursor<STAGES> stage = {};

    // The item of this index. Those with the most positions come first.
    __device__ __forceinline__ Item item_of(int index) const {
        const int groups = a.rows * a.kv_heads, share = a.heads / a.kv_heads, queries = a.length * share;
        const int tiles = (queries + QUERIES - 1) / QUERIES, group = index % groups;
        Item made = {group / a.kv_heads, group % a.kv_heads, (tiles - 1 - index / groups) * QUERIES, 0};
        const int last = (min(made.first + QUERIES, queries) - 1) / share;
        for (int at = made.first / share + lane; at <= last; at += 32) made.end = max(made.end, position_of(a, made.row, at) + 1);
#pragma unroll
        for (int step = 16; step; step >>= 1) made.end = max(made.end, __shfl_xor_sync(ALL, made.end, step));
        return made;
    }

    __device__ __forceinline__ void hand_over(const Item& made) {
        barrier_wait(room.item_used(item.slot), item.round ^ 1);
        if (lane == 0) {
            *room.item(item.slot) = made;
            barrier_arrive(room.item_there(item.slot));
        }
        item.next();
    }

    // Start copies of a tile's pages, one by each lane that has one.
    __device__ __forceinline__ void bring(const TensorMap& from, shared_t to, shared_t there, int page, int pages, int column) {
        if (lane == 0) barrier_expect(there, pages * a.block_tokens * LINE_BYTES * HALVES);
        __syncwarp();  // no bytes arrive before they are expected
        if (lane >= pages) return;
#pragma unroll
        for (int half = 0; half < HALVES; half++)
            copy_part(to + half * LINES_BYTES + lane * a.block_tokens * LINE_BYTES, from, column + half * 64, 0, page, there);
    }

    __device__ __forceinline__ void bring_tiles(const Item& made) {
        const int* table = a.tables + static_cast<int64_t>(made.row) * a.table_stride;
        const int pages_in_all = (made.end + a.block_tokens - 1) / a.block_tokens, most = KEYS / a.block_tokens;
        for (int first = 0; first < pages_in_all; first += most) {
            const int pages = min(most, pages_in_all - first), column = made.kv_head * DIM;
            const int page = lane < pages ? read_fresh(table + first + lane) : 0;
            barrier_wait(room.keys_used(stage.slot), stage.round ^ 1);
            bring(a.keys, room.keys(stage.slot), room.keys_there(stage.slot), page, pages, column);
            barrier_wait(room.values_used(stage.slot), stage.round ^ 1);
            bring(a.values, room.values(stage.slot), room.values_there(stage.slot), page, pages, column);
            stage.next();
        }
    }

    __device__ __forceinline__ void run() {
        const int share = a.heads / a.kv_heads, blocks = static_cast<int>(gridDim.x);
        const int items = (a.length * share + QUERIES - 1) / QUERIES * a.rows * a.kv_heads;
        for (int index = blockIdx.x; index < items;) {
            const Item made = item_of(index);
            hand_over(made);
            // a block counts once for each item that it has had: `items` times in all, which leaves the count at 0
            if (lane == 0) index = blocks + static_cast<int>(count(a.taken, items - 1));
            bring_tiles(made);
            index = __shfl_sync(ALL, index, 0);
        }
        hand_over({-1, 0, 0, 0});
    }
};
