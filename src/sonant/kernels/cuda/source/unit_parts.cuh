// What both kernels of a residual unit share: its arguments, its inputs as lines of shared memory, its activations, and
// how a product's sums become results.
#pragma once
#include "hopper.cuh"

#ifndef CHANNELS
#error "CHANNELS must be 96 or 192"
#endif

constexpr int TAPS = 7, TILE = 128, CHUNKS = CHANNELS / 8;
constexpr int LINES = TILE + 6 * 9 + 1;  // odd: eight pieces of one line then lie in different banks
constexpr int LINES_BYTES = CHUNKS * LINES * 16;
constexpr int FILLERS = 96, AT_ONCE = FILLERS / CHUNKS;  // threads that fill lines, each its own 16 bytes of so many
constexpr int IN_FLIGHT = CHANNELS == 96 ? 6 : 5;  // reads of a filler, twice: as its registers allow

struct UnitArgs {
    const uint16_t *x, *past, *wide, *wide_bias, *point, *point_bias;
    const uint16_t *alpha_in, *beta_in, *alpha_mid, *beta_mid, *alpha_out, *beta_out;
    uint16_t *out, *tail;
    long long past_stride;
    int steps, dilation, row_tiles, tiles, active;
};

// By channel: SnakeBeta's factors before, between and after the convolutions, and the biases.
struct alignas(16) Factors {
    float wave_in[CHANNELS], scale_in[CHANNELS], wave_mid[CHANNELS], scale_mid[CHANNELS], wave_out[CHANNELS],
        scale_out[CHANNELS], wide_bias[CHANNELS], point_bias[CHANNELS];
};

__device__ __forceinline__ float of(const uint16_t* from, int index) {
    return from_bits(static_cast<uint32_t>(from[index]) << 16);
}

__device__ __forceinline__ void read_factors(Factors& to, const UnitArgs& args, int thread, int threads) {
    for (int c = thread; c < CHANNELS; c += threads) {
        to.wave_in[c] = expf(of(args.alpha_in, c));
        to.scale_in[c] = 1.0f / (expf(of(args.beta_in, c)) + 1e-9f);
        to.wave_mid[c] = expf(of(args.alpha_mid, c));
        to.scale_mid[c] = 1.0f / (expf(of(args.beta_mid, c)) + 1e-9f);
        to.wave_out[c] = expf(of(args.alpha_out, c));
        to.scale_out[c] = 1.0f / (expf(of(args.beta_out, c)) + 1e-9f);
        to.wide_bias[c] = of(args.wide_bias, c);
        to.point_bias[c] = of(args.point_bias, c);
    }
}

__device__ __forceinline__ float snake(float x, float wave, float scale) {
    const float s = sine(x * wave);
    return x + s * s * scale;
}
__device__ __forceinline__ uint32_t snake(uint32_t both, float2 wave, float2 scale) {
    return pack(snake(low_of(both), wave.x, scale.x), snake(high_of(both), wave.y, scale.y));
}

// Of two neighbouring channels, and of eight.
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

// Where a tile lies: its row, and the step of its first result.
struct Place {
    int row, first;
};
__device__ __forceinline__ Place place_of(const UnitArgs& args, int tile) {
    return {tile / args.row_tiles, tile % args.row_tiles * TILE};
}

// One thread's share of a tile's lines, which are the activated inputs from `6 · dilation` steps before its first
// result on. What came before this piece is activated already; without it there was silence. Whoever has a row's last
// steps leaves them for the next piece, if one follows.
struct Filler {
    const UnitArgs& args;
    int line, chunk;
    Eight wave, scale;

    __device__ __forceinline__ Filler(const UnitArgs& given, const Factors& factors, int thread)
        : args(given),
          line(thread / CHUNKS),
          chunk(thread % CHUNKS),
          wave(factors.wave_in + 8 * chunk),
          scale(factors.scale_in + 8 * chunk) {}

    __device__ __forceinline__ void read(uint4 (&to)[IN_FLIGHT], Place place, int from) const {
        const int history = (TAPS - 1) * args.dilation;
#pragma unroll
        for (int i = 0; i < IN_FLIGHT; i++) {
            const int at = from + i * AT_ONCE, step = place.first - history + at;
            to[i] = {0, 0, 0, 0};
            if (at >= TILE + history || step >= args.steps || (step < 0 && !args.past)) continue;
            const uint16_t* source =
                step >= 0 ? args.x + (static_cast<long long>(place.row) * args.steps + step) * CHANNELS
                          : args.past + place.row * args.past_stride + (step + history) * CHANNELS;
            to[i] = read16(source + 8 * chunk);
        }
    }

