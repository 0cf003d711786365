// A causal convolution on tensor cores, with bias and SnakeBeta fused. Where POINT is set, a residual unit: a second
// convolution, of a single tap, follows over SnakeBeta of the first one's results, and the unit's input is added.
//
// A tile is some steps of one row, or with SHORT of several rows, by COLUMNS columns. Its inputs lie in shared memory once, 64
// channels at a time, as lines; each tap reads the same lines at another offset. So only weights are copied once for each tap,
// in parts of 64 inputs of one tap. Two threads of the last warpgroup copy both; the other warpgroups multiply.
// Blocks are persistent and process one tile after another: the next one's inputs and weights are copied while the last one's
// results are stored.
#include "conv_parts.cuh"

// A position in a ring of SIZE slots: the slot, and the parity of how often the ring was gone through before.
template <int SIZE>
struct Cursor {
    int slot = 0, round = 0;
    __device__ __forceinline__ void next() {
        if (++slot == SIZE) slot = 0, round ^= 1;
    }
};

__device__ __forceinline__ void arrive_once_a_warp(shared_t barrier) {
    if (threadIdx.x % 32 == 0) barrier_arrive(barrier);
}

// Run by one thread: copies weights, part after part, tile after tile.
__device__ __forceinline__ void bring_weights(const ConvArgs& args, Barriers barriers, shared_t shared) {
    Cursor<PARTS> part;
    const auto bring = [&](const TensorMap& from, int input, int column) {
        const shared_t there = barriers.part_there(part.slot);
        barrier_wait(barriers.part_used(part.slot), part.round ^ 1);
        barrier_expect(there, PART_BYTES);
        copy_part(shared + part.slot * PART_BYTES, from, input, column, 0, there);
        part.next();
    };
    for (int tile = blockIdx.x; tile < args.tiles; tile += gridDim.x) {
        const int column = tile % args.column_tiles * COLUMNS;
        for (int input = 0; input < args.inputs; input += DEPTH)
            for (int tap = 0; tap < args.taps; tap++) bring(args.weight, tap * args.inputs + input, column);
        for (int half = 0; half < POINT * HALVES; half++)  // all parts again for each half: registers hold only one's results
            for (int input = 0; input < COLUMNS; input += DEPTH) bring(args.point, input, 0);
    }
}

// Run by another thread: copies lines, 64 channels at a time, tile after tile. A tile's lines are inputs from `history` steps
// before its first result on. Before a row's first step come those of the previous piece, or silence.
__device__ __forceinline__ void bring_lines(const ConvArgs& args, Barriers barriers, shared_t lines) {
    Cursor<BUFFERS> buffer;
    const int history = (args.taps - 1) * args.dilation;
    for (int tile = blockIdx.x; tile < args.tiles; tile += gridDim.x) {
        if (POINT) {
            const Place place = place_of(args, tile);
            const long long line = static_cast<long long>(place.row) * args.steps + place.first;
            fetch(args.residual + line * args.columns, min(TILE, args.steps - place.first) * args.columns * 2);
        }
        for (int input = 0; input < args.inputs; input += DEPTH) {
            const shared_t there = barriers.lines_there(buffer.slot);
            shared_t to = lines + buffer.slot * LINES_BYTES;
            barrier_wait(barriers.lines_used(buffer.slot), buffer.round ^ 1);
            barrier_expect(there, (TILE + RUNS * history) * LINE_BYTES);
            for (int run = 0; run < RUNS; run++) {
                const Place place = place_of(args, tile, run);
                if (history && place.first == 0 && args.has_past)
                    copy_part(to, args.past, input, 0, place.row, there);
                else if (history)
                    copy_part(to, args.recent, input, place.first - history, place.row, there);
                copy_part(to + history * LINE_BYTES, args.fresh, input, place.first, place.row, there);
                to += (RUN + history) * LINE_BYTES;
            }
            buffer.next();
        }
    }
}

// The second convolution's products, of sixteen bits, with accumulators in the registers of the first one's.
__device__ __forceinline__ void multiply_inner(float (&sums)[COLUMNS / 2], uint64_t left, uint64_t right, int more) {
    multiply(sums, left, right, more);
}
__device__ __forceinline__ void multiply_inner(int (&sums)[COLUMNS / 2], uint64_t left, uint64_t right, int more) {
    multiply_floats(sums, left, right, more);
}

// A warpgroup's products of a tile's lines with the weights in the ring.
struct Products {
    const ConvArgs& args;
    Barriers barriers;
    shared_t shared;
    int group;
    Cursor<PARTS> part;
    Cursor<BUFFERS> buffer;

    __device__ __forceinline__ uint64_t next_part() {
        barrier_wait(barriers.part_there(part.slot), part.round);
        return swizzled_matrix(shared + part.slot * PART_BYTES);
    }
    __device__ __forceinline__ void part_before_is_used() {
        arrive_once_a_warp(barriers.part_used(part.slot == 0 ? PARTS - 1 : part.slot - 1));
    }
    __device__ __forceinline__ void buffer_before_is_used() {
        arrive_once_a_warp(barriers.lines_used(buffer.slot == 0 ? BUFFERS - 1 : buffer.slot - 1));
    }

