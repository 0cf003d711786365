// The basis for passes of one row over all layers of a stack in one kernel: a block's weights as one stream of pages through a
// ring in shared memory, and words that blocks exchange.
#pragma once
#include "grid.cuh"

#ifndef SONANT_ON_CPU
// How the L2 cache treats what is copied: kept as long as possible, or evicted first.
__device__ __forceinline__ uint64_t cache_policy(bool keeps) {
    uint64_t policy;
    if (keeps) asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    else asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
// Start a bulk copy to shared memory; the gate expects its bytes.
__device__ __forceinline__ void bulk_copy(shared_t to, const void* from, uint32_t bytes, shared_t gate) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(gate)
                 : "memory");
}
__device__ __forceinline__ void bulk_copy(shared_t to, const void* from, uint32_t bytes, shared_t gate, uint64_t policy) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
            to),
        "l"(from), "r"(bytes), "r"(gate), "l"(policy)
        : "memory");
}

// As gate_passed, for what only this block has done: gate_passed has the scope of a cluster, so it invalidates the L1 cache
// each time, and all of a processor's loads wait for that.
__device__ __forceinline__ bool gate_open(shared_t at, uint32_t odd) {
    uint32_t over;
    asm volatile("{\n.reg .pred over;\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 over, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, over;\n}"
                 : "=r"(over)
                 : "r"(at), "r"(odd)
                 : "memory");
    return over;
}

// A named barrier: wait until `count` threads of the block have called it with this number.
__device__ __forceinline__ void turn_wait(int number, int count) {
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(count) : "memory");
}

__device__ __forceinline__ void put_word(uint32_t* to, uint32_t word) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(word) : "memory");
}
__device__ __forceinline__ void put_word(uint64_t* to, uint64_t word) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(word) : "memory");
}
__device__ __forceinline__ void look(uint32_t (&words)[4], const uint32_t* from) {
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "l"(from)
                 : "memory");
}
__device__ __forceinline__ void look(uint64_t (&words)[2], const uint64_t* from) {
    asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];" : "=l"(words[0]), "=l"(words[1]) : "l"(from) : "memory");
}
__device__ __forceinline__ uint32_t to_bits(float value) { return __float_as_uint(value); }
// A word's first two bytes, or its last two, sign-extended to sixteen bits each. (__byte_perm cannot repeat a sign.)
template <bool LAST>
__device__ __forceinline__ uint32_t signed_bytes(uint32_t word) {
    uint32_t both;
    asm("prmt.b32 %0, %1, 0, %2;" : "=r"(both) : "r"(word), "n"(LAST ? 0xb3a2 : 0x9180));
    return both;
}
// Poll COUNT times sixteen bytes of words, `step` words apart, until all of them are of this turn.
template <int COUNT>
__device__ __forceinline__ void await_words(uint32_t (&words)[COUNT][4], const uint32_t* from, int step, uint32_t turn) {
    Patience patience;
    bool there[COUNT] = {}, all = false;
    while (true) {
#pragma unroll
        for (int n = 0; n < COUNT; n++)
            if (!there[n]) look(words[n], from + n * step);
        all = true;
#pragma unroll
        for (int n = 0; n < COUNT; n++) {
            const uint32_t other = (words[n][0] ^ turn) | (words[n][1] ^ turn) | (words[n][2] ^ turn) | (words[n][3] ^ turn);
            there[n] = !(other & 0xffffu);
            all &= there[n];
        }
        if (all) return;
        patience.look_again();
    }
}
__device__ __forceinline__ void await_words(uint64_t (&words)[2], const uint64_t* from, uint32_t turn) {
    Patience patience;
    while (true) {
        look(words, from);
        if (static_cast<uint32_t>(words[0]) == turn && static_cast<uint32_t>(words[1]) == turn) return;
        patience.look_again();
    }
}
#endif

