// A product with some rows, with the norm before it and SwiGLU or the residual sum after it: blocks of a cluster share
// its depth.
//
// What counts is what comes one after another once the kernel before has ended. So all weights of a block are on their way
// to shared memory before it waits, and a block takes no more of that than leaves room for one of the next kernel beside
// it. After the wait it reads its part of the rows, all at once, and multiplies them in one go. Then the blocks of the
// cluster, each of which has sums over its share of the depth, end some columns each: they read one another's sums, in
// the order of ranks, whoever asks.
//
// ROWS (16, 32, 64 or 128), LINES of weights (64 or 128) and DEPTH of a block, RANKS, NORM and GATED are given when it is compiled.
// More rows are more blocks. Gated, the first half of the lines are gates, and the columns that belong to them follow.
#include "cluster.cuh"

constexpr int GROUP = 128, THREADS = 2 * GROUP, WARPS = THREADS / 32;
constexpr int CHUNKS = DEPTH / 8;  // of 16 bytes
constexpr int COLUMNS = GATED ? LINES / 2 : LINES, OWN_COLUMNS = COLUMNS / RANKS;
constexpr int LINE_CHUNK = LINES * 16, ROW_CHUNK = ROWS * 16;  // bytes of all lines' chunks, which are neighbours
constexpr int ROWS_AT = CHUNKS * LINE_CHUNK, GAIN_AT = ROWS_AT + CHUNKS * ROW_CHUNK;
constexpr int OWN_LINES = LINES / RANKS;  // that a block ends
// eight rows, or twice eight, belong to a warp, or to some that share the depth
constexpr int ROW_BLOCKS = ROWS > 64 ? WARPS : ROWS / 8, SHARES = WARPS / ROW_BLOCKS;
constexpr int OWN_ROWS = ROWS / 8 / ROW_BLOCKS, PIECES = CHUNKS / 4 / SHARES;
constexpr int SQUARES_AT = GAIN_AT + (NORM ? 2 * DEPTH : 0);  // [RANKS, SHARES, ROWS]
constexpr int GATE_AT = SQUARES_AT + (NORM ? 4 * RANKS * SHARES * ROWS : 0);
constexpr int PUSHED_BYTES = 4 * ROWS * (LINES + (NORM ? RANKS * SHARES : 0));
constexpr int ROW_STEP = ROWS + 8;  // of sums, which lie where weights and rows were: lanes that write them meet no bank twice
constexpr int PAIRS = OWN_COLUMNS / 2, ITEMS = PAIRS * ROWS / 2, OWN_ITEMS = (ITEMS + THREADS - 1) / THREADS;
static_assert(LINES == GROUP / 2 || LINES == GROUP, "one or two warpgroups multiply");
static_assert(SHARES * PIECES * 32 == DEPTH && PAIRS * RANKS * 2 == COLUMNS, "whole shares");
static_assert(LINES * ROW_STEP * 4 <= GAIN_AT, "room for sums");

struct FewArgs {
    const uint16_t *x, *weight, *gain, *residual;  // without a norm or a sum: null
    uint16_t* out;
    int rows, columns, depth;  // of all blocks; gated, the weight has twice as many columns
    float eps;
    int early, pad;  // whether the next kernel may start at once, or after this one has asked for its rows: then they do
                     // not queue behind the weights of the next
};
static_assert(sizeof(FewArgs) == 64, "as few_rows.py packs it");

// Of two columns and two rows.
struct Item {
    int column, row;
    __device__ __forceinline__ explicit Item(int n)
        : column(n % PAIRS * 2), row(n / PAIRS * 2) {}
};

