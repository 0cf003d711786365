// A whole pass over the layers of a stack with a paged cache, for one row and its new position, in one kernel: from its input
// to its last norm. As frame_pass.cu, except for attention: the blocks of a key-value head share its positions and exchange
// partial results, of which each block combines some columns.
constexpr int HEAD_PAGES = 0;
#include "pass_layer.cuh"

constexpr int NEW_AT = OWN_AT;  // [2, HEAD]: the new key and value
// [WARPS, SHARE, LEFT] float, each warp's partial results: a head's sums, the maximum score and the sum of weights
constexpr int LEFT_AT = NEW_AT + 2 * HEAD * 2, LEFT = HEAD + 4;
// [WARPS, NEAR] int: the slots of each warp's first positions in the cache, the same in all layers
constexpr int SLOTS_AT = LEFT_AT + WARPS * SHARE * LEFT * 4, NEAR = 64;
static_assert(SLOTS_AT + WARPS * NEAR * 4 == SHARED_BYTES, "as single_pass.py has it");
// Words of 64 bits for partial results: a whole float and its turn. Sums: [KV_HEADS, strip of the block that combines, strip of
// the block that sends, SHARE, STRIP]; state (maximum, sum of weights): [KV_HEADS, strip of the block that sends, SHARE, 2].
constexpr int PARTIAL_WORDS = OWN_WORDS, STATE_WORDS = PARTIAL_WORDS + 2 * KV_HEADS * STRIPS * STRIPS * SHARE * STRIP;
static_assert(PARTIAL_WORDS % 4 == 0 && STRIPS == 16 && SHARE * STRIP == 2 * WARPS, "two columns for each warp");
constexpr int BATCH = 8, GROUP = 4, APART = STRIPS * WARPS;  // APART: from one position of a warp to its next
constexpr float NOTHING = -3e38f;
using PagedPassArgs = PassArgs;

// Keys and values of some positions, in registers.
struct Batch {
    uint32_t key[BATCH][2] = {}, value[BATCH][2] = {};
    int count = 0;

    __device__ __forceinline__ static void read(uint32_t (&to)[2], const uint16_t* from) {
        const uint64_t both = read_fresh(reinterpret_cast<const int64_t*>(from));
        to[0] = static_cast<uint32_t>(both), to[1] = static_cast<uint32_t>(both >> 32);
    }
};

struct Gathered {
    float best[SHARE], all[SHARE], sum[SHARE][4] = {};

    __device__ __forceinline__ Gathered() {
#pragma unroll
        for (int m = 0; m < SHARE; m++) best[m] = NOTHING, all[m] = 0.0f;
    }
    // Add COUNT positions from `first` on, all at once, so that no sum over lanes waits for another.
    template <int COUNT>
    __device__ __forceinline__ void add(const Batch& batch, int first, const float (&query)[SHARE][4], float scale) {
        float score[COUNT][SHARE];
#pragma unroll
        for (int n = 0; n < COUNT; n++) {
            Quarter key;
            key.take(batch.key[first + n][0], batch.key[first + n][1]);
#pragma unroll
            for (int m = 0; m < SHARE; m++) score[n][m] = sum_of_lanes(key.dot(query[m])) * scale;
        }
#pragma unroll
        for (int m = 0; m < SHARE; m++) {
            float next = best[m];
#pragma unroll
            for (int n = 0; n < COUNT; n++)
                if (first + n < batch.count) next = fmaxf(next, score[n][m]);
            const float before = power_of_two(best[m] - next);
            best[m] = next, all[m] *= before;
#pragma unroll
            for (int e = 0; e < 4; e++) sum[m][e] *= before;
#pragma unroll
            for (int n = 0; n < COUNT; n++) {
                const float weight = first + n < batch.count ? power_of_two(score[n][m] - next) : 0.0f;
                Quarter value;
                value.take(batch.value[first + n][0], batch.value[first + n][1]);
                all[m] += weight;
#pragma unroll
                for (int e = 0; e < 4; e++) sum[m][e] += weight * value.value[e];
            }
        }
    }
};

struct PagedPass : Pass {
    int past;    // earlier positions
    bool known;  // whether the table has room for the new one

