// What a pass over all layers is given, where things lie in shared memory, and a block's weights as one stream of pages
// through a ring there, in the order in which it reads them.
#pragma once
#include "grid.cuh"

#ifndef SONANT_ON_CPU
// On its way to shared memory; the gate expects its bytes.
__device__ __forceinline__ void bulk_copy(shared_t to, const void* from, uint32_t bytes, shared_t gate) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(gate)
                 : "memory");
}
#endif

// The e-th of eight bfloat16.
__device__ __forceinline__ float half_word(const Piece& words, int e) {
    return e & 1 ? high(words.word[e / 2]) : low(words.word[e / 2]);
}

constexpr uint32_t ALL_LANES = 0xffffffffu;
constexpr float LOG2_E = 1.4426950408889634f;
constexpr int BLOCKS = 128, WARPS = 8, WORKERS = 32 * WARPS;
constexpr int THREADS = WORKERS + 32;  // the last warp only meets other blocks: it has no copies for a fence to await
constexpr int WIDTH = 1024, HEAD = 128, HALF_HEAD = 64, KV_HEADS = 8, SHARE = 2, INNER = 3072, CODES = 2048, POSITIONS = 16;
constexpr int QKV = (SHARE + 2) * KV_HEADS * HEAD, STRIPS = BLOCKS / KV_HEADS;
// columns of a warp
constexpr int QKV_OWN = QKV / BLOCKS / WARPS, OUT_OWN = WIDTH / STRIPS / WARPS, INNER_OWN = INNER / BLOCKS / WARPS;
constexpr int DOWN_OWN = WIDTH / BLOCKS / WARPS, CODES_OWN = CODES / BLOCKS / WARPS;
static_assert(QKV_OWN == 4 && OUT_OWN == 8 && INNER_OWN == 3 && DOWN_OWN == 1 && CODES_OWN == 2, "whole shares");

constexpr int PAGE = 16384, RING = PAGE * PAGES, PIECE = PAGE / 32;  // a lane copies a piece of a page
constexpr int QKV_PAGES = 4, OUT_PAGES = 2, GATE_PAGES = 3, DOWN_PAGES = 3, HEAD_PAGES = 2;
constexpr int LAYER_PAGES = QKV_PAGES + OUT_PAGES + 2 * GATE_PAGES + DOWN_PAGES;

// shared memory
constexpr int GAINS_AT = RING;                                   // [2 · LAYERS + 1, WIDTH]
constexpr int HEAD_GAINS_AT = GAINS_AT + (2 * LAYERS + 1) * WIDTH * 2;  // [LAYERS, 2, HEAD]
constexpr int TURN_AT = HEAD_GAINS_AT + LAYERS * 2 * HEAD * 2;   // [2, HEAD]: cos, sin
constexpr int HIDDEN_AT = TURN_AT + 2 * HEAD * 2;                // [WIDTH]: the residual stream
constexpr int ROW_AT = HIDDEN_AT + WIDTH * 2;                    // [INNER]: another product's input
constexpr int KEYS_AT = ROW_AT + INNER * 2;                      // [POSITIONS, HEAD]
constexpr int VALUES_AT = KEYS_AT + POSITIONS * HEAD * 2;
constexpr int QUERIES_AT = VALUES_AT + POSITIONS * HEAD * 2;     // [SHARE, HEAD] float
constexpr int SCORES_AT = QUERIES_AT + SHARE * HEAD * 4;         // [SHARE, POSITIONS] float
constexpr int MARKS_AT = SCORES_AT + SHARE * POSITIONS * 4;      // [PAGES] of eight bytes: whether a page is there
constexpr int WRITTEN_AT = MARKS_AT + PAGES * 8;  // the gate of the block's warps having written what others will read,
constexpr int PASSAGE_AT = WRITTEN_AT + 8;        // and that of all blocks' having done so
static_assert(PASSAGE_AT + 8 == SHARED_BYTES, "as frame_pass.py has it");

struct PassLayer {
    const uint16_t *input_gain, *qkv, *q_gain, *k_gain, *out, *post_gain, *gate_up, *down;
    uint16_t* cache;  // [2, POSITIONS, KV_HEADS, HEAD]
};

