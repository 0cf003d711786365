// What the kernels of a decode step share: their arguments, the previous kernel's results, the new position. decode.cu takes
// any number of rows, decode_long.cu few, each shared by many blocks.
#pragma once
#ifndef QUERIES  // how many a tile has room for: 8 or 16
#define QUERIES 8
#endif
#include "heads.cuh"
#include "shares.cuh"

#if QUERIES == 8
typedef Turned Sums;
#else
typedef Gathered Sums;
#endif

constexpr int RING_UNIT = 8192;  // bytes, in which the host counts the size of a warp's ring
constexpr int AHEAD = 2;         // chunks beyond a ring whose slots are already looked up
constexpr int CROWD = 64;        // blocks whose rings keep memory busy for longer than it takes to read partial results

struct DecodeArgs {
    const uint16_t *qkv, *q_weight, *k_weight, *cos, *sin;
    cached_t* cache;
    const int* tables;
    const void* positions;
    void* out;
    float* partials;     // [rows, kv_heads, splits, (share, DIM) + share + share + 2 · share unused]; long rows: exchange.cuh
    uint32_t* arrivals;  // [rows, kv_heads], zero between launches
    int64_t plane;       // elements from keys to values
    int table_stride, position_stride, wide_positions, rope_stride, heads, kv_heads, block_tokens;
    uint32_t block_magic;
    int capacity;        // positions that a table has room for
    int splits;          // shares of a row, at most
    int least, alone;    // fewest positions in a share of a long row, and most in a row that one block has alone
    int norm, early, rows, helpers;
    int out_bytes;       // of a result: 2, or 1 for e4m3
    float eps, scale;    // scale: of scores, times log2(e)
    int uneven, let_in;  // see decode_long.cu
    int pad;
};
static_assert(sizeof(DecodeArgs) == 184, "as attention.py packs it");

// What one warp needs of the previous kernel's results: all loads are issued before any result is used.
constexpr int AT_FIRST = 2;  // queries that a warp loads at once
struct Given {
    Columns cos, sin, key, value, query[AT_FIRST];

    __device__ __forceinline__ void read(const DecodeArgs& a, int row, int kv_head, int warp, int warps, bool fresh, int lane) {
        const int share = a.heads / a.kv_heads;
        const uint16_t* source = a.qkv + static_cast<int64_t>(row) * (a.heads + 2 * a.kv_heads) * DIM;
        cos.read(a.cos + static_cast<int64_t>(row) * a.rope_stride, lane);
        sin.read(a.sin + static_cast<int64_t>(row) * a.rope_stride, lane);
#pragma unroll
        for (int n = 0; n < AT_FIRST; n++)
            if (warp + n * warps < share) query[n].read(source + (kv_head * share + warp + n * warps) * DIM, lane);
        if (!fresh) return;
        key.read(source + (a.heads + kv_head) * DIM, lane);
        value.read(source + (a.heads + a.kv_heads + kv_head) * DIM, lane);
    }
};

// One warp writes the new position's key and value to the cache, and one behind the other to `fresh`.
__device__ __forceinline__ void make_position(
    const DecodeArgs& a, const Given& given, const Columns& gain, const int* table, int at, int kv_head, uint8_t* fresh, int lane
) {
    const int block = at / a.block_tokens;
    const int64_t begin = static_cast<int64_t>(read_fresh(table + block)) * a.block_tokens;
    const Columns key = make_head(given.key, gain, given.cos, given.sin, a.norm, a.eps);
    cached_t* to = a.cache + ((begin + at - block * a.block_tokens) * a.kv_heads + kv_head) * DIM;
    put_cached(fresh, to, key, lane);
    put_cached(fresh + ROW_BYTES, to + a.plane, given.value, lane);
    __syncwarp();  // other lanes move it to its chunk
}

// Copy them from there to their rows of a chunk that has arrived, where the chunk's copies have left zeros.
template <int CHUNK>
__device__ __forceinline__ void lay_in(uint8_t* stage, int row, const uint8_t* fresh, int lane) {
    if (lane < 2 * PIECES) {
        const int value = lane / PIECES, piece = lane % PIECES;
        move16(stage + value * CHUNK * ROW_BYTES + place<ROW_BYTES>(row, piece), fresh + lane * 16);
    }
    __syncwarp();  // each lane reads what all have copied
}

// Take the previous kernel's results once it has ended: the queries, which all warps read, and the new position at `past`,
// which is made by the one warp that is given it (the others are given -1).
template <int WARPS_HERE, int QUERIES_AT>
__device__ __forceinline__ void take_queries(
    uint32_t (&q)[DIM / 16][4], const DecodeArgs& a, int row, int kv_head, int past, const int* table, uint8_t* fresh, int warp,
    int lane
) {
    const int share = a.heads / a.kv_heads;
    Columns q_gain = {}, k_gain = {};
    if (a.norm) {  // weights, which no kernel writes
        q_gain.read(a.q_weight, lane);
        k_gain.read(a.k_weight, lane);
    }
    uint8_t* queries = shared_memory + QUERIES_AT;
    for (int head = share + warp; head < QUERIES; head += WARPS_HERE) put_query(queries, head, {}, lane);
    if (a.early) wait_prior();

    Given given;
    given.read(a, row, kv_head, warp, WARPS_HERE, past >= 0, lane);
#pragma unroll
    for (int n = 0; n < AT_FIRST; n++) {
        const int head = warp + n * WARPS_HERE;
        if (head < share) put_query(queries, head, make_head(given.query[n], q_gain, given.cos, given.sin, a.norm, a.eps), lane);
    }
    const uint16_t* source = a.qkv + static_cast<int64_t>(row) * (a.heads + 2 * a.kv_heads) * DIM;
    for (int head = warp + AT_FIRST * WARPS_HERE; head < share; head += WARPS_HERE) {
        Columns made;
        made.read(source + (kv_head * share + head) * DIM, lane);
        put_query(queries, head, make_head(made, q_gain, given.cos, given.sin, a.norm, a.eps), lane);
    }
    __syncthreads();  // every warp reads all queries
#pragma unroll
    for (int k = 0; k < DIM / 16; k++) {
        load_matrices(q[k], pair(shared_base() + QUERIES_AT + place<WIDE_BYTES>(lane & (QUERIES - 1), lane >> 4), k));
    }
    if (past >= 0) make_position(a, given, k_gain, table, past, kv_head, fresh, lane);
}