constexpr uint32_t ALL_LANES = 0xffffffffu;
constexpr float LOG2_E = 1.4426950408889634f;
constexpr int STRIPS = 16, BLOCKS = KV_HEADS * STRIPS, WARPS = 8, WORKERS = 32 * WARPS;
constexpr int THREADS = WORKERS + 32;  // one thread of the last warp copies weights
constexpr int HEAD = 128, SHARE = 2, HEADS = KV_HEADS * SHARE, QKV = (HEADS + 2 * KV_HEADS) * HEAD;
constexpr int STRIP = HEAD / STRIPS;  // columns of its heads' attention output that a block computes
// a block's rounds of each product, of eight columns each
constexpr int QKV_OWN = QKV / BLOCKS / WARPS, WIDTH_OWN = WIDTH / BLOCKS / WARPS, INNER_OWN = INNER / BLOCKS / WARPS;
static_assert(WIDTH_OWN * BLOCKS * WARPS == WIDTH && INNER_OWN * BLOCKS * WARPS == INNER, "whole shares");
static_assert(STRIP == 8 && WARPS == 8, "eight columns at a time");
static_assert(ROWS == 1 || (ROWS == 2 && SHARE + 2 == WARPS / 2 && 2 * WARPS * WIDTH_OWN <= 32), "warps and lanes for two rows");

// A round's columns are contiguous in memory, and so are rounds. Each warp has a share of the depth of all of them.
constexpr int RING = PAGE * PAGES;
template <int DEPTH, int BYTES = WEIGHT_BYTES>
constexpr int ROUND_PAGES = WARPS * DEPTH * BYTES / PAGE;
constexpr int QKV_PAGES = QKV_OWN * ROUND_PAGES<WIDTH>, OUT_PAGES = WIDTH_OWN * ROUND_PAGES<HEADS * HEAD>;
constexpr int GATE_PAGES = INNER_OWN * ROUND_PAGES<WIDTH>, DOWN_PAGES = WIDTH_OWN * ROUND_PAGES<INNER>;
constexpr int LAYER_PAGES = QKV_PAGES + OUT_PAGES + 2 * GATE_PAGES + DOWN_PAGES;
static_assert(WEIGHT_BYTES == 2 || WEIGHT_BYTES == 1, "bfloat16, or e4m3 with a scale for each column");
static_assert(ROUND_PAGES<WIDTH> * PAGE == WARPS * WIDTH * WEIGHT_BYTES && ROUND_PAGES<HEADS * HEAD> > 0, "whole pages");
static_assert(ROUND_PAGES<INNER> <= PAGES && ROUND_PAGES<HEADS * HEAD> <= PAGES, "room for a round");

// shared memory
constexpr int OWN_QKV = WARPS * QKV_OWN, OWN_INNER = WARPS * INNER_OWN, OWN_WIDTH = WARPS * WIDTH_OWN;  // a block's columns
// Of a layer: gains, and for weights of eight bits the scales of this block's columns in the QKV, output, gate, up and down
// projections.
constexpr int LAYER_GAINS = 2 * WIDTH + 2 * HEAD;
constexpr int OUT_SCALES = OWN_QKV, GATE_SCALES = OUT_SCALES + OWN_WIDTH, DOWN_SCALES = GATE_SCALES + 2 * OWN_INNER;
constexpr int LAYER_SCALES = WEIGHT_BYTES == 1 ? DOWN_SCALES + OWN_WIDTH : 0;
constexpr int LAYER_BYTES = LAYER_GAINS * 2 + LAYER_SCALES * 4;
constexpr int GAINS_AT = RING;                               // [2] of LAYER_BYTES: a layer's, and the next one's
constexpr int TURN_AT = GAINS_AT + 2 * LAYER_BYTES;          // [2, ROWS, HEAD]: cos, sin
constexpr int MOST_COLUMNS = WARPS * (2 * INNER_OWN > QKV_OWN ? 2 * INNER_OWN : QKV_OWN);  // of a product
// for each of ROWS (one position, or a frame's first two), one after another:
constexpr int HIDDEN_AT = TURN_AT + 2 * ROWS * HEAD * 2;     // [OWN_WIDTH]: the residual stream
constexpr int MIDDLE_AT = HIDDEN_AT + ROWS * OWN_WIDTH * 2;  // [OWN_WIDTH]: the same after attention
constexpr int NORMED_AT = MIDDLE_AT + ROWS * OWN_WIDTH * 2;  // [WIDTH]: all of it times its gains, without the norm's factor
constexpr int SQUARES_AT = NORMED_AT + ROWS * WIDTH * 2;     // [WORKERS] float: sums of squares, for the norm
constexpr int PARTS_AT = SQUARES_AT + ROWS * WORKERS * 4;    // [MOST_COLUMNS, WARPS] float: warps' partial sums of columns
constexpr int ROW_AT = PARTS_AT + ROWS * MOST_COLUMNS * WARPS * 4;  // [INNER]: another product's input
constexpr int QUERIES_AT = ROW_AT + ROWS * INNER * 2;        // [SHARE, HEAD] float
constexpr int FULL_AT = QUERIES_AT + ROWS * SHARE * HEAD * 4;  // [PAGES] gates: a page has arrived;
constexpr int EMPTY_AT = FULL_AT + PAGES * 8;                // all warps have read it
constexpr int OWN_AT = EMPTY_AT + PAGES * 8;                 // memory that only one of the kernels has
static_assert(OWN_AT % 16 == 0, "sixteen bytes at a time");