struct FramePassArgs {
    PassLayer layer[LAYERS];
    const uint16_t *x, *cos, *sin, *gain, *head;  // without a head nothing comes of it but keys and values
    uint16_t *logits, *qkv, *inner, *hidden;
    float* partials;     // [KV_HEADS, WIDTH]
    uint32_t* counter;   // a multiple of BLOCKS when nobody runs
    int64_t* clock;      // null, or [BLOCKS, 4 · LAYERS, 2] for who measures: cycles at each barrier, before and after
    int64_t plane;       // elements from keys to values
    int at;              // the new position
    float eps, scale;    // of scores, times log2(e)
};
static_assert(sizeof(FramePassArgs) == LAYERS * 72 + 120, "as frame_pass.py packs it");

template <class T>
__device__ __forceinline__ T* at_shared(int byte) { return reinterpret_cast<T*>(shared_memory + byte); }

__device__ __forceinline__ float sum_of_lanes(float value) {
#pragma unroll
    for (int step = 16; step; step >>= 1) value += __shfl_xor_sync(ALL_LANES, value, step);
    return value;
}

// A block's stream of pages. Only the first warp fills it.
struct Stream {
    int issued = 0;

    // Where a lane's piece of a page comes from.
    __device__ __forceinline__ static const uint8_t* source(const FramePassArgs& a, int page, int lane) {
        if (page >= LAYERS * LAYER_PAGES)
            return bytes(a.head + blockIdx.x * (CODES / BLOCKS) * WIDTH) + (page - LAYERS * LAYER_PAGES) * PAGE + lane * PIECE;
        const PassLayer& layer = a.layer[page / LAYER_PAGES];
        int n = page % LAYER_PAGES;
        if (n < QKV_PAGES) return bytes(layer.qkv + blockIdx.x * (QKV / BLOCKS) * WIDTH) + n * PAGE + lane * PIECE;
        n -= QKV_PAGES;
        if (n < OUT_PAGES) {  // a strip's columns, of which this block's heads are SHARE · HEAD values: one piece
            const int column = blockIdx.x / KV_HEADS * (WIDTH / STRIPS) + n * 32 + lane;
            return bytes(layer.out + column * (KV_HEADS * SHARE * HEAD) + blockIdx.x % KV_HEADS * (SHARE * HEAD));
        }
        n -= OUT_PAGES;
        const int line = blockIdx.x * (INNER / BLOCKS);
        if (n < GATE_PAGES) return bytes(layer.gate_up + line * WIDTH) + n * PAGE + lane * PIECE;
        n -= GATE_PAGES;
        if (n < GATE_PAGES) return bytes(layer.gate_up + (INNER + line) * WIDTH) + n * PAGE + lane * PIECE;
        n -= GATE_PAGES;
        return bytes(layer.down + blockIdx.x * (WIDTH / BLOCKS) * INNER) + n * PAGE + lane * PIECE;
    }
    __device__ __forceinline__ static const uint8_t* bytes(const uint16_t* from) {
        return reinterpret_cast<const uint8_t*>(from);
    }

    // As many pages as there is room for, when the first `read` have been read by all.
    __device__ __forceinline__ void fill(const FramePassArgs& a, int read, int lane) {
        const int end = min(read + PAGES, LAYERS * LAYER_PAGES + (a.head ? HEAD_PAGES : 0));
        for (; issued < end; issued++) {
            const shared_t mark = shared_base() + MARKS_AT + issued % PAGES * 8;
            if (lane == 0) gate_expect(mark, PAGE);
            __syncwarp();
            bulk_copy(shared_base() + issued % PAGES * PAGE + lane * PIECE, source(a, issued, lane), PIECE, mark);
        }
    }

    __device__ __forceinline__ static void wait(int page, int count) {
        for (int n = page; n < page + count; n++)
            while (!gate_passed(shared_base() + MARKS_AT + n % PAGES * 8, n / PAGES & 1)) continue;
    }
};
static_assert(PIECE == SHARE * HEAD * 2, "a column's share of one key-value head");
