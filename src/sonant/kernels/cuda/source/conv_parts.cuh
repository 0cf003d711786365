// A convolution's arguments, its inputs as lines of shared memory, and how a product's accumulators become results.
#pragma once
#include "activations.cuh"

#if !defined(COLUMNS) || !defined(MOST_PAST) || !defined(BUFFERS) || !defined(PARTS)
#error "COLUMNS: 96 or 192; MOST_PAST: steps before a tile; BUFFERS of lines and PARTS of weights in shared memory"
#endif

#if EIGHT  // bits of an input and of a weight: two are stored and counted as one of sixteen
typedef int sum_t;
#else
typedef float sum_t;
#endif

constexpr int GROUP = 128, THREADS = (GROUPS + 1) * GROUP, WARPS = GROUPS * GROUP / 32;
#ifdef TAPS
constexpr int TILE = 64;  // each warpgroup has its own: panel.cu
#else
constexpr int TILE = GROUPS * 64 * HALVES;
#endif
// A run is consecutive steps of one row in a tile, whose lines also have the steps before them. SHORT: rows are shorter
// than a tile, which has several runs.
constexpr int RUN = SHORT ? 64 : TILE, RUNS = TILE / RUN;
constexpr int DEPTH = 64, MOST_CHANNELS = SHORT ? 1536 : 768;
constexpr int LINE_BYTES = DEPTH * 2, LINES_BYTES = ((TILE + RUNS * MOST_PAST) * LINE_BYTES + 1023) / 1024 * 1024;
constexpr int PART_BYTES = COLUMNS * DEPTH * 2;
constexpr uint64_t TO_LINE = 8, TO_INPUTS = 2;  // in a swizzled matrix: to the next line, and to the next 16 inputs

// The second convolution's inputs, 64 lines for each warpgroup; two lines of padding put the pieces that eight threads
// store at once in different banks.
constexpr int INNER_LINES = 64 + 2, INNER_BYTES = POINT * COLUMNS / 8 * INNER_LINES * 16;
constexpr int LINES_AT = PARTS * PART_BYTES, INNER_AT = LINES_AT + BUFFERS * LINES_BYTES;
constexpr int FACTORS_AT = INNER_AT + GROUPS * INNER_BYTES;

struct ConvArgs {
    TensorMap weight, point;
    TensorMap fresh, recent, past;  // inputs, copied by a run's lines; by its history's; those before this piece
    const uint16_t *residual, *bias, *alpha, *beta, *inner_bias, *inner_alpha, *inner_beta;
    uint16_t *raw, *active;
    const float* step;  // in eight bits: the value of 1 in an accumulator, by channel
    int steps, inputs, columns, channels, taps, dilation, row_runs, column_tiles, tiles, has_past, rows;
};

// By channel: biases and SnakeBeta's factors of the results, and those between two convolutions.
struct alignas(16) Factors {
    float bias[MOST_CHANNELS], wave[MOST_CHANNELS], scale[MOST_CHANNELS];
#if EIGHT
    float step[MOST_CHANNELS];  // the value of 1 in an accumulator of the convolution with taps
    __device__ __forceinline__ const float* step_of(int channel) const { return step + channel; }
#else
    __device__ __forceinline__ const float* step_of(int) const { return nullptr; }
#endif
#if POINT
    float inner_bias[COLUMNS], inner_wave[COLUMNS], inner_scale[COLUMNS];
#endif
};
constexpr int BARRIERS_AT = FACTORS_AT + sizeof(Factors);

struct Barriers {
    shared_t base;
    __device__ shared_t part_there(int slot) const { return base + 16 * slot; }
    __device__ shared_t part_used(int slot) const { return base + 16 * slot + 8; }
    __device__ shared_t lines_there(int buffer) const { return base + 16 * (PARTS + buffer); }
    __device__ shared_t lines_used(int buffer) const { return base + 16 * (PARTS + buffer) + 8; }
};

__device__ __forceinline__ void read_factors(Factors& to, const ConvArgs& args, int thread) {
    for (int c = thread; c < args.channels; c += THREADS) {
        to.bias[c] = of(args.bias, c);
#if EIGHT
        to.step[c] = args.step[c];
#endif
        if (!args.alpha) continue;
        to.wave[c] = expf(of(args.alpha, c));
        to.scale[c] = 1.0f / (expf(of(args.beta, c)) + 1e-9f);
    }
#if POINT
    for (int c = thread; c < COLUMNS; c += THREADS) {
        to.inner_bias[c] = of(args.inner_bias, c);
        to.inner_wave[c] = expf(of(args.inner_alpha, c));
        to.inner_scale[c] = 1.0f / (expf(of(args.inner_beta, c)) + 1e-9f);
    }
#endif
}

