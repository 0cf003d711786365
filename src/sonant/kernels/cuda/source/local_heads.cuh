// Attention of a few positions that all see each other: a warp has one head of one sequence at a time, and its queries
// and keys never leave its registers. A lane has those columns of a head that a rotation mixes.
#pragma once
#include "stack.cuh"

constexpr int MINE = HEADS / RANKS;  // heads of a block, which share their keys
static_assert(HEADS % RANKS == 0 && (HEADS / KV_HEADS) % MINE == 0, "a block's heads share their keys");

// A lane's columns of one position's head: pieces 32 columns apart.
struct HeadRow {
    Piece piece[4];

    __device__ __forceinline__ void read(const uint16_t* head, uint32_t lane) {
#pragma unroll
        for (int n = 0; n < 4; n++) piece[n] = read_fresh16(head + n * 32 + lane % 4 * 8);
    }

    // Rotate by the position's angles, rounding where the reference rounds.
    __device__ __forceinline__ void turn(uint32_t step, uint32_t lane) {
        const uint8_t* cos = shared_memory + ROPE_AT + step * ROPE_STEP + lane % 4 * 16;
        const uint8_t* sin = cos + MOST_STEPS * ROPE_STEP;
#pragma unroll
        for (int n = 0; n < 2; n++) {
            const Piece c[2] = {read_piece(cos + n * 64), read_piece(cos + n * 64 + 128)};
            const Piece s[2] = {read_piece(sin + n * 64), read_piece(sin + n * 64 + 128)};
#pragma unroll
            for (int w = 0; w < 4; w++) {
                uint32_t &x = piece[n].word[w], &y = piece[n + 2].word[w];
                const uint32_t first = difference2(product2(x, c[0].word[w]), product2(y, s[0].word[w]));
                y = sum2(product2(y, c[1].word[w]), product2(x, s[1].word[w]));
                x = first;
            }
        }
    }
};

__device__ __forceinline__ void read_rotations(const StackArgs& a) {
    for (int n = threadIdx.x; n < 2 * a.steps * (DIM / 8); n += THREADS) {
        const int which = n / (a.steps * (DIM / 8)), at = n % (a.steps * (DIM / 8));
        uint8_t* to = shared_memory + ROPE_AT + (which * MOST_STEPS + at / (DIM / 8)) * ROPE_STEP + at % (DIM / 8) * 16;
        const Piece piece = read_fresh16((which ? a.sin : a.cos) + at * 8);
        move16(to, &piece);
    }
}

// All rows' values of the block's key-value head, then zeros: products read past the last row, with weights of 0.
struct Values {
    static constexpr int PIECES = (ROWS + 16) * (DIM / 8), EACH = (PIECES + THREADS - 1) / THREADS;
    Piece piece[EACH];

    __device__ __forceinline__ void read(const StackArgs& a, uint32_t kv_head, const Place& at) {
#pragma unroll
        for (int n = 0; n < EACH; n++) {
            const uint32_t index = n * THREADS + at.warp * 32 + at.lane;
            const uint32_t row = index / (DIM / 8), from = index % (DIM / 8) * 8;
            piece[n] = {{0, 0, 0, 0}};
            if (row < a.rows) piece[n] = read_fresh16(a.qkv + row * QKV + (HEADS + KV_HEADS + kv_head) * DIM + from);
        }
    }

    __device__ __forceinline__ void store(const Place& at) const {
#pragma unroll
        for (int n = 0; n < EACH; n++) {
            const uint32_t index = n * THREADS + at.warp * 32 + at.lane;
            uint8_t* to = shared_memory + VALUES_AT + index / (DIM / 8) * VALUE_STEP + index % (DIM / 8) * 16;
            if (index < PIECES) move16(to, &piece[n]);
        }
    }
};

struct Scores {
    float value[2][4] = {};  // of keys 0…7 and 8…15

    __device__ __forceinline__ void multiply_all(const HeadRow (&queries)[2], const HeadRow (&keys)[2]) {
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const int piece = n / 2, word = n % 2 * 2;
            const uint32_t left[4] = {queries[0].piece[piece].word[word], queries[1].piece[piece].word[word],
                                      queries[0].piece[piece].word[word + 1], queries[1].piece[piece].word[word + 1]};
#pragma unroll
            for (int k = 0; k < 2; k++)
                multiply(value[k], left, keys[k].piece[piece].word[word], keys[k].piece[piece].word[word + 1]);
        }
    }

    // Turn scores into weights, not normalized yet → `shares`, the normalizing factors of a lane's two rows.
    __device__ __forceinline__ void weigh(float (&shares)[2], int steps, float scale, uint32_t lane) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float most = from_bits(0xff800000u);