    // This warp's n-th position; and the slot of a position in the cache.
    __device__ __forceinline__ int position(int n) const { return n * APART + strip * WARPS + warp; }
    __device__ __forceinline__ int look_up(int at) const {
        const int block = at / a.block_tokens;
        return read_fresh(a.table + block) * a.block_tokens + at - block * a.block_tokens;
    }
    __device__ __forceinline__ void find_slots() const {
#pragma unroll
        for (int n = lane; n < NEAR; n += 32)
            if (position(n) < past) at_shared<int>(SLOTS_AT)[warp * NEAR + n] = look_up(position(n));
        __syncwarp();
    }
    __device__ __forceinline__ void fetch(Batch& to, int layer, int first) const {
        const int begin = position(first);
        to.count = past > begin ? (past - begin + APART - 1) / APART : 0;
        const uint16_t* head = a.layer[layer].cache + kv_head * HEAD + lane * 4;
#pragma unroll
        for (int n = 0; n < BATCH; n++)
            if (n < to.count) {
                const int slot = first < NEAR ? at_shared<int>(SLOTS_AT)[warp * NEAR + first + n] : look_up(position(first + n));
                const uint16_t* at = head + static_cast<int64_t>(slot) * (KV_HEADS * HEAD);
                Batch::read(to.key[n], at);
                Batch::read(to.value[n], at + a.plane);
            }
    }

    // Make the new position's queries, key and value of this block's head; key and value go into the cache, too.
    __device__ __forceinline__ void make_heads(int layer) const {
        if (warp >= SHARE + 2) return;
        const Quarter head = new_head(layer, 0, warp);
        if (warp < SHARE) return;
        head.put(at_shared<uint16_t>(NEW_AT) + (warp - SHARE) * HEAD, lane);
        if (strip || !known) return;
        uint16_t* to = a.layer[layer].cache + (warp - SHARE) * a.plane;
        head.put(to + (static_cast<int64_t>(look_up(past)) * KV_HEADS + kv_head) * HEAD, lane);
    }

    __device__ __forceinline__ void gather(int layer, Batch& batch, Gathered& sums) const {
        float query[SHARE][4];
#pragma unroll
        for (int m = 0; m < SHARE; m++)
#pragma unroll
            for (int e = 0; e < 4; e++) query[m][e] = at_shared<float>(QUERIES_AT)[m * HEAD + lane * 4 + e];
        for (int n = BATCH; batch.count > 0; n += BATCH) {
            Batch next;
            if (batch.count > BATCH) fetch(next, layer, n);
            sums.add<GROUP>(batch, 0, query, a.scale);
            if (batch.count > GROUP) sums.add<GROUP>(batch, GROUP, query, a.scale);
            batch = next;
        }
        if (past % APART == position(0)) {
            const uint32_t* words = at_shared<uint32_t>(NEW_AT) + lane * 2;
            batch.key[0][0] = words[0], batch.key[0][1] = words[1];
            batch.value[0][0] = words[HEAD / 2], batch.value[0][1] = words[HEAD / 2 + 1];
            batch.count = 1;
            sums.add<1>(batch, 0, query, a.scale);
        }
    }

    __device__ __forceinline__ void put_float(int words, float value) const {
        uint64_t* to = reinterpret_cast<uint64_t*>(a.words + words);
        put_word(to, static_cast<uint64_t>(to_bits(value)) << 32 | turn);
    }

