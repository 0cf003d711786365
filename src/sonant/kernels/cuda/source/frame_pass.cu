// A whole pass over the layers of a code predictor, for one row and one position, in one kernel: from its input to the
// logits of its head.
//
// In a chain of kernels each layer would end and begin four grids, and memory would idle at every border. Here all blocks
// are there at once and meet at barriers of the grid. A block's weights of all layers are one stream of pages, in the
// order in which it reads them, through a ring in shared memory that is filled as far as there is room: it runs ahead of
// the barriers, and before the kernel waits for its input. Each block owns columns of every product. Of attention it
// owns a key-value head and a strip of the output projection; the sums over heads are made by whoever reads them.
//
// All of a layer is fixed: 1,024 values, 16 heads of 128 over 8 of keys, 3,072 inside, 2,048 codes, LAYERS of them.
// Blocks spin at barriers, so all of the grid must have room on the GPU at once: one block on each of 128 processors.
#include "pass_stream.cuh"

// A warp's sums of COUNT lines of DEPTH weights each, which begin at a byte of the stream, with values in shared memory.
// With a gain they are normed: a norm is worked out by every warp anew.
template <int COUNT, int DEPTH, bool NORM>
__device__ __forceinline__ void dots(
    float (&sums)[COUNT], uint32_t begin, const uint16_t* values, const uint16_t* gain, float scale, int lane
) {
#pragma unroll
    for (int c = 0; c < COUNT; c++) sums[c] = 0.0f;
#pragma unroll
    for (int k = 0; k < DEPTH; k += 256) {
        float x[8];
        const Piece words = read_piece(reinterpret_cast<const uint8_t*>(values + k + lane * 8));
#pragma unroll
        for (int e = 0; e < 8; e++) x[e] = half_word(words, e);
        if (NORM) {  // each result is rounded where the reference rounds it
            const Piece gains = read_piece(reinterpret_cast<const uint8_t*>(gain + k + lane * 8));
#pragma unroll
            for (int e = 0; e < 8; e++) x[e] = rounded(half_word(gains, e) * rounded(x[e] * scale));
        }
#pragma unroll
        for (int c = 0; c < COUNT; c++) {
            uint32_t at = begin + (c * DEPTH + k + lane * 8) * 2;
            at = at >= RING ? at - RING : at;
            const Piece own = read_piece(shared_memory + at);
#pragma unroll
            for (int e = 0; e < 8; e++) sums[c] += half_word(own, e) * x[e];
        }
    }
}

// Lane c has the c-th of the sums over all lanes.
template <int COUNT>
__device__ __forceinline__ float own_sum(const float (&sums)[COUNT], int lane) {
    float own = 0.0f;
#pragma unroll
    for (int c = 0; c < COUNT; c++) {
        const float sum = sum_of_lanes(sums[c]);
        if (lane == c) own = sum;
    }
    return own;
}

__device__ __forceinline__ float norm_scale(float eps, int lane) {
    float squares = 0.0f;
#pragma unroll
    for (int k = 0; k < WIDTH; k += 256) {
        const Piece words = read_piece(shared_memory + HIDDEN_AT + (k + lane * 8) * 2);
#pragma unroll
        for (int e = 0; e < 8; e++) squares += half_word(words, e) * half_word(words, e);
    }
    return rsqrtf(sum_of_lanes(squares) / WIDTH + eps);
}

// Values that other blocks have written, to shared memory.
template <int COUNT>
__device__ __forceinline__ void bring(int to, const uint16_t* from) {
    for (int piece = threadIdx.x; piece < COUNT / 8; piece += WORKERS) {
        const Piece words = read_fresh16(from + piece * 8);
        move16(shared_memory + to + piece * 16, &words);
    }
}

// Keys and values of this block's head at the positions before, on their way.
__device__ __forceinline__ void fetch_past(const FramePassArgs& a, const PassLayer& layer) {
    for (int piece = threadIdx.x; piece < a.at * (HEAD / 8); piece += WORKERS) {
        const int position = piece / (HEAD / 8), part = piece % (HEAD / 8);
        const uint16_t* from = layer.cache + (position * KV_HEADS + blockIdx.x % KV_HEADS) * HEAD + part * 8;
        const shared_t to = shared_base() + KEYS_AT + piece * 16;
        copy16(to, from, true);
        copy16(to + (VALUES_AT - KEYS_AT), from + a.plane, true);
    }
    copies_commit();
}

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
    __device__ __forceinline__ void read_shared(int head, int lane) {
        take(at_shared<uint32_t>(head)[lane], at_shared<uint32_t>(head)[HALF_HEAD / 2 + lane]);
    }
    __device__ __forceinline__ void put(uint16_t* head, int lane) const {
        reinterpret_cast<uint32_t*>(head)[lane] = pack(value[0], value[1]);
        reinterpret_cast<uint32_t*>(head + HALF_HEAD)[lane] = pack(value[2], value[3]);
    }
};