// Where a tile's run lies: its row, the step of its first result, and its first column. Tiles of the same steps are
// consecutive, so that their inputs are read from memory once for all columns. The last tile may have runs beyond the
// last row.
struct Place {
    int row, first, column;
};
__device__ __forceinline__ Place place_of(const ConvArgs& args, int tile, int run = 0) {
    const int n = tile / args.column_tiles * RUNS + run;
    return {n / args.row_runs, n % args.row_runs * RUN, tile % args.column_tiles * COLUMNS};
}

// Eight sums with bias; integers count steps.
template <int N>
__device__ __forceinline__ uint4 rounded_sums(const float (&sums)[N], int first, const float* bias_of, const float*) {
    return rounded(sums, first, bias_of);
}
template <int N>
__device__ __forceinline__ uint4 rounded_sums(const int (&sums)[N], int first, const float* bias_of,
                                              const float* step_of) {
    return rounded(sums, first, bias_of, step_of);
}

#if POINT
// Store accumulators of 64 lines, with bias, rounded and activated, to shared memory.
__device__ __forceinline__ void activate(shared_t inner, const sum_t (&sums)[COLUMNS / 2], const Factors& factors) {
    const int line = threadIdx.x % GROUP / 32 * 16 + threadIdx.x % 32 / 4, lane = threadIdx.x % 4;
#pragma unroll
    for (int group = 0; group < COLUMNS / 32; group++) {
        const int c = 32 * group + 8 * lane;
        const Eight wave(factors.inner_wave + c), scale(factors.inner_scale + c);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const uint4 value =
                rounded_sums(sums, 16 * group + 2 * half, factors.inner_bias + 32 * group, factors.step_of(32 * group));
            store16(inner + ((4 * group + lane) * INNER_LINES + line + 8 * half) * 16, snake(value, wave, scale));
        }
    }
}
#endif

// The epilogue: accumulators of 64 lines with bias, and in a unit with its input, each rounded, and the same activated,
// go to global memory. Each thread ends up with eight channels of every 32, in two lines.
struct Results {
    const ConvArgs& args;
    long long at;
    int column;
    bool there[2];

    __device__ __forceinline__ Results(const ConvArgs& given, Place place, int first) : args(given) {
        const int step = first + threadIdx.x % GROUP / 32 * 16 + threadIdx.x % 32 / 4;
        column = place.column;
        at = (static_cast<long long>(place.row) * args.steps + step) * args.columns + column + threadIdx.x % 4 * 8;
        const bool is_row = !SHORT || place.row < args.rows;
        there[0] = is_row && step < args.steps, there[1] = is_row && step + 8 < args.steps;
    }

    __device__ __forceinline__ void read(uint4 (&to)[2], int block) const {
#pragma unroll
        for (int half = 0; half < 2; half++)
            if (POINT) to[half] = read16(args.residual + (there[half] ? at + half * 8 * args.columns + 32 * block : 0));
    }

    template <class Sum>
    __device__ __forceinline__ void write(const Sum (&sums)[COLUMNS / 2], const uint4 (&residual)[2], int block,
                                          const Factors& factors) const {
        const int channel = (column + 32 * block) % args.channels, c = channel + threadIdx.x % 4 * 8;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint4 value = rounded_sums(sums, 16 * block + 2 * half, factors.bias + channel, factors.step_of(channel));
            const long long to = at + half * 8 * args.columns + 32 * block;
            if (POINT) value = sum(value, residual[half]);
            if (args.raw && there[half]) write16(args.raw + to, value);
            if (args.active && there[half])
                write16(args.active + to, snake(value, Eight(factors.wave + c), Eight(factors.scale + c)));
        }
    }

    // The unit's input is read AHEAD blocks of columns in advance.
    template <class Sum>
    __device__ __forceinline__ void finish(const Sum (&sums)[COLUMNS / 2], const Factors& factors) const {
        constexpr int BLOCKS = COLUMNS / 32, AHEAD = 1;
        uint4 residual[BLOCKS][2];
#pragma unroll
        for (int block = 0; block < AHEAD; block++) read(residual[block], block);
#pragma unroll
        for (int block = 0; block < BLOCKS; block++) {
            if (block + AHEAD < BLOCKS) read(residual[block + AHEAD], block + AHEAD);
            write(sums, residual[block], block, factors);
        }
    }
};