// Words that blocks exchange: a value in the upper half, and the turn that it is of in the lower one. So a reader sees whether
// a word is new, without a barrier or a fence. Every layer of every pass is a turn. A word is overwritten only after all have
// read it: its writer has read what all other blocks made of it. What all blocks read is written REPLICAS times, since a cache
// line that all of them poll is slow. Two rows' words of each exchange come one after another.
constexpr int QKV_WORDS = 64, GATHERED_WORDS = QKV_WORDS + ROWS * QKV, MIDDLE_WORDS = GATHERED_WORDS + ROWS * HEADS * HEAD;
constexpr int INNER_WORDS = MIDDLE_WORDS + ROWS * WIDTH, HIDDEN_WORDS = INNER_WORDS + ROWS * INNER;
constexpr int SET = HIDDEN_WORDS + ROWS * WIDTH - GATHERED_WORDS;
constexpr int OWN_WORDS = GATHERED_WORDS + REPLICAS * SET;

struct PassLayer {
    const uint16_t* input_gain;
    const uint8_t* qkv;
    const uint16_t *q_gain, *k_gain;
    const uint8_t* out;
    const uint16_t* post_gain;
    const uint8_t *gate_up, *down;
    uint16_t* cache;  // keys; `plane` elements further, values
#if WEIGHT_BYTES == 1
    const float *qkv_scale, *out_scale, *gate_up_scale, *down_scale;
#endif
};

struct PassArgs {
    PassLayer layer[LAYERS];
    const uint16_t *x, *cos, *sin, *gain;
    const uint8_t* head;  // in bfloat16, whatever the layers have
    uint16_t* out;
    uint32_t* words;  // the number of turns so far, and from 64 on the words; zeros at first
    uint32_t* clock;  // if CLOCKED, [BLOCKS, 5 · LAYERS, 3]: cycles before words, after them, at the weights
    const int* table;        // of a paged cache;
    const void* position;    // its new position, which only the device knows
    int64_t plane;
    int at;                  // the new position, if the cache is not paged; else whether `position` has 64 bits
    int capacity, block_tokens;
    float eps, scale;        // scale: of scores, times log2(e)
};
static_assert(sizeof(PassArgs) == LAYERS * (WEIGHT_BYTES == 1 ? 104 : 72) + 112, "as single_pass.py packs it");

template <class T>
__device__ __forceinline__ T* at_shared(int byte) { return reinterpret_cast<T*>(shared_memory + byte); }