// Normed and rotated, each result rounded where the reference rounds it.
__device__ __forceinline__ Quarter made_ready(Quarter head, int gains, float eps, int lane) {
    float (&x)[4] = head.value;
    Quarter gain, cos, sin, made;
    gain.read_shared(gains, lane);
    cos.read_shared(TURN_AT, lane);
    sin.read_shared(TURN_AT + HEAD * 2, lane);
    const float scale = rsqrtf(sum_of_lanes(x[0] * x[0] + x[1] * x[1] + x[2] * x[2] + x[3] * x[3]) / HEAD + eps);
#pragma unroll
    for (int e = 0; e < 4; e++) x[e] = rounded(gain.value[e] * rounded(x[e] * scale));
#pragma unroll
    for (int e = 0; e < 2; e++) {
        made.value[e] = rounded(rounded(x[e] * cos.value[e]) + rounded(-x[e + 2] * sin.value[e]));
        made.value[e + 2] = rounded(rounded(x[e + 2] * cos.value[e + 2]) + rounded(x[e] * sin.value[e + 2]));
    }
    return made;
}

// The new position of this block's head, by four warps: queries, key and value, the latter two into the cache as well.
__device__ __forceinline__ void make_heads(const FramePassArgs& a, int layer, int warp, int lane) {
    const int kv_head = blockIdx.x % KV_HEADS, gains = HEAD_GAINS_AT + layer * 2 * HEAD * 2;
    uint16_t* slot = a.layer[layer].cache + (a.at * KV_HEADS + kv_head) * HEAD;
    const bool keeps = blockIdx.x < KV_HEADS;
    Quarter head;
    if (warp < SHARE) {
        head.read(a.qkv + (kv_head * SHARE + warp) * HEAD, lane);
        head = made_ready(head, gains, a.eps, lane);
        float* to = at_shared<float>(QUERIES_AT) + warp * HEAD + 2 * lane;
        to[0] = head.value[0], to[1] = head.value[1];
        to[HALF_HEAD] = head.value[2], to[HALF_HEAD + 1] = head.value[3];
    } else if (warp == SHARE) {
        head.read(a.qkv + (KV_HEADS * SHARE + kv_head) * HEAD, lane);
        head = made_ready(head, gains + HEAD * 2, a.eps, lane);
        head.put(at_shared<uint16_t>(KEYS_AT) + a.at * HEAD, lane);
        if (keeps) head.put(slot, lane);
    } else if (warp == SHARE + 1) {
        head.read(a.qkv + (KV_HEADS * (SHARE + 1) + kv_head) * HEAD, lane);
        head.put(at_shared<uint16_t>(VALUES_AT) + a.at * HEAD, lane);
        if (keeps) head.put(slot + a.plane, lane);
    }
}

// What this block's query heads gather, to ROW.
__device__ __forceinline__ void attend(const FramePassArgs& a, int warp, int lane) {
    float* scores = at_shared<float>(SCORES_AT);
    for (int position = warp; position <= a.at; position += WARPS) {
        Quarter key;
        key.read_shared(KEYS_AT + position * HEAD * 2, lane);
#pragma unroll
        for (int member = 0; member < SHARE; member++) {
            const float* query = at_shared<float>(QUERIES_AT) + member * HEAD + 2 * lane;
            const float sum = sum_of_lanes(key.value[0] * query[0] + key.value[1] * query[1]
                                           + key.value[2] * query[HALF_HEAD] + key.value[3] * query[HALF_HEAD + 1]);
            if (lane == 0) scores[member * POSITIONS + position] = sum * a.scale;
        }
    }
    __syncthreads();
    const int member = threadIdx.x / HEAD, column = threadIdx.x % HEAD;
    const float* own = scores + member * POSITIONS;
    float best = own[0], all = 0.0f, total = 0.0f;
    for (int position = 1; position <= a.at; position++) best = fmaxf(best, own[position]);
    for (int position = 0; position <= a.at; position++) {
        const float weight = power_of_two(own[position] - best);
        all += weight;
        total += weight * bf16(at_shared<uint16_t>(VALUES_AT)[position * HEAD + column]);
    }
    at_shared<uint16_t>(ROW_AT)[threadIdx.x] = to_bf16(total / all);
}

