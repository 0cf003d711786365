// SnakeBeta over bfloat16 values, two or eight at a time, and how a product's accumulators become such eights.
#pragma once
#include "hopper.cuh"

__device__ __forceinline__ float of(const uint16_t* from, int index) {
    return from_bits(static_cast<uint32_t>(from[index]) << 16);
}

__device__ __forceinline__ float snake(float x, float wave, float scale) {
    const float s = sine(x * wave);
    return x + s * s * scale;
}
__device__ __forceinline__ uint32_t snake(uint32_t both, float2 wave, float2 scale) {
    return pack(snake(low_of(both), wave.x, scale.x), snake(high_of(both), wave.y, scale.y));
}

// Factors of two neighbouring channels, and of eight.
__device__ __forceinline__ float2 pair_of(const float* from) { return *reinterpret_cast<const float2*>(from); }
struct Eight {
    float2 of[4];
    __device__ __forceinline__ explicit Eight(const float* from) {
        const float4 a = *reinterpret_cast<const float4*>(from), b = *reinterpret_cast<const float4*>(from + 4);
        of[0] = {a.x, a.y}, of[1] = {a.z, a.w}, of[2] = {b.x, b.y}, of[3] = {b.z, b.w};
    }
};
__device__ __forceinline__ uint4 snake(uint4 eight, const Eight& wave, const Eight& scale) {
    return {snake(eight.x, wave.of[0], scale.of[0]), snake(eight.y, wave.of[1], scale.of[1]),
            snake(eight.z, wave.of[2], scale.of[2]), snake(eight.w, wave.of[3], scale.of[3])};
}

// Four lanes hold a quarter each of four blocks of eight channels; afterwards each holds one whole block.
__device__ __forceinline__ uint4 gathered(const uint32_t (&quarters)[4]) {
    const int lane = threadIdx.x % 4;
    const bool odd = lane & 1, upper = lane & 2;
    const uint32_t first = __shfl_xor_sync(~0u, odd ? quarters[0] : quarters[1], 1);
    const uint32_t second = __shfl_xor_sync(~0u, odd ? quarters[2] : quarters[3], 1);
    const uint32_t a0 = odd ? first : quarters[0], a1 = odd ? quarters[1] : first;
    const uint32_t b0 = odd ? second : quarters[2], b1 = odd ? quarters[3] : second;
    const uint32_t third = __shfl_xor_sync(~0u, upper ? a0 : b0, 2);
    const uint32_t fourth = __shfl_xor_sync(~0u, upper ? a1 : b1, 2);
    if (upper) return {third, fourth, b0, b1};
    return {a0, a1, third, fourth};
}

__device__ __forceinline__ uint32_t sum(uint32_t a, uint32_t b) {
    return pack(low_of(a) + low_of(b), high_of(a) + high_of(b));
}
__device__ __forceinline__ uint4 sum(uint4 a, uint4 b) {
    return {sum(a.x, b.x), sum(a.y, b.y), sum(a.z, b.z), sum(a.w, b.w)};
}

// A thread's accumulators of 32 columns in its upper or lower line, with bias, rounded and exchanged among four lanes:
// each ends up with eight neighbouring columns.
template <int N>
__device__ __forceinline__ uint4 rounded(const float (&sums)[N], int first, const float* bias_of) {
    uint32_t quarters[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 bias = pair_of(bias_of + 8 * i + threadIdx.x % 4 * 2);
        quarters[i] = pack(sums[first + 4 * i] + bias.x, sums[first + 4 * i + 1] + bias.y);
    }
    return gathered(quarters);
}

// The same for integer accumulators, which count steps whose size differs by column.
template <int N>
__device__ __forceinline__ uint4 rounded(const int (&sums)[N], int first, const float* bias_of, const float* step_of) {
    uint32_t quarters[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int c = 8 * i + threadIdx.x % 4 * 2;
        const float2 bias = pair_of(bias_of + c), step = pair_of(step_of + c);
        const float low = static_cast<float>(sums[first + 4 * i]), high = static_cast<float>(sums[first + 4 * i + 1]);
        quarters[i] = pack(low * step.x + bias.x, high * step.y + bias.y);
    }
    return gathered(quarters);
}

// Accumulators of 64 lines, with bias, rounded and activated, as the left operand of the next product. The factors are
// given from the first column on.
template <int N>
__device__ __forceinline__ void activated(uint32_t (&to)[N / 8][4], const float (&sums)[N], const float* bias_of,
                                          const float* wave_of, const float* scale_of) {
    const int pair = threadIdx.x % 4 * 2;
#pragma unroll
    for (int block = 0; block < N / 4; block++) {
        const int c = 8 * block + pair;
        const float2 bias = pair_of(bias_of + c), wave = pair_of(wave_of + c), scale = pair_of(scale_of + c);
        const uint32_t upper = pack(sums[4 * block] + bias.x, sums[4 * block + 1] + bias.y);
        const uint32_t lower = pack(sums[4 * block + 2] + bias.x, sums[4 * block + 3] + bias.y);
        to[block / 2][block % 2 * 2] = snake(upper, wave, scale);
        to[block / 2][block % 2 * 2 + 1] = snake(lower, wave, scale);
    }
}