__device__ __forceinline__ float sum_of_lanes(float value) {
#pragma unroll
    for (int step = 16; step; step >>= 1) value += __shfl_xor_sync(ALL_LANES, value, step);
    return value;
}

// The address of one of this block's pages.
__device__ __forceinline__ const void* page_source(const PassArgs& a, int page) {
    const int block = blockIdx.x;
    const PassLayer& layer = a.layer[page / LAYER_PAGES];
    int n = page % LAYER_PAGES, pages = QKV_PAGES;
    const uint8_t* from = layer.qkv;
    if (page >= LAYERS * LAYER_PAGES) from = a.head, n = page - LAYERS * LAYER_PAGES, pages = HEAD_PAGES;
    else if (n >= LAYER_PAGES - DOWN_PAGES) from = layer.down, n -= LAYER_PAGES - DOWN_PAGES, pages = DOWN_PAGES;
    else if (n >= QKV_PAGES + OUT_PAGES) {
        from = layer.gate_up, n -= QKV_PAGES + OUT_PAGES, pages = GATE_PAGES;
        if (n >= GATE_PAGES) from += static_cast<int64_t>(INNER) * WIDTH * WEIGHT_BYTES, n -= GATE_PAGES;
    } else if (n >= QKV_PAGES) from = layer.out, n -= QKV_PAGES, pages = OUT_PAGES;
    return from + static_cast<int64_t>(block * pages + n) * PAGE;
}

// One thread starts copies of all pages, each as soon as there is room for it. It has a warp to itself: no barrier waits for
// its copies, and they wait for no barrier.
__device__ __forceinline__ void feed(const PassArgs& a, int end) {
#if KEPT > 0
    const uint64_t kept = cache_policy(true), passing = cache_policy(false);
#endif
    int slot = 0, round = 0;
    for (int page = 0; page < end; page++) {
        const shared_t full = shared_base() + FULL_AT + slot * 8, to = shared_base() + slot * PAGE;
        if (round)
            while (!gate_open(shared_base() + EMPTY_AT + slot * 8, (round - 1) & 1)) continue;
        if (AHEAD < PAGES && page >= AHEAD) {  // more in flight than memory needs would only delay words
            const int before = slot >= AHEAD ? slot - AHEAD : slot - AHEAD + PAGES;
            while (!gate_open(shared_base() + FULL_AT + before * 8, (slot >= AHEAD ? round : round - 1) & 1)) continue;
        }
        gate_expect(full, PAGE);
#if KEPT > 0
        bulk_copy(to, page_source(a, page), PAGE, full, page < KEPT ? kept : passing);
#else
        bulk_copy(to, page_source(a, page), PAGE, full);
#endif
        slot = slot == PAGES - 1 ? 0 : slot + 1;
        round += slot == 0;
    }
}

// A warp's view of the stream: its next page's slot in the ring, and the parity of how often the ring was gone through.
struct Reader {
    int slot = 0;
    uint32_t odd = 0;

    // Wait until the next pages have arrived. A warp waits for all that it passes, even those that it does not read: gates tell
    // one time through the ring from the next, but not from the one after that.
    __device__ __forceinline__ void wait(int pages, int lane) const {
        if (lane < pages) {
            const int place = slot + lane;
            const shared_t gate = shared_base() + FULL_AT + (place >= PAGES ? place - PAGES : place) * 8;
            while (!gate_open(gate, odd ^ (place >= PAGES))) continue;
        }
        __syncwarp();
    }
    __device__ __forceinline__ const uint8_t* line(int from) const {
        const uint32_t at = slot * PAGE + from;
        return shared_memory + (at >= RING ? at - RING : at);
    }
    // This warp has read all that it needs of these pages: release them.
    __device__ __forceinline__ void leave(int pages, int lane) {
        __syncwarp();
        const int place = slot + lane;
        if (lane < pages) gate_arrive(shared_base() + EMPTY_AT + (place >= PAGES ? place - PAGES : place) * 8);
        slot += pages;
        if (slot >= PAGES) slot -= PAGES, odd ^= 1;
    }
};