// The residual stream with all heads' shares of the output projection added, to HIDDEN.
__device__ __forceinline__ void add_heads(const FramePassArgs& a) {
    uint16_t* hidden = at_shared<uint16_t>(HIDDEN_AT) + threadIdx.x * 4;
    float sums[4] = {};
    Piece parts[KV_HEADS];
#pragma unroll
    for (int head = 0; head < KV_HEADS; head++) parts[head] = read_fresh16(reinterpret_cast<const uint16_t*>(a.partials + head * WIDTH + threadIdx.x * 4));
#pragma unroll
    for (int head = 0; head < KV_HEADS; head++)
#pragma unroll
        for (int e = 0; e < 4; e++) sums[e] += from_bits(parts[head].word[e]);
#pragma unroll
    for (int e = 0; e < 4; e++) hidden[e] = to_bf16(bf16(hidden[e]) + rounded(sums[e]));
}

// All blocks have come here, and what they wrote before is there. The ring is filled meanwhile.
__device__ __forceinline__ void meet(const FramePassArgs& a, Stream& stream, int& turn, int read, int warp, int lane) {
    __syncwarp();  // all of the warp have written and read
    if (lane == 0) gate_arrive(shared_base() + WRITTEN_AT);
    if (warp == 0) {
        while (!gate_passed(shared_base() + WRITTEN_AT, turn & 1)) continue;
        stream.fill(a, read, lane);
    }
    while (!gate_passed(shared_base() + PASSAGE_AT, turn & 1)) continue;
    turn++;
}

// What the last warp does, of which one lane counts the blocks.
struct Doorkeeper {
    const FramePassArgs& a;
    uint32_t began;
    int turn = 0;

    __device__ __forceinline__ void stand_by(int syncs) const {
        for (int n = 0; n < syncs; n++) __syncthreads();
    }
    __device__ __forceinline__ void meet(int lane) {
        if (lane == 0) {
            int64_t* clock = a.clock ? a.clock + (blockIdx.x * 4 * LAYERS + turn) * 2 : nullptr;
            while (!gate_passed(shared_base() + WRITTEN_AT, turn & 1)) continue;
            if (clock) clock[0] = ticks();
            count_in(a.counter);
            count_wait(a.counter, began + (turn + 1) * BLOCKS);
            if (clock) clock[1] = ticks();
            gate_arrive(shared_base() + PASSAGE_AT);
        }
        __syncwarp();  // what its first lane has waited for, all have
        turn++;
    }
    // As often as the others wait for each other in each of a layer's steps.
    __device__ __forceinline__ void run(int lane) {
        for (int n = 0; n < LAYERS; n++) {
            stand_by(1);
            meet(lane);
            stand_by(3);
            meet(lane);
            stand_by(1);
            meet(lane);
            stand_by(1);
            if (n < LAYERS - 1 || a.head) meet(lane);
        }
        if (a.head) stand_by(1);
    }
};

