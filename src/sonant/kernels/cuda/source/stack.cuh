// The shape of a stack, how its work is divided, and the layout of a block's shared memory.
//
// A grid of CLUSTERS times RANKS blocks passes through all layers. Of a product, a cluster has a share of the columns
// and each of its blocks a share of the depth, so that a block reads only a part of the input. Columns are in tiles of
// sixteen, the left operand of the tensor cores' products; the right operand is the rows, in tiles of eight. A warp has
// some tiles and some of its block's depth. It pushes its sums to the block of the cluster that completes those
// columns.
#pragma once
#include "grid.cuh"

constexpr int WARPS = 8, WORKERS = 32 * WARPS;
constexpr int THREADS = WORKERS + 32;  // the last warp waits for other blocks: it has no copies that a fence waits for
constexpr int BLOCKS = CLUSTERS * RANKS;
constexpr int ROWS = 8 * ROW_TILES;                          // that are computed; some may not exist
constexpr int ROW_STEP = ROW_TILES % 2 ? ROWS : ROWS + 8;    // to the next column's sums: no bank conflicts in pushes
constexpr int DIM = 128, QKV = (HEADS + 2 * KV_HEADS) * DIM, GATHERED = HEADS * DIM;
constexpr int CHUNK = 64, CHUNK_BYTES = 16 * CHUNK * 2;      // of weights: a tile by CHUNK of the depth
constexpr int MOST_LAYERS = 28, MOST_STEPS = 16;
constexpr uint32_t ALL = 0xffffffffu;
#ifndef MARKED  // for measurements: each block notes when it reached which point
#define MARKED 0
#endif
constexpr int POINTS = 6;
static_assert((BLOCKS & (BLOCKS - 1)) == 0, "a counter that wraps must have counted whole barriers");

constexpr int groups_of(int sets, int chunks) {
    int groups = 1;
    while (2 * groups * sets <= WARPS && chunks % (2 * groups) == 0) groups *= 2;
    return groups;
}

// A product whose tiles of columns go to clusters in turn. EACH: tiles of a warp. PAIRED: the second of a warp's two is
// the up projection of its first, a gate's; it is as many rows further in the weights as there are gates.
template <int COLUMNS_, int EACH_, int WIDTH_, bool PAIRED_ = false>
struct Product {
    static constexpr int EACH = EACH_, WIDTH = WIDTH_;
    static constexpr bool PAIRED = PAIRED_;
    static constexpr int EVERYWHERE = COLUMNS_ / 16;  // tiles of all clusters, a pair counted once
    static constexpr int MOST = (EVERYWHERE + CLUSTERS - 1) / CLUSTERS, TILES = PAIRED ? 2 * MOST : MOST;
    static constexpr bool EVEN = EVERYWHERE % CLUSTERS == 0;
    static constexpr int SETS = TILES / EACH;
    static constexpr int DEPTH = WIDTH / RANKS;  // of a block
    static constexpr int GROUPS = groups_of(SETS, DEPTH / CHUNK);
    static constexpr int EVERY = DEPTH / CHUNK / GROUPS;  // chunks of the depth that a warp has
    static constexpr int CHUNKS = EVERY * EACH;
    static constexpr int STEP = PAIRED ? COLUMNS_ : CLUSTERS * SETS * 16;  // of weights' rows, to a warp's second tile
    static constexpr int COLUMNS = TILES * 16 / RANKS;              // that one block completes
    static constexpr int FLOATS = RANKS * GROUPS * COLUMNS * ROW_STEP;
    static_assert(COLUMNS_ % 16 == 0 && WIDTH % (RANKS * CHUNK) == 0, "whole tiles and whole chunks");
    static_assert(TILES % EACH == 0 && SETS * GROUPS <= WARPS && (EVEN || EACH == 1), "no share for every warp");
    static_assert(!PAIRED || EACH == 2, "a gate and what it opens");

    // A warp's set is the number of its first tile in the cluster; the last of these tiles may not exist.
    static __device__ __forceinline__ uint32_t set(uint32_t warp) { return warp % SETS; }
    static __device__ __forceinline__ uint32_t group(uint32_t warp) { return warp / SETS; }
    static __device__ __forceinline__ uint32_t tile(uint32_t cluster, uint32_t own) { return cluster + CLUSTERS * own; }
    static __device__ __forceinline__ bool busy(uint32_t warp, uint32_t cluster) {
        return warp < SETS * GROUPS && (EVEN || tile(cluster, set(warp)) < EVERYWHERE);
    }
    // The number of one of a cluster's columns among all.
    static __device__ __forceinline__ uint32_t column(uint32_t cluster, uint32_t own) {
        return tile(cluster, own / 16) * 16 + own % 16;
    }
    // Whether there is such a column.
    static __device__ __forceinline__ bool has(uint32_t cluster, uint32_t own) {
        return EVEN || tile(cluster, own / 16) < EVERYWHERE;
    }
    // Bytes of sums that are pushed to a block.
    static __device__ __forceinline__ uint32_t bytes(uint32_t cluster, uint32_t rank) {
        int columns = COLUMNS;
        if (!EVEN && !has(cluster, MOST * 16 - 1))
            columns = min(max((MOST - 1) * 16 - static_cast<int>(rank) * COLUMNS, 0), COLUMNS);
        return RANKS * GROUPS * columns * ROWS * 4;
    }
};

