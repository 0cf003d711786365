// How a warp multiplies eight columns by its share of a row, and what it makes of a head, for passes over all layers.
#pragma once
#include "pass_stream.cuh"

// Where a value pair of a product's input lies in shared memory: of each eight values the second pair and the third have
// changed places, for Depth.
__device__ __forceinline__ int place_of_pair(int pair) { return (pair & ~3) + ((pair & 1) << 1) + (pair >> 1 & 1); }

// Eight columns times a warp's share of the depth, by tensor cores, in products of 16 × 16 × 8. The sixteen bytes that a lane
// reads of a column are the left side as they are: its first and third pair in one of the upper eight lines, the others in
// one of the lower eight. So a column has two lines, and its sum is that of the one with the first column of the right side
// and of the other with the second, which have the input in that order. Columns of weights begin at the same banks; odd
// ones therefore have the halves of each 128 bytes in the other order, and the right side's third and fourth column for it.
struct Depth {
    int column, part, row;  // of weights, and bytes of the input from where this lane's are
    bool used;

    __device__ __forceinline__ explicit Depth(int lane)
        : column(lane / 4), part(((lane / 4 & 1) * 64) + lane % 4 * 16), row((lane / 8 * 64) + lane % 4 * 16 + (lane / 4 & 1) * 8),
          used(lane < 16) {}
    // Of 64 values: what a lane has of the right side's first and second half.
    __device__ __forceinline__ void read(uint32_t (&x)[2][2], const uint8_t* from) const {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            x[half][0] = x[half][1] = 0;
            if (!used) continue;
            const uint32_t* pair = reinterpret_cast<const uint32_t*>(from + (row ^ half * 64));
            x[half][0] = pair[0], x[half][1] = pair[1];
        }
    }
    __device__ __forceinline__ void add(float (&sums)[4], const uint32_t (&x)[2][2], const uint8_t* own_column) const {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const Piece own = read_piece(own_column + (part ^ half * 64));
            multiply(sums, own.word, x[half][0], x[half][1]);
        }
    }
    // Whether a lane has a column's sum, which is then the first and the last of its four.
    __device__ __forceinline__ static bool has_sum(int lane) { return lane % 4 == (lane / 4 & 1); }
};

// A lane has four columns of a head.
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
    // Normed and rotated, each result rounded where the reference rounds it. What a column is rotated with is sixteen
    // lanes away.
    __device__ __forceinline__ void make_ready(int gains, float eps, int lane) {
        Quarter gain, cos, sin;
        gain.read(gains, lane);
        cos.read(TURN_AT, lane);
        sin.read(TURN_AT + HEAD * 2, lane);
        const float scale = rsqrtf(sum_of_lanes(dot(value)) / HEAD + eps), side = lane < 16 ? -1.0f : 1.0f;
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float own = rounded(gain.value[e] * rounded(value[e] * scale));
            const float other = __shfl_xor_sync(ALL_LANES, own, 16);
            value[e] = rounded(rounded(own * cos.value[e]) + rounded(side * other * sin.value[e]));
        }
    }
};