#pragma unroll
            for (int n = 0; n < 4; n++) {
                float& score = value[n / 2][half * 2 + n % 2];
                score = n / 2 * 8 + lane % 4 * 2 + n % 2 < steps ? score * scale : from_bits(0xff800000u);
                most = fmaxf(most, score);
            }
            most = fmaxf(most, __shfl_xor_sync(ALL, most, 1));
            most = fmaxf(most, __shfl_xor_sync(ALL, most, 2));
            float sum = 0.0f;
#pragma unroll
            for (int n = 0; n < 4; n++) {
                float& score = value[n / 2][half * 2 + n % 2];
                score = power_of_two(score - most);
                sum += score;
            }
            sum += __shfl_xor_sync(ALL, sum, 1);
            shares[half] = inverse(sum + __shfl_xor_sync(ALL, sum, 2));
        }
    }
};

// Write the attention output of one head of one sequence into the next product's input.
__device__ __forceinline__ void gather(
    const StackArgs& a, Scores& scores, uint32_t sequence, uint32_t mine, uint32_t lane
) {
    float shares[2];
    scores.weigh(shares, a.steps, a.scale, lane);
    uint32_t weights[4];
#pragma unroll
    for (int n = 0; n < 4; n++) weights[n] = pack(scores.value[n / 2][n % 2 * 2], scores.value[n / 2][n % 2 * 2 + 1]);
    // Where there are fewer than 16 values the next sequence's follow: its NaN times a weight of zero would be NaN.
    uint32_t own[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const uint32_t step = lane % 4 * 2 + half * 8;
        own[half] = (step < a.steps ? 0xffffu : 0u) | (step + 1 < a.steps ? 0xffff0000u : 0u);
    }
    const uint32_t first = sequence * a.steps;
    const shared_t values = shared_base() + VALUES_AT + (first + lane % 16) * VALUE_STEP + lane / 16 * 16;
    uint8_t* out = shared_memory + INPUT_AT + 2 * (mine * DIM + lane % 4 * 2);
#pragma unroll
    for (int n = 0; n < DIM / 16; n++) {
        uint32_t right[4];
        load_matrices_turned(right, values + n * 32);
#pragma unroll
        for (int k = 0; k < 2; k++) {
            float made[4];
            multiply_first(made, weights, right[2 * k] & own[0], right[2 * k + 1] & own[1]);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const uint32_t step = lane / 4 + half * 8;
                if (step < a.steps)
                    *reinterpret_cast<uint32_t*>(out + (first + step) * GATHERED_STEP + n * 32 + k * 16) =
                        pack(made[2 * half] * shares[half], made[2 * half + 1] * shares[half]);
            }
        }
    }
}

struct HeadRows {
    HeadRow row[2];  // of positions eight apart

    __device__ __forceinline__ void read(const StackArgs& a, uint32_t sequence, uint32_t head, uint32_t lane) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const uint32_t step = min(lane / 4 + half * 8, a.steps - 1);
            row[half].read(a.qkv + (sequence * a.steps + step) * QKV + head * DIM, lane);
        }
    }

    __device__ __forceinline__ void turn(const StackArgs& a, uint32_t lane) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            row[half].turn(min(lane / 4 + half * 8, a.steps - 1), lane);
            __syncwarp();  // keeps the compiler from reading more angles at once than there are registers for
        }
    }
};

// Attention of all of this block's heads, over all sequences: from the fused projection to the next product's input. A
// warp's heads are adjacent, so that most of them are of one sequence, whose keys it already has.
__device__ __forceinline__ void attend(const StackArgs& a, const Place& at) {
    const uint32_t units = a.rows / a.steps * MINE, kv_head = at.rank * MINE / (HEADS / KV_HEADS), lane = at.lane;
    const uint32_t each = (units + WARPS - 1) / WARPS, first = at.warp * each;
    const uint32_t end = at.warp < WARPS ? min(first + each, units) : 0;
    Values values;
    HeadRows queries, keys;
    values.read(a, kv_head, at);
    if (first < end) {
        keys.read(a, first / MINE, HEADS + kv_head, lane);
        queries.read(a, first / MINE, at.rank * MINE + first % MINE, lane);
    }
    values.store(at);
    __syncthreads();  // all threads' values are stored
    for (uint32_t unit = first; unit < end; unit++) {
        const uint32_t next = unit + 1, sequence = unit / MINE;
        if (unit == first || unit % MINE == 0) keys.turn(a, lane);
        queries.turn(a, lane);
        Scores scores;
        scores.multiply_all(queries.row, keys.row);
        if (next < end) {  // these reads are in flight during the rest of this unit
            queries.read(a, next / MINE, at.rank * MINE + next % MINE, lane);
            if (next % MINE == 0) keys.read(a, next / MINE, HEADS + kv_head, lane);
        }
        gather(a, scores, sequence, unit % MINE, lane);
    }
    __syncthreads();  // the input is complete
}
