// A layer's products and the heads of its new position, for both kernels that pass over all layers.
#pragma once
#include "pass_parts.cuh"

__device__ __forceinline__ void meet() { turn_wait(1, WORKERS); }

__device__ __forceinline__ void put_value(uint32_t* to, float value, uint32_t turn) {
    put_word(to, static_cast<uint32_t>(to_bf16(value)) << 16 | (turn & 0xffffu));
}
__device__ __forceinline__ uint32_t two_values(uint32_t first, uint32_t second) {
    return first >> 16 | (second & 0xffff0000u);
}

using Projection = Rounds<QKV_OWN, WIDTH>;
using Output = Rounds<WIDTH_OWN, HEADS * HEAD>;
using Gates = Rounds<INNER_OWN, WIDTH>;
using Down = Rounds<WIDTH_OWN, INNER>;

// One warp's pass through the layers.
struct Pass {
    const PassArgs& a;
    const int lane, warp, kv_head, strip;
    uint32_t turn;
    int step = 0;
    Reader weights = {};

    __device__ __forceinline__ void mark(int which) const {
        if (CLOCKED && threadIdx.x == 0 && step < 5 * LAYERS)
            a.clock[(blockIdx.x * 5 * LAYERS + step) * 3 + which] = ticks();
    }
    __device__ __forceinline__ static int gains_of(int layer) { return GAINS_AT + layer % 2 * LAYER_BYTES; }
    // The factor of a column's sum; `which`: the index among a layer's scales. 1 if weights have none.
    __device__ __forceinline__ static float column_factor(int layer, int which) {
        if constexpr (WEIGHT_BYTES == 2) return 1.0f;
        return at_shared<float>(gains_of(layer) + LAYER_GAINS * 2)[which] * LACKING;
    }
    // Publish a lane's value; each warp writes some of its replicas.
    __device__ __forceinline__ void publish(int words, float value) const {
        for (int copy = warp; copy < REPLICAS; copy += WARPS) put_value(a.words + words + copy * SET, value, turn);
    }
    __device__ __forceinline__ const uint32_t* to_read(int words) const {
        return a.words + words + blockIdx.x % REPLICAS * SET;
    }

    // Start copies of layer n's gains, over those of layer n - 2; after the last layer of the final norm's.
    __device__ __forceinline__ void fetch_gains(int n) const {
        const shared_t to = shared_base() + gains_of(n);
        const uint16_t* first = n < LAYERS ? a.layer[n].input_gain : a.gain;
#pragma unroll 1
        for (int piece = threadIdx.x; piece < WIDTH / 8; piece += WORKERS) {
            copy16(to + piece * 16, first + piece * 8, true);
            if (n < LAYERS) copy16(to + WIDTH * 2 + piece * 16, a.layer[n].post_gain + piece * 8, true);
        }
        if (n < LAYERS && threadIdx.x < 2 * HEAD / 8) {
            const uint16_t* heads = threadIdx.x < HEAD / 8 ? a.layer[n].q_gain : a.layer[n].k_gain;
            copy16(to + WIDTH * 4 + threadIdx.x * 16, heads + threadIdx.x % (HEAD / 8) * 8, true);
        }
#if WEIGHT_BYTES == 1
        if (n < LAYERS && threadIdx.x < LAYER_SCALES / 4) fetch_scales(n, threadIdx.x * 4);
#endif
        copies_commit();
    }
#if WEIGHT_BYTES == 1
    // Start a copy of four of a layer's scales, by one thread.
    __device__ __forceinline__ void fetch_scales(int n, int which) const {
        const PassLayer& layer = a.layer[n];
        const float* from = layer.qkv_scale + blockIdx.x * OWN_QKV + which;
        if (which >= DOWN_SCALES) from = layer.down_scale + blockIdx.x * OWN_WIDTH + which - DOWN_SCALES;
        else if (which >= GATE_SCALES + OWN_INNER)
            from = layer.gate_up_scale + INNER + blockIdx.x * OWN_INNER + which - GATE_SCALES - OWN_INNER;
        else if (which >= GATE_SCALES) from = layer.gate_up_scale + blockIdx.x * OWN_INNER + which - GATE_SCALES;
        else if (which >= OUT_SCALES) from = layer.out_scale + blockIdx.x * OWN_WIDTH + which - OUT_SCALES;
        copy16(shared_base() + gains_of(n) + LAYER_GAINS * 2 + which * 4, from, true);
    }
#endif