    // Multiply the lines of 64 channels, or only the first SIXTEENS times 16 of these, by the weights of all taps.
    template <int SIXTEENS>
    __device__ __forceinline__ void multiply_chunk(sum_t (&sums)[HALVES][COLUMNS / 2], int input) {
        // from 64 lines to the next 64; those of another row (SHORT) come after a history of their own
        const uint64_t apart = (64 + SHORT * (args.taps - 1) * args.dilation) * TO_LINE;
        barrier_wait(barriers.lines_there(buffer.slot), buffer.round);
        uint64_t left = swizzled_matrix(shared + LINES_AT + buffer.slot * LINES_BYTES) + group * HALVES * apart;
        for (int tap = 0; tap < args.taps; tap++) {
            const uint64_t right = next_part();
            products_begin();
#pragma unroll
            for (int k = 0; k < SIXTEENS; k++)
#pragma unroll
                for (int half = 0; half < HALVES; half++)
                    multiply(sums[half], left + half * apart + k * TO_INPUTS, right + k * TO_INPUTS,
                             input + tap + k > 0);
            products_commit();
            products_wait<1>();
            if (input + tap > 0) part_before_is_used();
            if (input > 0 && tap == 0) buffer_before_is_used();
            left += args.dilation * TO_LINE;
            part.next();
        }
        buffer.next();
    }

    __device__ __forceinline__ void multiply_lines(sum_t (&sums)[HALVES][COLUMNS / 2]) {
        int input = 0;
        for (; input + DEPTH <= args.inputs; input += DEPTH) multiply_chunk<DEPTH / 16>(sums, input);
        // in eight bits a unit's inputs, as many as its columns, are a line and a half: zeros fill the rest
        if (EIGHT && POINT) multiply_chunk<COLUMNS / 2 % DEPTH / 16>(sums, input);
        products_wait<0>();
#pragma unroll
        for (int half = 0; half < HALVES; half++) settled(sums[half]);
        part_before_is_used();
        buffer_before_is_used();
    }

#if POINT
    // Replace the accumulators of 64 lines by those of the second convolution.
    __device__ __forceinline__ void multiply_point(sum_t (&sums)[COLUMNS / 2], const Factors& factors) {
        const shared_t inner = shared + INNER_AT + group * INNER_BYTES;
        turn_wait(1 + group, GROUP);  // all warps are done with its previous contents
        activate(inner, sums, factors);
        show_to_products();
        turn_wait(1 + group, GROUP);
        const uint64_t left = matrix(inner, INNER_LINES * 16);
#pragma unroll
        for (int input = 0; input < COLUMNS; input += DEPTH) {
            const uint64_t right = next_part();
            products_begin();
#pragma unroll
            for (int k = 0; k < DEPTH / 16; k++)
                multiply_inner(sums, left + (input / 16 + k) * 2 * INNER_LINES, right + k * TO_INPUTS, input + k > 0);
            products_commit();
            products_wait<1>();
            if (input > 0) part_before_is_used();
            part.next();
        }
        products_wait<0>();
        settled(sums);
        part_before_is_used();
    }
#endif
};

__device__ __forceinline__ void multiply_tiles(const ConvArgs& args, const Factors& factors, Barriers barriers,
                                               shared_t shared, int group) {
    Products products = {args, barriers, shared, group};
    for (int tile = blockIdx.x; tile < args.tiles; tile += gridDim.x) {
        sum_t sums[HALVES][COLUMNS / 2];
        products.multiply_lines(sums);
#pragma unroll
        for (int half = 0; half < HALVES; half++) {
#if POINT
            products.multiply_point(sums[half], factors);
#endif
            const int block = group * HALVES + half;
            const Place place = place_of(args, tile, SHORT ? block : 0);
            const Results results(args, place, place.first + (SHORT ? 0 : 64 * block));
#if POINT && EIGHT
            float floats[COLUMNS / 2];
#pragma unroll
            for (int n = 0; n < COLUMNS / 2; n++) floats[n] = from_bits(sums[half][n]);
            results.finish(floats, factors);
#else
            results.finish(sums[half], factors);
#endif
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) causal_conv(const __grid_constant__ ConvArgs args) {
    launch_dependents();
    const int thread = threadIdx.x, group = thread / GROUP;
    const shared_t shared = shared_base();
    Factors& factors = *reinterpret_cast<Factors*>(shared_memory + FACTORS_AT);
    const Barriers barriers = {shared + BARRIERS_AT};
    read_factors(factors, args, thread);
    if (thread < PARTS) {
        barrier_start(barriers.part_there(thread), 1);
        barrier_start(barriers.part_used(thread), WARPS);
    } else if (thread < PARTS + BUFFERS) {
        barrier_start(barriers.lines_there(thread - PARTS), 1);
        barrier_start(barriers.lines_used(thread - PARTS), WARPS);
    }
    barriers_started();
    __syncthreads();
    if (group < GROUPS) {
        more_registers<GROUPS == 2 ? 240 : 160>();
        wait_prior();
        multiply_tiles(args, factors, barriers, shared, group);
        return;
    }
    fewer_registers<GROUPS == 2 ? 24 : 32>();  // in total what the block was launched with
    if (thread == GROUPS * GROUP) {
        wait_prior();
        bring_lines(args, barriers, shared + LINES_AT);
    } else if (thread == GROUPS * GROUP + 32) {
        bring_weights(args, barriers, shared);
    }
}