// All of a block's weights, and of the norm's gain what belongs to its depth, which comes first. A warp has eight lines, or
// twice eight: neighbouring threads take neighbouring lines, whose chunks are neighbours in shared memory.
__device__ __forceinline__ void fetch_weights(const FewArgs& a, int first, int begin) {
    if (NORM) {
        for (int chunk = threadIdx.x; chunk < CHUNKS; chunk += THREADS)
            copy16(shared_base() + GAIN_AT + chunk * 16, a.gain + begin + chunk * 8);
        copies_commit();
    }
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int turn = 0; turn < LINES / (8 * WARPS); turn++) {
        const int line = (turn * WARPS + static_cast<int>(threadIdx.x) / 32) * 8 + lane % 8;
        const int64_t column = first + line % COLUMNS + line / COLUMNS * a.columns;
        const uint16_t* from = a.weight + column * a.depth + begin + lane / 8 * 8;
        const shared_t to = shared_base() + lane / 8 * LINE_CHUNK + line * 16;
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; chunk += 4) copy16(to + chunk * LINE_CHUNK, from + chunk * 8);
    }
    copies_commit();
}

// A thread's part of a row.
struct Row {
    uint4 piece[PIECES];
    int row, first, lane;
    float square;

    // Which of this thread's rows, of all from `above` on.
    __device__ __forceinline__ void read(const FewArgs& a, int turn, int above, int begin) {
        const int warp = static_cast<int>(threadIdx.x) / 32;
        lane = static_cast<int>(threadIdx.x) % 32;
        row = (turn * ROW_BLOCKS + warp % ROW_BLOCKS) * 8 + lane % 8;
        first = warp / ROW_BLOCKS * 4 + lane / 8;  // chunk; the next is 4 * SHARES further on
        const uint16_t* from = a.x + static_cast<int64_t>(above + row) * a.depth + begin;
#pragma unroll
        for (int n = 0; n < PIECES; n++)
            piece[n] = above + row < a.rows ? read16(from + chunk(n) * 8) : uint4{0, 0, 0, 0};
    }

    __device__ __forceinline__ int chunk(int n) const { return first + n * 4 * SHARES; }

    // Scaled by the gain; the scale of the whole row comes at the end.
    __device__ __forceinline__ void norm() {
        square = 0.0f;
#pragma unroll
        for (int n = 0; n < PIECES; n++) {
            const uint4 gain = *reinterpret_cast<const uint4*>(shared_memory + GAIN_AT + chunk(n) * 16);
            scale(piece[n].x, gain.x, square);
            scale(piece[n].y, gain.y, square);
            scale(piece[n].z, gain.z, square);
            scale(piece[n].w, gain.w, square);
        }
        square += __shfl_xor_sync(0xffffffffu, square, 8);
        square += __shfl_xor_sync(0xffffffffu, square, 16);
        if (!PUSHED && lane < 8) reinterpret_cast<float*>(shared_memory)[SQUARES_AT / 4 + first / 4 * ROWS + row] = square;
    }
    // The sum of its squares, to all blocks.
    __device__ __forceinline__ void push_square(int rank) const {
        if (lane >= 8) return;
        const shared_t at = shared_base() + SQUARES_AT + 4 * ((rank * SHARES + first / 4) * ROWS + row);
#pragma unroll
        for (int to = 0; to < RANKS; to++) push(in_block(at, to), in_block(shared_base() + GATE_AT, to), square);
    }
    static __device__ __forceinline__ void scale(uint32_t& two, uint32_t gain, float& square) {
        square += low_of(two) * low_of(two);
        square += high_of(two) * high_of(two);
        two = multiply_pairs(two, gain);
    }

    __device__ __forceinline__ void leave() const {
#pragma unroll
        for (int n = 0; n < PIECES; n++)
            store16(shared_base() + ROWS_AT + chunk(n) * ROW_CHUNK + row * 16, piece[n]);
    }
};

