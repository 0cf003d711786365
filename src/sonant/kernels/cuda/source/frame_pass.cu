// A whole pass over the layers of a code predictor in one kernel, for one row and one position or its first two (ROWS): from
// its input to its head's logits of the last position.
//
// In a chain of kernels each layer would end and begin five grids, and memory would idle at every border. Here all blocks are
// resident at once and exchange words that carry the turn they are of, so that a reader sees whether they are new. A block's
// weights of all layers are one stream of pages, in the order in which it reads them, through a ring in shared memory that is
// filled as far as there is room: before the kernel waits for its input, and while blocks wait for each other. Each block owns
// columns of every product, whose weights are contiguous; in attention it owns some columns of the output of a key-value head's
// queries.
//
// All sizes are constants: two query heads of 128 for each of KV_HEADS, a hidden width WIDTH, an inner width INNER, CODES
// logits, LAYERS layers. Blocks wait for each other, so the whole grid must be on the GPU at once: one block on each of 128
// processors.
constexpr int POSITIONS = 16, HEAD_PAGES = CODES / (16 * KV_HEADS) * WIDTH * 2 / PAGE;
#include "pass_layer.cuh"

constexpr int CODES_OWN = CODES / BLOCKS / WARPS;
constexpr int KEYS_AT = OWN_AT;                                // [POSITIONS, HEAD]
constexpr int VALUES_AT = KEYS_AT + POSITIONS * HEAD * 2;      // [POSITIONS, STRIP]
constexpr int SCORES_AT = VALUES_AT + POSITIONS * STRIP * 2;   // [ROWS, SHARE, POSITIONS] float
static_assert(SCORES_AT + ROWS * SHARE * POSITIONS * 4 == SHARED_BYTES, "as single_pass.py has it");
static_assert(SHARE * POSITIONS == 32 && SHARE * STRIP == 16, "a lane for each score");
static_assert(LAYERS > 1, "nobody ends before all have begun");
using FramePassArgs = PassArgs;

struct FramePass : Pass {
    // Start copies of this block's head's keys and values at earlier positions.
    __device__ __forceinline__ void fetch_past(const PassLayer& layer) const {
        const uint16_t* head = layer.cache + kv_head * HEAD;
#pragma unroll 1
        for (int piece = threadIdx.x; piece < a.at * (HEAD / 8); piece += WORKERS) {
            const int position = piece / (HEAD / 8), part = piece % (HEAD / 8);
            copy16(shared_base() + KEYS_AT + piece * 16, head + position * (KV_HEADS * HEAD) + part * 8, true);
        }
        if (threadIdx.x < a.at)
            copy16(shared_base() + VALUES_AT + threadIdx.x * (STRIP * 2),
                   head + a.plane + threadIdx.x * (KV_HEADS * HEAD) + strip * STRIP, true);
        copies_commit();
    }

    // Make the new positions' queries, keys and values of this block's head; keys and values go into the cache, too.
    __device__ __forceinline__ void make_heads(int layer) const {
        const int row = ROWS == 1 ? 0 : warp / (SHARE + 2), which = ROWS == 1 ? warp : warp % (SHARE + 2), at = a.at + row;
        if (which >= SHARE + 2) return;
        const Quarter head = new_head(layer, row, which);
        uint16_t* slot = a.layer[layer].cache + (at * KV_HEADS + kv_head) * HEAD;
        if (which == SHARE) {
            head.put(at_shared<uint16_t>(KEYS_AT) + at * HEAD, lane);
            if (strip == 0) head.put(slot, lane);
        } else if (which == SHARE + 1) {
            if (lane / 2 == strip) head.put(at_shared<uint16_t>(VALUES_AT) + at * STRIP, lane & 1);
            if (strip == 0) head.put(slot + a.plane, lane);
        }
    }

    // Score all positions with all of this block's queries, a warp one position at a time.
    __device__ __forceinline__ void score() const {
#pragma unroll 1
        for (int position = warp; position < a.at + ROWS; position += WARPS) {
            Quarter key;
            key.read(KEYS_AT + position * HEAD * 2, lane);
#pragma unroll
            for (int member = 0; member < ROWS * SHARE; member++) {
                const float sum = sum_of_lanes(key.dot(at_shared<float>(QUERIES_AT) + member * HEAD + lane * 4));
                if (lane == 0) at_shared<float>(SCORES_AT)[member * POSITIONS + position] = sum * a.scale;
            }
        }
    }