    __device__ __forceinline__ void write(const uint4 (&from)[IN_FLIGHT], Place place, int start,
                                          shared_t lines) const {
        const int history = (TAPS - 1) * args.dilation;
#pragma unroll
        for (int i = 0; i < IN_FLIGHT; i++) {
            const int at = start + i * AT_ONCE, step = place.first - history + at;
            if (at >= TILE + history) continue;
            const uint4 value = step >= 0 ? snake(from[i], wave, scale) : from[i];
            store16(lines + (chunk * LINES + at) * 16, value);
            const int kept = step - (args.steps - history);
            if (args.tail && kept >= 0 && at >= history && step < args.steps)
                write16(args.tail + (static_cast<long long>(place.row) * history + kept) * CHANNELS + 8 * chunk, value);
        }
    }

    // The first lines are read before `empty` says that there is room for them. Not negative: a phase to wait for.
    __device__ __forceinline__ void fill(int tile, shared_t lines, shared_t full, shared_t empty, int phase) const {
        const Place place = place_of(args, tile);
        const int end = TILE + (TAPS - 1) * args.dilation;
        uint4 now[IN_FLIGHT], next[IN_FLIGHT];
        read(now, place, line);
        if (phase >= 0) barrier_wait(empty, phase);
        for (int start = line; start < end; start += IN_FLIGHT * AT_ONCE) {
            read(next, place, start + IN_FLIGHT * AT_ONCE);
            write(now, place, start, lines);
#pragma unroll
            for (int i = 0; i < IN_FLIGHT; i++) now[i] = next[i];
        }
        show_to_products();
        barrier_arrive(full);
    }
};

// A later tile's plain inputs into the second-level cache, before the fillers come for them.
__device__ __forceinline__ void fetch(const UnitArgs& args, int tile, int filler) {
    if (tile >= args.tiles) return;
    const Place place = place_of(args, tile);
    const int count = min(TILE, args.steps - place.first) * CHANNELS;
    const uint16_t* from = args.x + (static_cast<long long>(place.row) * args.steps + place.first) * CHANNELS;
    for (int at = filler * 64; at < count; at += FILLERS * 64) fetch128(from + at);
}

// Sums of 64 lines, with their bias rounded and activated, as the left side of the next product.
__device__ __forceinline__ void activated(uint32_t (&to)[CHANNELS / 16][4], const float (&sums)[CHANNELS / 2],
                                          const Factors& factors) {
    const int pair = threadIdx.x % 4 * 2;
#pragma unroll
    for (int block = 0; block < CHANNELS / 8; block++) {
        const int c = 8 * block + pair;
        const float2 bias = pair_of(factors.wide_bias + c), wave = pair_of(factors.wave_mid + c),
                     scale = pair_of(factors.scale_mid + c);
        const uint32_t upper = pack(sums[4 * block] + bias.x, sums[4 * block + 1] + bias.y);
        const uint32_t lower = pack(sums[4 * block + 2] + bias.x, sums[4 * block + 3] + bias.y);
        to[block / 2][block % 2 * 2] = snake(upper, wave, scale);
        to[block / 2][block % 2 * 2 + 1] = snake(lower, wave, scale);
    }
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

// Which of 64 lines' results a thread ends up with, all of them in one line: eight channels of every 32.
struct Results {
    long long line;
    bool there;

    // `half`: the upper or the lower eight lines of a warp's. `step` is the first of the 64.
    __device__ __forceinline__ Results(const UnitArgs& args, int row, int step, int half) {
        const int at = step + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4 + 8 * half;
        there = at < args.steps;
        line = (static_cast<long long>(row) * args.steps + at) * CHANNELS + threadIdx.x % 4 * 8;
    }

    __device__ __forceinline__ void read(uint4 (&to)[CHANNELS / 32], const uint16_t* from) const {
#pragma unroll
        for (int group = 0; group < CHANNELS / 32; group++)
            if (there) to[group] = read16(from + line + 32 * group);
    }
};

// Sums with bias and residual, each rounded, and activated if that is asked for, to where they belong.
__device__ __forceinline__ void finish(const float (&sums)[CHANNELS / 2], const uint4 (&residual)[CHANNELS / 32],
                                       const Results& results, int half, const UnitArgs& args, const Factors& factors) {
    const int lane = threadIdx.x % 4;
#pragma unroll
    for (int group = 0; group < CHANNELS / 32; group++) {
        uint32_t quarters[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int block = 4 * group + i;
            const float2 bias = pair_of(factors.point_bias + 8 * block + 2 * lane);
            quarters[i] = pack(sums[4 * block + 2 * half] + bias.x, sums[4 * block + 2 * half + 1] + bias.y);
        }
        uint4 value = gathered(quarters);
        if (!results.there) continue;
        const uint4 before = residual[group];
        value = {sum(value.x, before.x), sum(value.y, before.y), sum(value.z, before.z), sum(value.w, before.w)};
        const int c = 32 * group + 8 * lane;
        if (args.active) value = snake(value, Eight(factors.wave_out + c), Eight(factors.scale_out + c));
        write16(args.out + results.line + 32 * group, value);
    }
}
