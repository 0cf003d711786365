// A residual unit's arguments, and how a product's accumulators become results.
#pragma once
#include "activations.cuh"

constexpr int CHANNELS = 96, TAPS = 7, TILE = 64, CHUNKS = CHANNELS / 8, MOST_PAST = 54;
constexpr int GROUP = 128, GROUPS = 3, THREADS = (GROUPS + 1) * GROUP, WARPS = GROUP / 32;
// Inputs lie in slabs of 32 channels, as lines of 64 bytes.
constexpr int SLAB = 32, SLABS = CHANNELS / SLAB, LINE_BYTES = SLAB * 2;
constexpr int SLAB_BYTES = ((TILE + MOST_PAST) * LINE_BYTES + 1023) / 1024 * 1024, LINES_BYTES = SLABS * SLAB_BYTES;
constexpr int TO_LINE = 4, TO_INPUTS = 2;  // in a matrix of such lines: to the next line, and to the next 16 inputs
constexpr int CHUNK_BYTES = CHANNELS * 16;  // eight inputs of one tap's weights

struct UnitArgs {
    TensorMap fresh, recent, past;  // inputs, copied by a tile's lines; by its history's; those before this piece
    const uint16_t *x, *wide, *wide_bias, *point, *point_bias, *alpha_mid, *beta_mid, *alpha_out, *beta_out;
    uint16_t *raw, *active;
    int steps, dilation, row_tiles, tiles, has_past;
};

// By channel: SnakeBeta's factors between and after the convolutions, and the biases.
struct alignas(16) Factors {
    float wave_mid[CHANNELS], scale_mid[CHANNELS], wave_out[CHANNELS], scale_out[CHANNELS], wide_bias[CHANNELS],
        point_bias[CHANNELS];
};

__device__ __forceinline__ void read_factors(Factors& to, const UnitArgs& args, int thread, int threads) {
    for (int c = thread; c < CHANNELS; c += threads) {
        to.wave_mid[c] = expf(of(args.alpha_mid, c));
        to.scale_mid[c] = 1.0f / (expf(of(args.beta_mid, c)) + 1e-9f);
        to.wave_out[c] = expf(of(args.alpha_out, c));
        to.scale_out[c] = 1.0f / (expf(of(args.beta_out, c)) + 1e-9f);
        to.wide_bias[c] = of(args.wide_bias, c);
        to.point_bias[c] = of(args.point_bias, c);
    }
}

// Where a tile lies: its row, and the step of its first result.
struct Place {
    int row, first;
};
__device__ __forceinline__ Place place_of(const UnitArgs& args, int tile) {
    return {tile / args.row_tiles, tile % args.row_tiles * TILE};
}

// Run by one thread: copy a tile's lines, which are activated inputs from `history` steps before its first result on.
// Before a row's first step come those of the previous piece, or silence.
__device__ __forceinline__ void bring_lines(const UnitArgs& args, Place place, shared_t lines, shared_t there) {
    const int history = (TAPS - 1) * args.dilation;
    const long long line = static_cast<long long>(place.row) * args.steps + place.first;
    fetch(args.x + line * CHANNELS, min(TILE, args.steps - place.first) * CHANNELS * 2);
    barrier_expect(there, SLABS * (TILE + history) * LINE_BYTES);
    for (int slab = 0; slab < SLABS; slab++) {
        const shared_t to = lines + slab * SLAB_BYTES;
        if (place.first == 0 && args.has_past)
            copy_part(to, args.past, slab * SLAB, 0, place.row, there);
        else
            copy_part(to, args.recent, slab * SLAB, place.first - history, place.row, there);
        copy_part(to + history * LINE_BYTES, args.fresh, slab * SLAB, place.first, place.row, there);
    }
}

// Which of a tile's results a thread ends up with: eight channels of every 32, of two lines.
struct Results {
    const UnitArgs& args;
    long long line;
    bool there[2];

    __device__ __forceinline__ Results(const UnitArgs& given, Place place) : args(given) {
        const int step = place.first + threadIdx.x % GROUP / 32 * 16 + threadIdx.x % 32 / 4;
        line = (static_cast<long long>(place.row) * args.steps + step) * CHANNELS + threadIdx.x % 4 * 8;
        there[0] = step < args.steps, there[1] = step + 8 < args.steps;
    }

    // Read the unit's input, which is added.
    __device__ __forceinline__ void read(uint4 (&to)[2][CHANNELS / 32]) const {
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int block = 0; block < CHANNELS / 32; block++)
                to[half][block] = read16(args.x + (there[half] ? line + half * 8 * CHANNELS + 32 * block : 0));
    }

    // Store sums with bias and residual, each rounded, and the same activated.
    __device__ __forceinline__ void write(const float (&sums)[CHANNELS / 2],
                                          const uint4 (&residual)[2][CHANNELS / 32], const Factors& factors) const {
#pragma unroll
        for (int block = 0; block < CHANNELS / 32; block++) {
            const int c = 32 * block + threadIdx.x % 4 * 8;
            const Eight wave(factors.wave_out + c), scale(factors.scale_out + c);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const uint4 sums_of = rounded(sums, 16 * block + 2 * half, factors.point_bias + 32 * block);
                const uint4 value = sum(sums_of, residual[half][block]);
                const long long at = line + half * 8 * CHANNELS + 32 * block;
                if (args.raw && there[half]) write16(args.raw + at, value);
                if (args.active && there[half]) write16(args.active + at, snake(value, wave, scale));
            }
        }
    }
};