    // Combine the partial results of this block's warps, and send them to the blocks that combine all blocks'.
    __device__ __forceinline__ void hand_over(const Gathered& sums) const {
        float* left = at_shared<float>(LEFT_AT) + warp * SHARE * LEFT;
#pragma unroll
        for (int m = 0; m < SHARE; m++) {
#pragma unroll
            for (int e = 0; e < 4; e++) left[m * LEFT + lane * 4 + e] = sums.sum[m][e];
            if (lane == 0) left[m * LEFT + HEAD] = sums.best[m], left[m * LEFT + HEAD + 1] = sums.all[m];
        }
        meet();
        const int member = threadIdx.x / HEAD, column = threadIdx.x % HEAD;
        const float* all_left = at_shared<float>(LEFT_AT) + member * LEFT;
        float best = NOTHING, all = 0.0f, sum = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) best = fmaxf(best, all_left[w * SHARE * LEFT + HEAD]);
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            const float* own = all_left + w * SHARE * LEFT;
            const float weight = power_of_two(own[HEAD] - best);
            all += weight * own[HEAD + 1];
            sum += weight * own[column];
        }
        const int who = kv_head * STRIPS, reader = (who + column / STRIP) * STRIPS + strip;
        put_float(PARTIAL_WORDS + 2 * ((reader * SHARE + member) * STRIP + column % STRIP), sum);
        if (column < 2) put_float(STATE_WORDS + 2 * (((who + strip) * SHARE + member) * 2 + column), column ? all : best);
    }

    // Combine all blocks' partial results, each warp in two of this block's columns: half of the lanes have sums, half state.
    __device__ __forceinline__ void add_up() const {
        const int member = warp * 2 / STRIP, column = warp * 2 % STRIP, from = lane % STRIPS, who = kv_head * STRIPS;
        const int sums = PARTIAL_WORDS + 2 * ((((who + strip) * STRIPS + from) * SHARE + member) * STRIP + column);
        const int state = STATE_WORDS + 2 * (((who + from) * SHARE + member) * 2);
        uint64_t found[2];
        await_words(found, reinterpret_cast<const uint64_t*>(a.words + (lane < STRIPS ? sums : state)), turn);
        const float first = from_bits(static_cast<uint32_t>(found[0] >> 32));
        const float second = from_bits(static_cast<uint32_t>(found[1] >> 32));
        float best = first;
#pragma unroll
        for (int far = STRIPS / 2; far; far >>= 1) best = fmaxf(best, __shfl_xor_sync(ALL_LANES, best, far));
        // made by a lane with state; the lanes with sums take it from there
        const float weight = __shfl_sync(ALL_LANES, power_of_two(first - best), STRIPS + from);
        float one = lane < STRIPS ? weight * first : 0.0f, other = weight * second;
#pragma unroll
        for (int far = STRIPS / 2; far; far >>= 1) {
            one += __shfl_xor_sync(ALL_LANES, one, far);
            other += __shfl_xor_sync(ALL_LANES, other, far);
        }
        const float all = __shfl_sync(ALL_LANES, other, STRIPS);
        const int own = (kv_head * SHARE + member) * HEAD + strip * STRIP + column + (lane & 1);
        if (lane < STRIPS)
            for (int copy = lane / 2; copy < REPLICAS; copy += STRIPS / 2)
                put_value(a.words + GATHERED_WORDS + own + copy * SET, (lane & 1 ? other : one) * inverse(all), turn);
    }

    __device__ __forceinline__ void attend(int n, Batch& batch) {
        mark(0);
        make_heads(n);
        meet();
        mark(1);
        Gathered sums;
        gather(n, batch, sums);
        hand_over(sums);
        mark(2);
        add_up();
        step++;
    }

    __device__ __forceinline__ void write_out() const {
        const float factor = norm_factor() / RAISE;
        const int column = blockIdx.x * OWN_WIDTH + threadIdx.x, place = place_of_pair(column / 2) * 2 + column % 2;
        if (threadIdx.x < OWN_WIDTH) a.out[column] = to_bf16(bf16(at_shared<uint16_t>(NORMED_AT)[place]) * factor);
    }

    __device__ __forceinline__ void run(Projection& projection) {
        find_slots();
        for (int n = 0; n < LAYERS; n++) {
            Batch batch;
            fetch(batch, n, 0);
            project(n, projection);
            fetch_gains(n + 1);
            attend(n, batch);
            Output out;
            take(out);
            collect<HEADS * HEAD>(ROW_AT, GATHERED_WORDS);
            finish_layer(n, out, projection);
        }
        write_out();
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1) paged_pass(const __grid_constant__ PagedPassArgs a) {
    launch_dependents();
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    make_gates();
    __syncthreads();
    if (warp == WARPS) {
        if (lane == 0) feed(a, LAYERS * LAYER_PAGES);
        return;
    }
    PagedPass pass = {
        {a, lane, warp, static_cast<int>(blockIdx.x % KV_HEADS), static_cast<int>(blockIdx.x / KV_HEADS), 0}, 0, false};
    pass.fetch_gains(0);
    Projection projection;
    pass.take(projection);
    wait_prior();
    // No block ends before all have read the number of turns, since all wait for words of this turn from all others.
    const uint32_t turns = read_fresh(a.words);
    const int64_t position = a.at ? read_fresh(static_cast<const int64_t*>(a.position))
                                  : static_cast<int64_t>(read_fresh(static_cast<const int*>(a.position)));
    pass.turn = turns + 1;
    pass.known = position >= 0 && position < a.capacity;  // else nothing to attend to, nowhere to write
    pass.past = pass.known ? static_cast<int>(position) : 0;
    pass.bring_input();
    pass.run(projection);
    if (blockIdx.x == 0 && threadIdx.x == 0) a.words[0] = turns + LAYERS;
}
