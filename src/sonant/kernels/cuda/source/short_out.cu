// The middle of a layer over a frame's codebooks, for one row: norms, rotations, attention, output projection and sum.
//
// A block makes the output's next WARPS · COLUMNS columns, and for that all that the heads gather, anew: a frame has few
// positions. Warp n serves key-value head n and the SHARE query heads that share it, so that nothing but what was gathered
// crosses warps. Weights, and keys and values of earlier positions, are on their way before the kernel waits for the
// fused projection. Those positions were written by other kernels of this chain, each of which waits for the one before
// it; the last is a whole pass over all layers back, and more blocks than a GPU has room for lie between.
//
// COLUMNS, WARPS (key-value heads) and SHARE are given when it is compiled, and DEPTH, which is WARPS · SHARE · 128.
#include "row.cuh"

constexpr int HEAD = 128, HALF_HEAD = 64;
constexpr int POSITIONS = 32 / SHARE;     // a lane has the score of one position and one query head
constexpr int LINE_BYTES = 2 * HEAD + 16;  // of a key or value in shared memory; so lanes that read lines meet no bank twice
constexpr int TILE_BYTES = POSITIONS * LINE_BYTES;
constexpr int QUERY_BYTES = SHARE * HEAD * 4;
constexpr int WARP_BYTES = 2 * TILE_BYTES + QUERY_BYTES;
static_assert(DEPTH == WARPS * SHARE * HEAD, "all heads of all warps");

struct ShortArgs {
    const uint16_t *qkv, *q_weight, *k_weight, *cos, *sin;  // without norms the weights are null
    uint16_t* cache;  // [2, positions, WARPS, HEAD]
    const uint16_t *weight, *residual;
    uint16_t* out;
    int64_t plane;  // elements from keys to values
    int columns, at, early;  // `at`: the new position
    float eps, scale;        // of scores, times log2(e)
};
static_assert(sizeof(ShortArgs) == 104, "as short_out.py packs it");

// A lane has four columns of a head: two of the first half, and those of the second that a rotation mixes with them.
struct Quarter {
    float value[4];

    __device__ __forceinline__ void take(uint32_t low, uint32_t high) {
        value[0] = from_bits(low << 16);
        value[1] = from_bits(low & 0xffff0000u);
        value[2] = from_bits(high << 16);
        value[3] = from_bits(high & 0xffff0000u);
    }
    __device__ __forceinline__ void read(const uint16_t* head, int lane) {
        take(read_fresh(reinterpret_cast<const int*>(head) + lane),
             read_fresh(reinterpret_cast<const int*>(head + HALF_HEAD) + lane));
    }
    __device__ __forceinline__ uint32_t low() const { return pack(value[0], value[1]); }
    __device__ __forceinline__ uint32_t high() const { return pack(value[2], value[3]); }
    __device__ __forceinline__ void put(uint16_t* head, int lane) const {
        reinterpret_cast<uint32_t*>(head)[lane] = low();
        reinterpret_cast<uint32_t*>(head + HALF_HEAD)[lane] = high();
    }
};

// Normed and rotated, each result rounded where the reference rounds it.
__device__ __forceinline__ Quarter ready(
    Quarter head, const Quarter& gain, const Quarter& cos, const Quarter& sin, bool norm, float eps
) {
    float (&x)[4] = head.value;
    if (norm) {
        const float squares = sum_of_lanes(x[0] * x[0] + x[1] * x[1] + x[2] * x[2] + x[3] * x[3]);
        const float scale = rsqrtf(squares / HEAD + eps);
#pragma unroll
        for (int e = 0; e < 4; e++) x[e] = rounded(gain.value[e] * rounded(x[e] * scale));
    }
    Quarter made;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        made.value[e] = rounded(rounded(x[e] * cos.value[e]) + rounded(-x[e + 2] * sin.value[e]));
        made.value[e + 2] = rounded(rounded(x[e + 2] * cos.value[e + 2]) + rounded(x[e] * sin.value[e + 2]));
    }
    return made;
}

// Keys and values of the positions before, to this warp's tiles.
__device__ __forceinline__ void fetch_past(const ShortArgs& a, shared_t tiles, int warp, int lane) {
    for (int piece = lane; piece < a.at * (HEAD / 8); piece += 32) {
        const int position = piece / (HEAD / 8), part = piece % (HEAD / 8);
        const uint16_t* from = a.cache + (static_cast<int64_t>(position) * WARPS + warp) * HEAD + part * 8;
        const shared_t to = tiles + position * LINE_BYTES + part * 16;
        copy16(to, from, true);
        copy16(to + TILE_BYTES, from + a.plane, true);
    }
    copies_commit();
}