__device__ __forceinline__ void prepare(const FramePassArgs& a) {
    if (threadIdx.x < PAGES) gate_make(shared_base() + MARKS_AT + threadIdx.x * 8, 1);
    if (threadIdx.x == PAGES) gate_make(shared_base() + WRITTEN_AT, WARPS);
    if (threadIdx.x == PAGES + 1) gate_make(shared_base() + PASSAGE_AT, 1);
    for (int layer = 0; layer < LAYERS; layer++) {
        const PassLayer& l = a.layer[layer];
        const shared_t gains = shared_base() + GAINS_AT + layer * 2 * WIDTH * 2 + threadIdx.x % 128 * 16;
        if (threadIdx.x < 128) copy16(gains, l.input_gain + threadIdx.x * 8, true);
        else copy16(gains + WIDTH * 2, l.post_gain + threadIdx.x % 128 * 8, true);
        const shared_t heads = shared_base() + HEAD_GAINS_AT + layer * 2 * HEAD * 2 + threadIdx.x * 16;
        if (threadIdx.x < 32) copy16(heads, (threadIdx.x < 16 ? l.q_gain : l.k_gain) + threadIdx.x % 16 * 8, true);
    }
    if (threadIdx.x < 128)
        copy16(shared_base() + GAINS_AT + 2 * LAYERS * WIDTH * 2 + threadIdx.x * 16, a.gain + threadIdx.x * 8, true);
    else if (threadIdx.x < 160)
        copy16(shared_base() + TURN_AT + threadIdx.x % 32 * 16, (threadIdx.x < 144 ? a.cos : a.sin) + threadIdx.x % 16 * 8, true);
    copies_commit();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) frame_pass(const __grid_constant__ FramePassArgs a) {
    launch_dependents();
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    Stream stream;
    int turn = 0, page = 0;
    if (warp < WARPS) prepare(a);
    __syncthreads();  // all gates are made
    if (warp == 0) stream.fill(a, 0, lane);
    wait_prior();
    if (warp == WARPS) {
        // nobody gets past the first barrier before this block has read the counter and come there itself
        Doorkeeper{a, read_fresh(a.counter) / BLOCKS * BLOCKS}.run(lane);
        return;
    }
    const uint16_t *hidden = at_shared<uint16_t>(HIDDEN_AT), *row = at_shared<uint16_t>(ROW_AT);

    for (int n = 0; n < LAYERS; n++) {
        const PassLayer& layer = a.layer[n];
        const uint16_t* gains = at_shared<uint16_t>(GAINS_AT) + n * 2 * WIDTH;
        fetch_past(a, layer);
        bring<WIDTH>(HIDDEN_AT, n ? a.hidden : a.x);
        copies_wait<1>();  // gains, at first
        __syncthreads();
        Stream::wait(page, QKV_PAGES);
        float qkv[QKV_OWN];
        uint32_t begin = page % PAGES * PAGE + warp * QKV_OWN * WIDTH * 2;
        begin = begin >= RING ? begin - RING : begin;
        dots<QKV_OWN, WIDTH, true>(qkv, begin, hidden, gains, norm_scale(a.eps, lane), lane);
        const float made = own_sum(qkv, lane);
        if (lane < QKV_OWN) a.qkv[(blockIdx.x * WARPS + warp) * QKV_OWN + lane] = to_bf16(made);
        meet(a, stream, turn, page += QKV_PAGES, warp, lane);

        make_heads(a, n, warp, lane);
        copies_wait<0>();
        __syncthreads();
        attend(a, warp, lane);
        Stream::wait(page, OUT_PAGES);
        __syncthreads();
        float out[OUT_OWN];
        begin = page % PAGES * PAGE + warp * OUT_OWN * SHARE * HEAD * 2;
        begin = begin >= RING ? begin - RING : begin;
        dots<OUT_OWN, SHARE * HEAD, false>(out, begin, row, gains, 1.0f, lane);
        const float part = own_sum(out, lane);
        const int column = (blockIdx.x / KV_HEADS * WARPS + warp) * OUT_OWN + lane;
        if (lane < OUT_OWN) a.partials[blockIdx.x % KV_HEADS * WIDTH + column] = part;
        meet(a, stream, turn, page += OUT_PAGES, warp, lane);

        add_heads(a);
        __syncthreads();
        Stream::wait(page, 2 * GATE_PAGES);
        float gate[INNER_OWN], up[INNER_OWN];
        const float scale = norm_scale(a.eps, lane);
        begin = page % PAGES * PAGE + warp * INNER_OWN * WIDTH * 2;
        begin = begin >= RING ? begin - RING : begin;
        dots<INNER_OWN, WIDTH, true>(gate, begin, hidden, gains + WIDTH, scale, lane);
        begin = (page + GATE_PAGES) % PAGES * PAGE + warp * INNER_OWN * WIDTH * 2;
        begin = begin >= RING ? begin - RING : begin;
        dots<INNER_OWN, WIDTH, true>(up, begin, hidden, gains + WIDTH, scale, lane);
        const float gates = rounded(own_sum(gate, lane)), ups = rounded(own_sum(up, lane));
        const float silu = rounded(gates / (1.0f + power_of_two(-gates * LOG2_E)));
        if (lane < INNER_OWN) a.inner[(blockIdx.x * WARPS + warp) * INNER_OWN + lane] = to_bf16(silu * ups);
        meet(a, stream, turn, page += 2 * GATE_PAGES, warp, lane);

        bring<INNER>(ROW_AT, a.inner);
        __syncthreads();
        Stream::wait(page, DOWN_PAGES);
        float down[DOWN_OWN];
        begin = page % PAGES * PAGE + warp * DOWN_OWN * INNER * 2;
        begin = begin >= RING ? begin - RING : begin;
        dots<DOWN_OWN, INNER, false>(down, begin, row, gains, 1.0f, lane);
        const float branch = rounded(own_sum(down, lane));
        const int own = blockIdx.x * WARPS + warp;
        if (lane == 0) a.hidden[own] = to_bf16(bf16(hidden[own]) + branch);
        page += DOWN_PAGES;
        if (n == LAYERS - 1 && !a.head) return;
        meet(a, stream, turn, page, warp, lane);
    }
    bring<WIDTH>(HIDDEN_AT, a.hidden);
    __syncthreads();
    Stream::wait(page, HEAD_PAGES);
    float codes[CODES_OWN];
    const uint32_t begin = page % PAGES * PAGE + warp * CODES_OWN * WIDTH * 2;
    dots<CODES_OWN, WIDTH, true>(codes, begin >= RING ? begin - RING : begin, hidden,
                                 at_shared<uint16_t>(GAINS_AT) + 2 * LAYERS * WIDTH, norm_scale(a.eps, lane), lane);
    const float logit = own_sum(codes, lane);
    if (lane < CODES_OWN) a.logits[(blockIdx.x * WARPS + warp) * CODES_OWN + lane] = to_bf16(logit);
}
