// For passes over all layers: how a warp multiplies eight columns by its share of a row, and how it prepares a head.
#pragma once
#include "pass_stream.cuh"

// Where a pair of values of a product's input lies in shared memory: of each GROUP of pairs, whose weights a lane reads at
// once, the even ones come first, for Depth.
__device__ __forceinline__ int place_of_pair(int pair) {
    constexpr int GROUP = 8 / WEIGHT_BYTES;
    return (pair & ~(GROUP - 1)) + (pair & 1) * (GROUP / 2) + (pair >> 1 & (GROUP / 2 - 1));
}

// Two of a word's four e4m3 numbers as bfloat16 times 2^-120, which are the same bits further apart: sign, four zeros, exponent
// and fraction. Numbers below 2^-6 are subnormal in both; tensor cores are assumed to take them. No weight is a NaN, which
// would become 480: quantization clamps. These are three instructions for two numbers; a multiplication by 2^120 would be a
// fourth.
template <bool LAST>
__device__ __forceinline__ uint32_t two_weights(uint32_t word) { return signed_bytes<LAST>(word) << 4 & 0x87f087f0u; }

// Such weights lack a factor of 2^120. Half of the exponent goes into their input, so that sums are far from the ends of a
// float's range; the rest is in a column's factor. All of it is exact.
constexpr float RAISE = WEIGHT_BYTES == 1 ? 0x1p60f : 1.0f, LACKING = WEIGHT_BYTES == 1 ? 0x1p60f : 1.0f;
__device__ __forceinline__ uint32_t raised(uint32_t pair) {
    constexpr uint32_t POWER = 0x5d80;  // 2^60 in bfloat16
    return WEIGHT_BYTES == 1 ? product2(pair, POWER << 16 | POWER) : pair;
}

// Eight columns times a warp's share of the depth, on tensor cores, in products of 16 × 16 × 8. The sixteen bytes that a lane
// reads of a column are the left operand as they are, or, widened, those of two products: the first and third pair in one of
// the upper eight lines, the others in one of the lower eight. So a column has two lines, and its sum is the first line times
// the right operand's first column plus the second line times its second column; these have the input in that order. All
// columns of weights begin at the same bank; odd ones are therefore read with the halves of each 128 bytes exchanged, and use
// the right operand's third and fourth columns. A second row has the other four columns. BYTES: of a weight; the row is laid
// out for the layers' weights, and those of a head may be wider.
template <int BYTES>
struct Depth {
    static constexpr int PRODUCTS = 2 / BYTES, HALF = 128 / BYTES;  // from sixteen bytes; bytes of input for a half
    int column, part, row;  // this lane's column of weights, and its first byte of that and of the input
    bool used;

    __device__ __forceinline__ explicit Depth(int lane)
        : column(lane / 4), part(((lane / 4 & 1) * 64) + lane % 4 * 16),
          row(place_of_pair((lane / 8 % 2 * 4 + lane % 4) * (8 / BYTES) + (lane / 4 & 1)) * 4), used(lane < 16 * ROWS) {}
    // Read a lane's part of the right operands for the first and the second half of 128 bytes of a column.
    __device__ __forceinline__ void read(uint32_t (&x)[2][PRODUCTS][2], const uint8_t* from) const {
#pragma unroll
        for (int half = 0; half < 2; half++) {
#pragma unroll
            for (int n = 0; n < PRODUCTS; n++) x[half][n][0] = x[half][n][1] = 0;
            if (!used) continue;
            const uint8_t* pairs = from + (row ^ half * HALF);
            if constexpr (BYTES == 1) {
                const Piece four = read_piece(pairs);
                x[half][0][0] = four.word[0], x[half][0][1] = four.word[1];
                x[half][1][0] = four.word[2], x[half][1][1] = four.word[3];
            } else {
                const uint32_t* pair = reinterpret_cast<const uint32_t*>(pairs);
                x[half][0][0] = pair[0], x[half][0][1] = pair[1];
            }
        }
    }
    // Take one half of the same 128 bytes as left operands.
    __device__ __forceinline__ void take(uint32_t (&left)[PRODUCTS][4], const uint8_t* own_column, int half) const {
        const Piece own = read_piece(own_column + (part ^ half * 64));
#pragma unroll
        for (int w = 0; w < 4; w++) {
            if constexpr (BYTES == 1) {
                left[w / 2][w % 2 * 2] = two_weights<false>(own.word[w]);
                left[w / 2][w % 2 * 2 + 1] = two_weights<true>(own.word[w]);
            } else left[0][w] = own.word[w];
        }
    }
    // Multiply a half of the n-th 128 bytes, into one of several accumulators, so that products do not wait for each other.
    template <int CHAINS>
    __device__ __forceinline__ void add(float (&sums)[CHAINS][4], int n, int half, const uint32_t (&x)[2][PRODUCTS][2],
                                        const uint32_t (&left)[PRODUCTS][4]) const {
#pragma unroll
        for (int p = 0; p < PRODUCTS; p++)
            multiply(sums[(BYTES == 1 ? 2 * n + half : n) % CHAINS], left[p], x[half][p][0], x[half][p][1]);
    }
    // Whether a lane has a column's sum, in the first and the last of its four accumulators together; and of which row.
    __device__ __forceinline__ static bool has_sum(int lane) {
        return ROWS == 1 ? lane % 4 == (lane / 4 & 1) : lane % 2 == (lane / 4 & 1);
    }
    __device__ __forceinline__ static int row_of(int lane) { return ROWS == 1 ? 0 : lane % 4 / 2; }
};