// The weight of this lane's position for its query head, of which all of the head's sum up to one.
__device__ __forceinline__ float weight_of(const ShortArgs& a, const uint8_t* keys, const float* queries, int lane) {
    const int position = lane / SHARE;
    const float* query = queries + lane % SHARE * HEAD;
    float score = from_bits(0xff800000u);  // minus infinity
    if (position <= a.at) {
        float sum = 0.0f;
#pragma unroll
        for (int part = 0; part < HEAD / 8; part++) {
            const Words words = shared_words(keys + position * LINE_BYTES + part * 16);
#pragma unroll
            for (int e = 0; e < 8; e++) sum += half_word(words, e) * query[part * 8 + e];
        }
        score = sum * a.scale;
    }
    float best = score;
#pragma unroll
    for (int step = SHARE; step < 32; step *= 2) best = fmaxf(best, __shfl_xor_sync(ALL_LANES, best, step));
    const float weight = power_of_two(score - best);
    float all = weight;
#pragma unroll
    for (int step = SHARE; step < 32; step *= 2) all += __shfl_xor_sync(ALL_LANES, all, step);
    return weight / all;
}

// What this warp's query heads gather, to its place in the row that is projected.
__device__ __forceinline__ void gather(
    const ShortArgs& a, const uint8_t* values, float weight, uint16_t* row, int warp, int lane
) {
    float sums[SHARE][4] = {};
    for (int position = 0; position <= a.at; position++) {
        Quarter value;
        const uint32_t* line = reinterpret_cast<const uint32_t*>(values + position * LINE_BYTES);
        value.take(line[lane], line[HALF_HEAD / 2 + lane]);
#pragma unroll
        for (int member = 0; member < SHARE; member++) {
            const float by = __shfl_sync(ALL_LANES, weight, position * SHARE + member);
#pragma unroll
            for (int e = 0; e < 4; e++) sums[member][e] += by * value.value[e];
        }
    }
#pragma unroll
    for (int member = 0; member < SHARE; member++) {
        Quarter head;
#pragma unroll
        for (int e = 0; e < 4; e++) head.value[e] = sums[member][e];
        head.put(row + (warp * SHARE + member) * HEAD, lane);
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 16 / WARPS) short_out(const __grid_constant__ ShortArgs a) {
    launch_dependents();
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32, first = (blockIdx.x * WARPS + warp) * COLUMNS;
    const int tiles = 2 * DEPTH + warp * WARP_BYTES;  // where this warp's part of shared memory begins, behind the row
    Held held;
    held.read(a.weight, first, a.columns, lane);
    if (a.early) fetch_past(a, shared_base() + tiles, warp, lane);
    Quarter q_gain = {}, k_gain = {}, cos, sin;
    if (a.q_weight) q_gain.read(a.q_weight, lane), k_gain.read(a.k_weight, lane);
    cos.read(a.cos, lane), sin.read(a.sin, lane);
    wait_prior();

    if (!a.early) fetch_past(a, shared_base() + tiles, warp, lane);
    uint8_t *keys = shared_memory + tiles, *values = keys + TILE_BYTES;
    float* queries = reinterpret_cast<float*>(values + TILE_BYTES);
    Quarter key, value, query[SHARE];
    key.read(a.qkv + (WARPS * SHARE + warp) * HEAD, lane);
    value.read(a.qkv + (WARPS * (SHARE + 1) + warp) * HEAD, lane);
#pragma unroll
    for (int member = 0; member < SHARE; member++) query[member].read(a.qkv + (warp * SHARE + member) * HEAD, lane);
    const bool mine = lane < COLUMNS && first + lane < a.columns;
    const float before = mine ? bf16(read_fresh(a.residual + first + lane)) : 0.0f;
    key = ready(key, k_gain, cos, sin, a.q_weight, a.eps);
    key.put(reinterpret_cast<uint16_t*>(keys + a.at * LINE_BYTES), lane);
    value.put(reinterpret_cast<uint16_t*>(values + a.at * LINE_BYTES), lane);
#pragma unroll
    for (int member = 0; member < SHARE; member++) {
        query[member] = ready(query[member], q_gain, cos, sin, a.q_weight, a.eps);
#pragma unroll
        for (int e = 0; e < 4; e++)
            queries[member * HEAD + e / 2 * HALF_HEAD + 2 * lane + e % 2] = query[member].value[e];
    }
    copies_wait<0>();
    __syncwarp();
    const float weight = weight_of(a, keys, queries, lane);
    uint16_t* row = reinterpret_cast<uint16_t*>(shared_memory);
    gather(a, values, weight, row, warp, lane);
    if (blockIdx.x == 0) {  // nobody reads this position from there in this kernel
        uint16_t* slot = a.cache + (static_cast<int64_t>(a.at) * WARPS + warp) * HEAD;
        key.put(slot, lane);
        value.put(slot + a.plane, lane);
    }
    __syncthreads();

    float totals[COLUMNS] = {}, numbers[8];
#pragma unroll
    for (int k = 0; k < CHUNKS; k++) {
        values_of(numbers, row, k, lane);
        held.add_products(totals, numbers, k);
    }
    const float result = rounded(own_total(totals, lane));
    if (mine) a.out[first + lane] = to_bf16(before + result);
}