using Projection = Product<QKV, 1, HIDDEN>;
using Output = Product<HIDDEN, 1, GATHERED>;
using Gates = Product<INNER, 2, HIDDEN, true>;
using Down = Product<HIDDEN, HIDDEN / 16 / CLUSTERS, INNER>;
static_assert(Output::EVEN && Gates::EVEN && Projection::COLUMNS % 2 == 0, "only the projection may be uneven");

// Where a thread is in the grid; computed again wherever it is needed, see `anew`.
struct Place {
    uint32_t cluster, rank, warp, lane;
};
__device__ __forceinline__ Place here() {
    const uint32_t block = anew(blockIdx.x), thread = anew(threadIdx.x);
    return {block / RANKS, block % RANKS, thread / 32, thread % 32};
}

struct Layer {
    const uint16_t* weights[4];  // of the QKV, output, gate-and-up and down projections
    const uint16_t* gains[2];    // of the norms before the first and the third
};

struct StackArgs {
    uint16_t* x;      // [rows, HIDDEN], updated in place
    uint16_t* qkv;    // [rows, QKV], scratch
    uint16_t* inner;  // [rows, INNER], scratch, with columns in the order of `place_of`
    const uint16_t *cos, *sin;  // [steps, DIM]
    uint32_t* counter;          // a multiple of BLOCKS between launches
    int rows, steps, layers;
    float eps, scale;  // scale: of scores, times log2(e)
    int pad;
    uint64_t* marks;  // [BLOCKS, 4 * MOST_LAYERS, POINTS], if the program is MARKED
    Layer layer[MOST_LAYERS];
};

// The place of a column among 32 of a product's right operand, of which a lane reads eight of a row at once: of each
// sixteen columns it needs two neighbours, and two more that are eight further on.
__device__ __forceinline__ uint32_t place_of(uint32_t column) {
    return (column & ~31) | (column & 6) << 2 | (column & 16) >> 2 | (column & 8) >> 2 | (column & 1);
}

constexpr int larger(int a, int b) { return a > b ? a : b; }

// Rows are so far apart that the eight of a matrix load, or the lanes of a store, have no bank conflicts.
constexpr int NORMED_STEP = 2 * Projection::DEPTH + 16, GATHERED_STEP = 2 * Output::DEPTH + 16;
constexpr int VALUE_STEP = 2 * DIM + 16, ROPE_STEP = 2 * DIM + 64;
constexpr int INPUT_AT = 0;
constexpr int VALUES_AT = INPUT_AT + ROWS * larger(NORMED_STEP, GATHERED_STEP);
constexpr int ROPE_AT = VALUES_AT + (ROWS + 16) * VALUE_STEP;  // cos, then sin
constexpr int PARTS_AT = ROPE_AT + 2 * MOST_STEPS * ROPE_STEP;
constexpr int PARTS = larger(larger(Projection::FLOATS, Output::FLOATS), larger(Gates::FLOATS, Down::FLOATS));
constexpr int SQUARES_AT = PARTS_AT + 4 * PARTS;  // [RANKS, ROWS]
constexpr int LANDING_AT = SQUARES_AT + 4 * RANKS * ROWS;  // gate: all pushes to this block have landed
constexpr int WRITTEN_AT = LANDING_AT + 8;                 // gate: its warps have written what others will read
constexpr int PASSAGE_AT = WRITTEN_AT + 8;                 // gate: all blocks have done so
constexpr int BEGAN_AT = PASSAGE_AT + 8;
constexpr int PLAN_BYTES = 32, PLANS_AT = (BEGAN_AT + 4 + 15) / 16 * 16;  // [WARPS, 4]
constexpr int HELD_AT = PLANS_AT + WARPS * 4 * PLAN_BYTES;  // [WORKERS] pairs of x
constexpr int RING_AT = (HELD_AT + 4 * WORKERS + 127) / 128 * 128;
constexpr int SHARED_BYTES = 232448;
constexpr int ROOM = (SHARED_BYTES - RING_AT) / (WARPS * CHUNK_BYTES);
constexpr int AHEAD = ROOM < MOST_AHEAD ? ROOM : MOST_AHEAD;  // most chunks of each warp in flight
constexpr int LEAST = 2;  // fewest, while it uses others
constexpr int TAKES = 2;  // it requests one with all but the first of so many that it uses; the rest while it waits
static_assert(AHEAD >= LEAST && PACE > 0, "no room for weights");
static_assert(VALUES_AT % 16 == 0 && PARTS_AT % 16 == 0 && LANDING_AT % 8 == 0, "no place for them");