// COUNT rounds of eight columns, and how a warp goes through them: as many at once as make up a few pages, so that it waits
// once for all of them. The first are taken from the ring before their input is known, if they fit into HELD registers; a
// thread has 168 where a scheduler has three warps.
template <int COUNT_, int DEPTH_, int BYTES_ = WEIGHT_BYTES>
struct Rounds {
    static constexpr int COUNT = COUNT_, DEPTH = DEPTH_, BYTES = BYTES_;
    static constexpr int PAGES_EACH = ROUND_PAGES<DEPTH, BYTES>, MOST = PAGES_EACH < 4 ? 4 / PAGES_EACH : 1;
    static constexpr int AT_ONCE = COUNT < MOST ? COUNT : COUNT % MOST ? 1 : MOST;
    static constexpr int CHAINS = AT_ONCE > 1 ? 1 : 4 / BYTES, SHARE_BYTES = DEPTH / WARPS * BYTES;
    static_assert(SHARE_BYTES % 128 == 0, "128 bytes of a column at a time");
    static constexpr bool TAKEN = AT_ONCE * SHARE_BYTES / (8 * BYTES) <= HELD;
    uint32_t left[AT_ONCE][SHARE_BYTES / 128][2][2 / BYTES][4];
};

// A lane's four columns of a head.
struct Quarter {
    float value[4];

    __device__ __forceinline__ void take(uint32_t first, uint32_t second) {
        value[0] = low(first), value[1] = high(first), value[2] = low(second), value[3] = high(second);
    }
    __device__ __forceinline__ void read(int head, int lane) {
        const uint32_t* words = at_shared<uint32_t>(head) + lane * 2;
        take(words[0], words[1]);
    }
    __device__ __forceinline__ void put(uint16_t* head, int lane) const {
        uint32_t* words = reinterpret_cast<uint32_t*>(head) + lane * 2;
        words[0] = pack(value[0], value[1]), words[1] = pack(value[2], value[3]);
    }
    __device__ __forceinline__ float dot(const float* other) const {
        return (value[0] * other[0] + value[1] * other[1]) + (value[2] * other[2] + value[3] * other[3]);
    }
    // Normalize and rotate, rounding where the reference rounds. A column's partner in the rotation is sixteen lanes away.
    __device__ __forceinline__ void make_ready(int gains, int row, float eps, int lane) {
        Quarter gain, cos, sin;
        gain.read(gains, lane);
        cos.read(TURN_AT + row * HEAD * 2, lane);
        sin.read(TURN_AT + (ROWS + row) * HEAD * 2, lane);
        const float scale = rsqrtf(sum_of_lanes(dot(value)) / HEAD + eps), side = lane < 16 ? -1.0f : 1.0f;
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float own = rounded(gain.value[e] * rounded(value[e] * scale));
            const float other = __shfl_xor_sync(ALL_LANES, own, 16);
            value[e] = rounded(rounded(own * cos.value[e]) + rounded(side * other * sin.value[e]));
        }
    }
};