    // Collect values of all blocks in shared memory, as a product's input.
    template <int COUNT>
    __device__ __forceinline__ void collect(int to, int words) const {
        constexpr int READERS = COUNT / 4 < WORKERS ? COUNT / 4 : WORKERS, PIECES = COUNT / 4 / READERS;
        static_assert(PIECES * 4 * READERS == COUNT, "the same for all threads");
        mark(0);
        if (static_cast<int>(threadIdx.x) < READERS) {
            uint32_t found[PIECES][4];
            await_words(found, to_read(words) + threadIdx.x * 4, READERS * 4, turn & 0xffffu);
#pragma unroll
            for (int n = 0; n < PIECES; n++) {
                const int pair = (n * READERS + threadIdx.x) * 2;
                at_shared<uint32_t>(to)[place_of_pair(pair)] = raised(two_values(found[n][0], found[n][1]));
                at_shared<uint32_t>(to)[place_of_pair(pair + 1)] = raised(two_values(found[n][2], found[n][3]));
            }
        }
        meet();
        mark(1);
    }

    // Store four values of a row's residual stream: those of this block's columns as they are, to `own`, and all times their
    // gains → the sum of their squares.
    __device__ __forceinline__ float prepare_norm(int row, int piece, const float (&x)[4], int own, int gains) const {
        const int first = piece * 4 - blockIdx.x * OWN_WIDTH;
        if (first >= 0 && first < OWN_WIDTH)
#pragma unroll
            for (int e = 0; e < 4; e++) at_shared<uint16_t>(own)[row * OWN_WIDTH + first + e] = to_bf16(x[e]);
        Quarter gain;
        gain.read(gains, piece);
        uint32_t* pairs = at_shared<uint32_t>(NORMED_AT + row * WIDTH * 2);
        pairs[place_of_pair(piece * 2)] = raised(pack(x[0] * gain.value[0], x[1] * gain.value[1]));
        pairs[place_of_pair(piece * 2 + 1)] = raised(pack(x[2] * gain.value[2], x[3] * gain.value[3]));
        return (x[0] * x[0] + x[1] * x[1]) + (x[2] * x[2] + x[3] * x[3]);
    }

    // Collect the residual stream of all blocks, as a norm and the product after it need it.
    __device__ __forceinline__ void collect_stream(int own, int words, int gains) const {
        constexpr int PIECES = WIDTH / 4 / WORKERS;
        uint32_t found[ROWS * PIECES][4];
        mark(0);
        await_words(found, to_read(words) + threadIdx.x * 4, WORKERS * 4, turn & 0xffffu);
#pragma unroll
        for (int row = 0; row < ROWS; row++) {
            float squares = 0.0f;
#pragma unroll
            for (int n = 0; n < PIECES; n++) {
                const uint32_t(&four)[4] = found[row * PIECES + n];
                const float x[4] = {high(four[0]), high(four[1]), high(four[2]), high(four[3])};
                squares += prepare_norm(row, n * WORKERS + threadIdx.x, x, own, gains);
            }
            at_shared<float>(SQUARES_AT)[row * WORKERS + threadIdx.x] = squares;
        }
        meet();
        mark(1);
    }
    // The factor for products of NORMED: a norm's factor is the same for all of a row's values.
    __device__ __forceinline__ float norm_factor(int row = 0) const {
        const float* squares = at_shared<float>(SQUARES_AT) + row * WORKERS + lane * (WORKERS / 32);
        float sum = 0.0f;
#pragma unroll
        for (int n = 0; n < WORKERS / 32; n++) sum += squares[n];
        return rsqrtf(sum_of_lanes(sum) / WIDTH + a.eps);
    }