// A warpgroup's 64 lines by all rows, over the block's depth. Then the sums go where weights and rows were, once all
// blocks are done with those: each block's own, or each to the block that ends its line.
__device__ __forceinline__ void multiply_all(bool busy, int rank) {
    float sums[ROWS / 2];
    const int group = LINES == GROUP ? uniform(static_cast<int>(threadIdx.x) / GROUP) : 0;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (busy) {
        const uint64_t left = matrix(shared_base() + group * 64 * 16, LINE_CHUNK);
        const uint64_t right = matrix(shared_base() + ROWS_AT, ROW_CHUNK);
        products_begin();
#pragma unroll
        for (int k = 0; k < CHUNKS; k += 2) multiply(sums, left + k * LINES, right + k * ROWS, k > 0);
        products_commit();
        products_wait<0>();
        settled(sums);
    }
    if (PUSHED) cluster_meet();
    else __syncthreads();
    if (!busy) return;
    const int line = static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int column = (line + 8 * half) % COLUMNS, plane = (line + 8 * half) / COLUMNS;
        const int own = plane * OWN_COLUMNS + column % OWN_COLUMNS, to = column / OWN_COLUMNS;
        const int at = PUSHED ? rank * OWN_LINES + own : line + 8 * half;
        const shared_t gate = in_block(shared_base() + GATE_AT, to);
        const shared_t there = in_block(shared_base() + 4 * (at * ROW_STEP + lane % 4 * 2), to);
        float2* here = reinterpret_cast<float2*>(shared_memory + 4 * (at * ROW_STEP + lane % 4 * 2));
#pragma unroll
        for (int n = 0; n < ROWS / 8; n++) {
            const float first = sums[4 * n + 2 * half], second = sums[4 * n + 2 * half + 1];
            if (PUSHED) push(there + 32 * n, gate, first, second);
            else here[4 * n] = float2{first, second};
        }
    }
}

// What a block of the cluster has of some line and two rows.
__device__ __forceinline__ float2 part_of(int rank, int plane, int column, int row, int own_rank) {
    if (!PUSHED)
        return read_block(shared_base() + 4 * ((plane * COLUMNS + own_rank * OWN_COLUMNS + column) * ROW_STEP + row), rank);
    const int line = rank * OWN_LINES + plane * OWN_COLUMNS + column;
    return *reinterpret_cast<const float2*>(shared_memory + 4 * (line * ROW_STEP + row));
}

__device__ __forceinline__ float2 sum_of_blocks(int plane, int column, int row, int own_rank) {
    float2 part[RANKS], sum = {0.0f, 0.0f};
#pragma unroll
    for (int rank = 0; rank < RANKS; rank++) part[rank] = part_of(rank, plane, column, row, own_rank);
#pragma unroll
    for (int rank = 0; rank < RANKS; rank++) sum.x += part[rank].x, sum.y += part[rank].y;
    return sum;
}

__device__ __forceinline__ float2 norm_factors(const FewArgs& a, int row) {
    float2 part[RANKS * SHARES], sum = {0.0f, 0.0f};
#pragma unroll
    for (int n = 0; n < RANKS * SHARES; n++) {
        const int at = SQUARES_AT + 4 * ((PUSHED ? n : n % SHARES) * ROWS + row);
        part[n] = PUSHED ? *reinterpret_cast<const float2*>(shared_memory + at) : read_block(shared_base() + at, n / SHARES);
    }
#pragma unroll
    for (int n = 0; n < RANKS * SHARES; n++) sum.x += part[n].x, sum.y += part[n].y;
    return {rsqrtf(sum.x / a.depth + a.eps), rsqrtf(sum.y / a.depth + a.eps)};
}

struct Sums {
    float2 total[2], other[2];

    __device__ __forceinline__ void read(const FewArgs& a, const Item& item, int rank) {
#pragma unroll
        for (int n = 0; n < 2; n++) {
            total[n] = sum_of_blocks(0, item.column + n, item.row, rank);
            other[n] = GATED ? sum_of_blocks(1, item.column + n, item.row, rank) : total[n];
        }
        if (!NORM) return;
        const float2 factor = norm_factors(a, item.row);
#pragma unroll
        for (int n = 0; n < 2; n++) {
            total[n] = {total[n].x * factor.x, total[n].y * factor.y};
            other[n] = {other[n].x * factor.x, other[n].y * factor.y};
        }
    }

    static __device__ __forceinline__ uint32_t opened(uint32_t gates, uint32_t up) {
        return pack(rounded(silu(low_of(gates))) * low_of(up), rounded(silu(high_of(gates))) * high_of(up));
    }
    static __device__ __forceinline__ float silu(float gate) {
        return gate / (1.0f + power_of_two(gate * -1.4426950408889634f));
    }
    static __device__ __forceinline__ float rounded(float x) { return low_of(pack(x, 0.0f)); }

