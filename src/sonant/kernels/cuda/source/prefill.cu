// Several positions a row over its paged keys and values, causal: query t of a row sees positions 0…positions[t].
//
// A block serves one row, one key-value head and a tile of 64 or 128 queries: the heads that share the key-value head
// lie side by side, position after position, so that keys and values are read once for all of them. Each of the four
// warps has 16 or 32 queries. Keys and values of 64 positions are multiplied while the next 64 are being copied. The
// blocks with the most positions come first in the grid, and the short ones fill the GPU at its end.
#include "tiles.cuh"

constexpr int TILE_BYTES = KEYS * ROW_BYTES;  // of keys, and of values
constexpr int STAGE_BYTES = 2 * TILE_BYTES;
constexpr int NOBODY = 0x7fffffff;  // the position of a query beyond the last: nothing is masked, no result is written

struct PrefillArgs {
    const uint16_t* q;
    const cached_t* cache;
    const int* tables;
    const void* positions;  // [rows, length]
    uint16_t* out;
    int64_t plane;          // elements from keys to values
    int table_stride, wide_positions, length, heads, kv_heads, block_tokens;
    uint32_t block_magic;
    int capacity;           // positions that may be read at all
    float scale;            // of scores, times log2(e)
};
static_assert(sizeof(PrefillArgs) == 88, "as attention.py packs it");

// Where tile row n's query and result lie, in elements; the row must exist.
__device__ __forceinline__ int64_t query_at(const PrefillArgs& a, int row, int kv_head, int share, int n) {
    const int at = n / share;
    return ((static_cast<int64_t>(row) * a.length + at) * a.heads + kv_head * share + n - at * share) * DIM;
}

// Causal mask of a tile of keys that begins at position `first`; `positions` are those of this warp's queries.
template <int M>
__device__ __forceinline__ void hide(float (&s)[M][KEYS / 8][4], const int* positions, int first, int lane) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int seen = positions[m * 16 + (i / 2) * 8 + lane / 4] - first - (lane & 3) * 2 - (i & 1);
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++)
                if (n * 8 > seen) s[m][n][i] = lowest();
        }
}

// Convert sixteen columns of a query in shared memory to factors, in the order of factors, in place.
__device__ __forceinline__ void make_factors(int row, int sixteen) {
    uint8_t* pieces[2] = {shared_memory + place<WIDE_BYTES>(row, 2 * sixteen),
                          shared_memory + place<WIDE_BYTES>(row, 2 * sixteen + 1)};
    uint32_t words[8];
#pragma unroll
    for (int n = 0; n < 8; n++) words[n] = reinterpret_cast<const uint32_t*>(pieces[n / 4])[n % 4];
#pragma unroll
    for (int n = 0; n < 8; n++) {  // two neighbours each
        const float low = bf16(static_cast<uint16_t>(words[n])), high = bf16(static_cast<uint16_t>(words[n] >> 16));
        const int at = factor_of(2 * n);
        *reinterpret_cast<uint32_t*>(pieces[at / 8] + at % 8 * 2) = pack_factors(in_range(low), in_range(high));
    }
}

// Store positions of the tile's queries in shared memory → the highest and the lowest of them.
template <int QUERIES>
__device__ __forceinline__ int2 read_positions(
    const PrefillArgs& a, int* positions, int* ends, int row, int share, int first
) {
    int highest = -1, least = NOBODY;
    if (threadIdx.x < QUERIES) {
        const int n = first + threadIdx.x;
        int position = NOBODY;
        if (n < a.length * share) {
            const int64_t at = static_cast<int64_t>(row) * a.length + n / share;
            const int64_t told = read_position(a.positions, at, a.wide_positions);
            position = told < 0 ? -1 : told < a.capacity ? static_cast<int>(told) : a.capacity - 1;
            highest = least = position;
        }
        positions[threadIdx.x] = position;
    }
#pragma unroll
    for (int step = 16; step; step >>= 1) {
        highest = max(highest, __shfl_xor_sync(ALL, highest, step));
        least = min(least, __shfl_xor_sync(ALL, least, step));
    }
    if (threadIdx.x % 32 == 0) {
        ends[threadIdx.x / 16] = highest;
        ends[threadIdx.x / 16 + 1] = least;
    }
    __syncthreads();  // other threads have stored positions and their ends
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        highest = max(highest, ends[2 * w]);
        least = min(least, ends[2 * w + 1]);
    }
    return {highest, least};
}