    // Attention output of a row's queries in this block's columns, by one warp: in the softmax a lane has a score, then half of
    // the positions of a column.
    __device__ __forceinline__ void gather(int row) const {
        const int last = a.at + row;
        const bool known = lane % POSITIONS <= last;
        const float score = known ? at_shared<float>(SCORES_AT)[row * SHARE * POSITIONS + lane] : -3e38f;
        float best = score;
#pragma unroll
        for (int far = POSITIONS / 2; far; far >>= 1) best = fmaxf(best, __shfl_xor_sync(ALL_LANES, best, far));
        const float weight = known ? power_of_two(score - best) : 0.0f;
        float all = weight, sum = 0.0f;
#pragma unroll
        for (int far = POSITIONS / 2; far; far >>= 1) all += __shfl_xor_sync(ALL_LANES, all, far);
        const int half = lane / 16, member = lane % 16 / STRIP, column = lane % STRIP;
#pragma unroll
        for (int n = 0; n < POSITIONS / 2; n++) {
            const int position = half * (POSITIONS / 2) + n;
            const float share = __shfl_sync(ALL_LANES, weight, member * POSITIONS + position);
            if (position <= last) sum += share * bf16(at_shared<uint16_t>(VALUES_AT)[position * STRIP + column]);
        }
        sum += __shfl_xor_sync(ALL_LANES, sum, 16);
        all = __shfl_sync(ALL_LANES, all, member * POSITIONS);
        uint32_t* to = a.words + GATHERED_WORDS + row * HEADS * HEAD;
        to += (kv_head * SHARE + member) * HEAD + strip * STRIP + column;
        for (int copy = half; copy < REPLICAS; copy += 2) put_value(to + copy * SET, sum * inverse(all), turn);
    }

    // One layer's attention. Return false if nothing but the layer's new keys and values is needed.
    __device__ __forceinline__ bool attend(int n) {
        mark(0);
        make_heads(n);
        copies_wait<0>();  // keys and values of earlier positions
        meet();
        mark(1);
        if (n == LAYERS - 1 && !a.head) return false;
        score();
        meet();
        mark(2);
        if (warp < ROWS) gather(ROWS == 1 ? 0 : warp);
        step++;
        return true;
    }

    __device__ __forceinline__ void write_logits() {
        const float factor = norm_factor(ROWS - 1);
        multiply_rounds<false>(Rounds<CODES_OWN, WIDTH, 2>(), NORMED_AT, 0);
        meet();
        if (threadIdx.x < CODES / BLOCKS)
            a.out[blockIdx.x * (CODES / BLOCKS) + threadIdx.x] = to_bf16(sum_of(threadIdx.x, ROWS - 1) * (factor / RAISE));
    }

    __device__ __forceinline__ void run(Projection& projection) {
        for (int n = 0; n < LAYERS; n++) {
            project(n, projection);
            fetch_gains(n + 1);
            if (!attend(n)) return;
            Output out;
            take(out);
            collect<ROWS * HEADS * HEAD>(ROW_AT, GATHERED_WORDS);
            if (n < LAYERS - 1) fetch_past(a.layer[n + 1]);
            finish_layer(n, out, projection);
        }
        write_logits();
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1) frame_pass(const __grid_constant__ FramePassArgs a) {
    launch_dependents();
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    make_gates();
    __syncthreads();
    if (warp == WARPS) {
        if (lane == 0) feed(a, a.head ? LAYERS * LAYER_PAGES + HEAD_PAGES : (LAYERS - 1) * LAYER_PAGES + QKV_PAGES);
        return;
    }
    FramePass pass = {
        {a, lane, warp, static_cast<int>(blockIdx.x % KV_HEADS), static_cast<int>(blockIdx.x / KV_HEADS), 0}};
    pass.fetch_gains(0);
    Projection projection;
    pass.take(projection);
    wait_prior();
    // No block ends before all have read the number of turns, since all wait for words of this turn from all others.
    const uint32_t turns = read_fresh(a.words);
    pass.turn = turns + 1;
    pass.fetch_past(a.layer[0]);
    pass.bring_input();
    pass.run(projection);
    if (blockIdx.x == 0 && threadIdx.x == 0) a.words[0] = turns + LAYERS;
}