    // Where this lane's column of a round lies in the ring, `k` bytes into the warp's share of the depth.
    template <class R>
    __device__ __forceinline__ const uint8_t* line_of(int n, int k, int column) const {
        return weights.line((n * R::PAGES_EACH) * PAGE + column * (R::DEPTH * R::BYTES) + warp * R::SHARE_BYTES + k);
    }
    // Take a product's first weights into registers, if they are to be held: when its input arrives it can then begin at once.
    template <class R>
    __device__ __forceinline__ void take(R& rounds) {
        if (!R::TAKEN) return;
        const Depth<R::BYTES> depth(lane);
        weights.wait(R::AT_ONCE * R::PAGES_EACH, lane);
#pragma unroll
        for (int n = 0; n < R::AT_ONCE; n++)
#pragma unroll
            for (int k = 0; k < R::SHARE_BYTES; k += 128)
#pragma unroll
                for (int half = 0; half < 2; half++)
                    depth.take(rounds.left[n][k / 128][half], line_of<R>(n, k, depth.column), half);
        weights.leave(R::AT_ONCE * R::PAGES_EACH, lane);
    }
    // Multiply a row by rounds of eight columns each, and leave this warp's part of the sums for `sum_of`.
    template <bool FIRST, class R>
    __device__ __forceinline__ void multiply_rounds(const R& rounds, int row, int first_round) {
        constexpr int AT_ONCE = R::AT_ONCE, CHAINS = R::CHAINS, BYTES = R::BYTES, PAGES_AT_ONCE = AT_ONCE * R::PAGES_EACH;
        const Depth<BYTES> depth(lane);
#pragma unroll
        for (int first = 0; first < R::COUNT; first += AT_ONCE) {
            const bool taken = FIRST && R::TAKEN && first == 0;
            const uint8_t* column[AT_ONCE];
            float sums[AT_ONCE][CHAINS][4] = {};
            if (!taken) weights.wait(PAGES_AT_ONCE, lane);
            if (first + first_round == 0) mark(2);
#pragma unroll
            for (int k = 0; k < R::SHARE_BYTES; k += 128) {
                uint32_t x[2][2 / BYTES][2];
                const int other = ROWS == 2 ? lane / 16 * R::DEPTH * 2 : 0;  // the second row's, for half of the lanes
                depth.read(x, shared_memory + row + other + (warp * R::SHARE_BYTES + k) * (2 / BYTES));
#pragma unroll
                for (int n = 0; n < AT_ONCE; n++) {
                    if (!taken && (k == 0 || PAGE % R::SHARE_BYTES)) column[n] = line_of<R>(n, k, depth.column) - k;
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        if (taken) {
                            depth.add(sums[n], k / 128, half, x, rounds.left[n][k / 128][half]);
                            continue;
                        }
                        uint32_t left[2 / BYTES][4];
                        depth.take(left, column[n] + k, half);
                        depth.add(sums[n], k / 128, half, x, left);
                    }
                }
            }
            if (!taken) weights.leave(PAGES_AT_ONCE, lane);
#pragma unroll
            for (int n = 0; n < AT_ONCE; n++) {
                float sum = sums[n][0][0] + sums[n][0][3];
#pragma unroll
                for (int chain = 1; chain < CHAINS; chain++) sum += sums[n][chain][0] + sums[n][chain][3];
                const int own = depth.row_of(lane) * MOST_COLUMNS + (first_round + first + n) * 8 + lane / 4;
                if (depth.has_sum(lane)) at_shared<float>(PARTS_AT)[own * WARPS + warp] = sum;
            }
        }
    }
    // A column's sum, once all warps have left their parts.
    __device__ __forceinline__ float sum_of(int column, int row = 0) const {
        const float* parts = at_shared<float>(PARTS_AT) + (row * MOST_COLUMNS + column) * WARPS;
        float sum = 0.0f;
#pragma unroll
        for (int n = 0; n < WARPS; n++) sum += parts[n];
        return sum;
    }

    __device__ __forceinline__ void project(int layer, const Projection& rounds) {
        const int row = ROWS == 1 ? 0 : warp % ROWS;
        const float factor = norm_factor(row);
        multiply_rounds<true>(rounds, NORMED_AT, 0);
        meet();
        if (warp < ROWS) {
            const float made = sum_of(lane, row) * column_factor(layer, lane) * factor;
            put_value(a.words + QKV_WORDS + row * QKV + blockIdx.x * OWN_QKV + lane, made, turn);
        }
        step++;
    }

    // Add ROW times the weights of this block's columns to the residual stream (`before`), and publish the result.
    template <class R>
    __device__ __forceinline__ void add_product(const R& rounds, int before, int words, int layer, int scales) {
        multiply_rounds<true>(rounds, ROW_AT, 0);
        meet();
        if (lane < ROWS * OWN_WIDTH) {
            const int row = ROWS == 1 ? 0 : lane / OWN_WIDTH, column = ROWS == 1 ? lane : lane % OWN_WIDTH;
            const float branch = rounded(sum_of(column, row) * column_factor(layer, scales + column));
            const float sum = bf16(at_shared<uint16_t>(before)[lane]) + branch;
            publish(words + row * WIDTH + blockIdx.x * OWN_WIDTH + column, sum);
        }
        step++;
    }

    __device__ __forceinline__ void make_inner(int layer, const Gates& rounds) {
        float factor[ROWS];
#pragma unroll
        for (int row = 0; row < ROWS; row++) factor[row] = norm_factor(row);
        multiply_rounds<true>(rounds, NORMED_AT, 0);
        multiply_rounds<false>(rounds, NORMED_AT, INNER_OWN);  // the up projection, whose weights follow
        meet();
#pragma unroll
        for (int row = 0; row < ROWS; row++)
#pragma unroll
            for (int column = lane; column < OWN_INNER; column += 32) publish_inner(layer, row, column, factor[row]);
        step++;
    }
    __device__ __forceinline__ void publish_inner(int layer, int row, int column, float factor) const {
        const int other = OWN_INNER + column;
        const float gate = rounded(sum_of(column, row) * column_factor(layer, GATE_SCALES + column) * factor);
        const float up = rounded(sum_of(other, row) * column_factor(layer, GATE_SCALES + other) * factor);
        const float silu = rounded(gate * inverse(1.0f + power_of_two(-gate * LOG2_E)));
        publish(INNER_WORDS + row * INNER + blockIdx.x * OWN_INNER + column, silu * up);
    }

    // One of a new position's heads that this block needs, by a warp each: its queries, then key and value.
    __device__ __forceinline__ Quarter new_head(int layer, int row, int which) const {
        const int number = which < SHARE ? kv_head * SHARE + which : HEADS + (which - SHARE) * KV_HEADS + kv_head;
        const int gains = gains_of(layer) + WIDTH * 4 + (which < SHARE ? 0 : HEAD * 2);
        uint32_t found[1][4];
        await_words(found, a.words + QKV_WORDS + row * QKV + number * HEAD + lane * 4, 0, turn & 0xffffu);
        Quarter head;
#pragma unroll
        for (int e = 0; e < 4; e++) head.value[e] = high(found[0][e]);
        if (which <= SHARE) head.make_ready(gains, row, a.eps, lane);
        float* query = at_shared<float>(QUERIES_AT) + (row * SHARE + which) * HEAD + lane * 4;
        if (which < SHARE)
#pragma unroll
            for (int e = 0; e < 4; e++) query[e] = head.value[e];
        return head;
    }

    // From attention's output, whose projection's first weights are `out`, to the next layer's input.
    __device__ __forceinline__ void finish_layer(int n, const Output& out, Projection& next) {
        add_product(out, HIDDEN_AT, MIDDLE_WORDS, n, OUT_SCALES);
        copies_wait<0>();  // gains of the next layer
        Gates gates;
        take(gates);
        collect_stream(MIDDLE_AT, MIDDLE_WORDS, gains_of(n) + WIDTH * 2);
        make_inner(n, gates);
        Down down;
        take(down);
        collect<ROWS * INNER>(ROW_AT, INNER_WORDS);
        add_product(down, MIDDLE_AT, HIDDEN_WORDS, n, DOWN_SCALES);
        if (n < LAYERS - 1) take(next);
        collect_stream(HIDDEN_AT, HIDDEN_WORDS, gains_of(n + 1));
        turn++;
    }

    // Read the first layer's input, and the positions' rotations.
    __device__ __forceinline__ void bring_input() const {
        constexpr int TURNS = ROWS * HEAD / 8, PIECES = WIDTH / 4 / WORKERS;
        if (threadIdx.x < 2 * TURNS) {
            const uint16_t* from = (threadIdx.x < TURNS ? a.cos : a.sin) + threadIdx.x % TURNS * 8;
            copy16(shared_base() + TURN_AT + threadIdx.x * 16, from, true);
        }
        copies_commit();
        uint64_t words[ROWS * PIECES];
#pragma unroll
        for (int n = 0; n < ROWS * PIECES; n++)
            words[n] = read_fresh(reinterpret_cast<const int64_t*>(a.x) + n * WORKERS + threadIdx.x);
        copies_wait<0>();
        meet();  // gains have arrived
#pragma unroll
        for (int row = 0; row < ROWS; row++) {
            float squares = 0.0f;
#pragma unroll
            for (int n = 0; n < PIECES; n++) {
                const uint64_t four = words[row * PIECES + n];
                Quarter x;
                x.take(static_cast<uint32_t>(four), static_cast<uint32_t>(four >> 32));
                squares += prepare_norm(row, n * WORKERS + threadIdx.x, x.value, HIDDEN_AT, gains_of(0));
            }
            at_shared<float>(SQUARES_AT)[row * WORKERS + threadIdx.x] = squares;
        }
        meet();
    }
};

__device__ __forceinline__ void make_gates() {
    if (threadIdx.x >= PAGES) return;
    gate_make(shared_base() + FULL_AT + threadIdx.x * 8, 1);
    gate_make(shared_base() + EMPTY_AT + threadIdx.x * 8, WARPS);
}