// M: tiles of 16 queries that a warp has.
template <int M>
__device__ __forceinline__ void prefill(const PrefillArgs& a) {
    constexpr int QUERIES = 16 * M * WARPS;
    constexpr int STAGES_AT = QUERIES * WIDE_BYTES, POSITIONS_AT = STAGES_AT + 2 * STAGE_BYTES;
    constexpr int ENDS_AT = POSITIONS_AT + QUERIES * 4;  // [WARPS, 2]
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int kv_head = blockIdx.x % a.kv_heads, row = blockIdx.x / a.kv_heads;
    const int share = a.heads / a.kv_heads, queries = a.length * share;
    const int first = (gridDim.y - 1 - blockIdx.y) * QUERIES;  // of this tile
    int* positions = reinterpret_cast<int*>(shared_memory + POSITIONS_AT);
    const shared_t base = shared_base(), stages = base + STAGES_AT;
    launch_dependents();
    wait_prior();
#pragma unroll
    for (int n = threadIdx.x; n < QUERIES * WIDE_PIECES; n += THREADS) {
        const int at = n / WIDE_PIECES, piece = n % WIDE_PIECES;
        const bool there = first + at < queries;
        const int64_t from = there ? query_at(a, row, kv_head, share, first + at) : 0;
        copy16(base + place<WIDE_BYTES>(at, piece), a.q + from + piece * 8, there);
    }
    copies_commit();
    int* ends = reinterpret_cast<int*>(shared_memory + ENDS_AT);
    const int2 range = read_positions<QUERIES>(a, positions, ends, row, share, first);
    const Pages pages = {
        reinterpret_cast<const uint8_t*>(a.cache + static_cast<int64_t>(kv_head) * DIM), KV_BYTES * a.plane,
        static_cast<uint32_t>(a.kv_heads) * ROW_BYTES, a.tables + static_cast<int64_t>(row) * a.table_stride,
        a.block_tokens, a.block_magic, range.x + 1,
    };
    const int tiles = (pages.end + KEYS - 1) / KEYS;
    const uint32_t mine = warp * CHUNK * ROW_BYTES;  // the sixteen of a tile's positions that this warp copies
    if (tiles > 0)
        pages.copy<CHUNK>(stages + mine, stages + TILE_BYTES + mine, pages.slot<CHUNK>(warp * CHUNK, lane), lane);
    copies_commit();
    int next_slot = pages.slot<CHUNK>(KEYS + warp * CHUNK, lane);

    Gathered<M> sums;
    sums.clear();
    const int rows_at = warp * M * 16;  // this warp's queries in the tile
    if (KV_BYTES == 1) {
        copies_wait<1>();
        __syncthreads();  // all queries have arrived, which other threads have copied
        for (int n = lane; n < 16 * M * (DIM / 16); n += 32) make_factors(rows_at + n / (DIM / 16), n % (DIM / 16));
        __syncwarp();  // each lane reads what all have made
    }
    for (int tile = 0; tile < tiles; tile++) {
        copies_wait<0>();
        __syncthreads();  // all threads' copies of this tile have arrived, and all are done with the tile before it
        if (tile + 1 < tiles) {
            const shared_t to = stages + ((tile + 1) & 1) * STAGE_BYTES + mine;
            pages.copy<CHUNK>(to, to + TILE_BYTES, next_slot, lane);
            next_slot = pages.slot<CHUNK>((tile + 2) * KEYS + warp * CHUNK, lane);
        }
        copies_commit();
        const shared_t stage = stages + (tile & 1) * STAGE_BYTES;
        float s[M][KEYS / 8][4];
        score<M>(s, base + rows_at * WIDE_BYTES + by_rows<WIDE_BYTES>(lane), stage + by_pieces(lane));
        if (tile * KEYS + KEYS - 1 > range.y) hide<M>(s, positions + rows_at, tile * KEYS, lane);
        sums.weigh(s, a.scale);
        sums.add(s, stage + TILE_BYTES + by_rows<ROW_BYTES>(lane));
    }
    if (tiles == 0) {  // copies of queries have not been awaited yet, and their memory is reused now
        copies_wait<0>();
        __syncthreads();
    }
    __syncwarp();  // results overwrite this warp's queries, which other lanes may still have been reading
    sums.leave(rows_at, lane);
    __syncwarp();  // whole rows are stored by lanes that did not compute them
#pragma unroll
    for (int n = lane; n < 16 * M * WIDE_PIECES; n += 32) {
        const int at = rows_at + n / WIDE_PIECES, piece = n % WIDE_PIECES;
        if (first + at >= queries) continue;
        uint16_t* to = a.out + query_at(a, row, kv_head, share, first + at) + piece * 8;
        move16(to, shared_memory + place<WIDE_BYTES>(at, piece));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) paged_prefill_64(const __grid_constant__ PrefillArgs a) {
    prefill<1>(a);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) paged_prefill_128(const __grid_constant__ PrefillArgs a) {
    prefill<2>(a);
}