    // Rounded where the reference rounds.
    __device__ __forceinline__ void ended(uint32_t (&made)[2]) const {
        made[0] = pack(total[0].x, total[1].x);
        made[1] = pack(total[0].y, total[1].y);
        if (!GATED) return;
        made[0] = opened(made[0], pack(other[0].x, other[1].x));
        made[1] = opened(made[1], pack(other[0].y, other[1].y));
    }
};

// Of a block's results: from which row and column on, and which row ends them.
struct Place {
    int above, first;

    __device__ __forceinline__ uint32_t* of(const FewArgs& a, uint16_t* base, const Item& item, int n) const {
        const int64_t row = above + item.row + n;
        return reinterpret_cast<uint32_t*>(base + row * a.columns + first + item.column);
    }
    __device__ __forceinline__ bool has(const FewArgs& a, const Item& item, int n) const {
        return item.row < ROWS && above + item.row + n < a.rows;
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 2) few_rows(const __grid_constant__ FewArgs a) {
    if (a.early) launch_dependents();
    const int rank = static_cast<int>(blockIdx.x) % RANKS, strips = a.columns / COLUMNS;
    const int strip = static_cast<int>(blockIdx.x) / RANKS % strips, above = static_cast<int>(blockIdx.x) / RANKS / strips * ROWS;
    const Place place = {above, strip * COLUMNS + rank * OWN_COLUMNS};
    if (PUSHED && threadIdx.x == 0) gate_make(shared_base() + GATE_AT, PUSHED_BYTES);
    fetch_weights(a, strip * COLUMNS, rank * DEPTH);
    wait_prior();

    Row rows[OWN_ROWS];
#pragma unroll
    for (int n = 0; n < OWN_ROWS; n++) rows[n].read(a, n, above, rank * DEPTH);
    uint32_t before[OWN_ITEMS][2];
#pragma unroll
    for (int n = 0; n < 2 * OWN_ITEMS; n++) {
        const Item item(n / 2 * THREADS + static_cast<int>(threadIdx.x));
        const bool there = a.residual && place.has(a, item, n % 2);
        before[n / 2][n % 2] = there ? read4(place.of(a, const_cast<uint16_t*>(a.residual), item, n % 2)) : 0;
    }
    if (!a.early) launch_dependents();
    if (NORM) {
        copies_wait<1>();
        __syncthreads();  // the gain that others fetched
#pragma unroll
        for (int n = 0; n < OWN_ROWS; n++) rows[n].norm();
    }
#pragma unroll
    for (int n = 0; n < OWN_ROWS; n++) rows[n].leave();
    copies_wait<0>();
    show_to_products();
    __syncthreads();  // weights and rows that others fetched
    multiply_all(LINES == GROUP || threadIdx.x < GROUP, rank);
    if (PUSHED) {
        if (NORM) {
#pragma unroll
            for (int n = 0; n < OWN_ROWS; n++) rows[n].push_square(rank);
        }
        gate_wait(shared_base() + GATE_AT);
    } else {
        cluster_arrive();  // with the sums
        cluster_wait();
    }
    Sums sums[OWN_ITEMS];
#pragma unroll
    for (int n = 0; n < OWN_ITEMS; n++) {
        const int index = n * THREADS + static_cast<int>(threadIdx.x);
        if (index < ITEMS) sums[n].read(a, Item(index), rank);
    }
    if (!PUSHED) cluster_arrive();  // done with the others' sums
#pragma unroll
    for (int n = 0; n < OWN_ITEMS; n++) {
        const Item item(n * THREADS + static_cast<int>(threadIdx.x));
        uint32_t made[2];
        sums[n].ended(made);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            if (!place.has(a, item, r)) continue;
            const uint32_t sum = pack(low_of(before[n][r]) + low_of(made[r]), high_of(before[n][r]) + high_of(made[r]));
            *place.of(a, a.out, item, r) = a.residual ? sum : made[r];
        }
    }
    if (!PUSHED) cluster_wait();  // others read what is here
}
