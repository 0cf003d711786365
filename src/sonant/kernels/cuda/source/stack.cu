// All layers of a stack over few rows in one launch: a grid that stays, with a barrier of all blocks after each of a
// layer's four steps. Weights come in their own time (weights.cuh), so that what is left of a step is the way of its few
// rows: out of the second-level cache, through the products, to the blocks of the cluster, and back.
//
// Who reads what others wrote: x is written by the second and the fourth step and read by the first and the third, qkv
// is written by the first and read by the second, inner by the third and the fourth. So between a write and a read there
// is one barrier, and between a read and the next write there is another.
#include "local_heads.cuh"
#include "weights.cuh"

constexpr int PIECES = Projection::DEPTH / 8;  // of a row, in a block's share of the hidden width
constexpr int LANES = PIECES < 32 ? PIECES : 32, AT_ONCE = 32 / LANES, TURNS = PIECES / LANES;
static_assert(32 % LANES == 0 && PIECES % LANES == 0, "lanes share a row evenly");
static_assert(Output::COLUMNS / 2 * ROWS <= WORKERS && Output::COLUMNS == Down::COLUMNS, "a thread keeps its own of x");

// A lane's gains of a norm. They are weights, so they may be read before the rows are there.
struct Gains {
    Piece piece[TURNS];

    __device__ __forceinline__ void read(const uint16_t* gain, const Place& at) {
#pragma unroll
        for (int n = 0; n < TURNS; n++)
            piece[n] = read_fresh16(gain + at.rank * Projection::DEPTH + (n * LANES + at.lane % LANES) * 8);
    }
};

// A lane's part of the squares of its warp's rows.
constexpr int PASSES = (ROWS + WARPS * AT_ONCE - 1) / (WARPS * AT_ONCE);
struct Squares {
    float sum[PASSES];

    // Of whole rows, to all blocks of the cluster: a quarter from each makes the factor of the norm.
    __device__ __forceinline__ void leave(const Place& at) {
#pragma unroll
        for (int step = LANES / 2; step; step >>= 1)
#pragma unroll
            for (int pass = 0; pass < PASSES; pass++) sum[pass] += __shfl_xor_sync(ALL, sum[pass], step);
        const uint32_t to = at.lane % LANES;
#pragma unroll
        for (int pass = 0; pass < PASSES; pass++) {
            const uint32_t row = (pass * WARPS + at.warp) * AT_ONCE + at.lane / LANES;
            if (to < RANKS && row < ROWS)
                push(in_block(shared_base() + SQUARES_AT + 4 * (at.rank * ROWS + row), to),
                     in_block(shared_base() + LANDING_AT, to), sum[pass]);
        }
    }
};

// This block's quarter of x, times the gains, into shared memory. The norm's own factor needs whole rows, and is applied
// to what the products make.
__device__ __forceinline__ void open_branch(Squares& squares, const StackArgs& a, const Gains& gains, const Place& at) {
    Piece rows[PASSES][TURNS];
#pragma unroll
    for (int pass = 0; pass < PASSES; pass++) {
        const uint32_t row = min((pass * WARPS + at.warp) * AT_ONCE + at.lane / LANES, a.rows - 1);
        const uint16_t* from = a.x + row * HIDDEN + at.rank * Projection::DEPTH + at.lane % LANES * 8;
#pragma unroll
        for (int n = 0; n < TURNS; n++) rows[pass][n] = read_fresh16(from + n * LANES * 8);
    }
#pragma unroll
    for (int pass = 0; pass < PASSES; pass++) {
        const uint32_t row = (pass * WARPS + at.warp) * AT_ONCE + at.lane / LANES;
        squares.sum[pass] = 0.0f;
#pragma unroll
        for (int n = 0; n < TURNS; n++) {
            Piece scaled;
#pragma unroll
            for (int w = 0; w < 4; w++) {
                const uint32_t x = rows[pass][n].word[w], gain = gains.piece[n].word[w];
                squares.sum[pass] += low(x) * low(x) + high(x) * high(x);
                scaled.word[w] = product2(x, gain);
            }
            const uint32_t piece = n * LANES + at.lane % LANES;
            if (row < ROWS) move16(shared_memory + INPUT_AT + row * NORMED_STEP + piece * 16, &scaled);
        }
    }
}

// What a row's norm is multiplied by, once all squares have landed.
__device__ __forceinline__ float norm_factor(float eps, uint32_t row) {
    const float* squares = reinterpret_cast<const float*>(shared_memory + SQUARES_AT) + row;
    float sum = 0.0f;
#pragma unroll
    for (int rank = 0; rank < RANKS; rank++) sum += squares[rank * ROWS];
    return rsqrtf(sum * (1.0f / HIDDEN) + eps);
}

// The right sides of a warp's products, for one chunk of the depth: of its first half and of its second, whose words are
// two for each sixteen.
template <class P, int STEP>
__device__ __forceinline__ void read_input(Piece (&right)[2][ROW_TILES], int chunk, const Place& at) {
    shared_t from = shared_base() + INPUT_AT + at.lane % 8 * STEP;
    from += 2 * ((P::group(at.warp) * P::EVERY + chunk) * CHUNK + at.lane / 8 * 8);
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int tile = 0; tile < ROW_TILES; tile++)
            load_matrices(right[half][tile].word, from + tile * 8 * STEP + half * 64);
}

// The same out of global memory, for a product whose warps have no input in common, and whose columns are in order.
template <class P>
__device__ __forceinline__ void read_input(
    Piece (&right)[2][ROW_TILES], const uint16_t* input, int rows, int chunk, const Place& at
) {
    input += at.rank * P::DEPTH + (P::group(at.warp) * P::EVERY + chunk) * CHUNK + at.lane % 4 * 8;
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int tile = 0; tile < ROW_TILES; tile++)
            right[half][tile] = read_fresh16(input + min(tile * 8 + at.lane / 4, rows - 1) * P::WIDTH + half * 32);
}

template <class P>
struct Sums {
    // A warp that has one tile adds in two chains, since a product waits for the one before it in its chain.
    static constexpr int CHAINS = P::EACH == 1 ? 2 : 1;
    float value[P::EACH * CHAINS][ROW_TILES][4];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int n = 0; n < P::EACH * CHAINS * ROW_TILES * 4; n++)
            value[n / (ROW_TILES * 4)][n / 4 % ROW_TILES][n % 4] = 0.0f;
    }

    // A chunk of the depth, of all this warp's tiles.
    __device__ __forceinline__ void add(
        Stream& weights, const Piece (&right)[2][ROW_TILES], const Place& at
    ) {
#pragma unroll
        for (int each = 0; each < P::EACH; each++) {
            uint32_t left[4][4];
            weights.take(left, at);
#pragma unroll
            for (int n = 0; n < 4; n++)
#pragma unroll
                for (int tile = 0; tile < ROW_TILES; tile++) {
                    const Piece& other = right[n / 2][tile];
                    multiply(value[each + n % CHAINS][tile], left[n], other.word[n % 2 * 2], other.word[n % 2 * 2 + 1]);
                }
        }
    }

    // To the blocks that end these columns: [rank, group, column, row] there.
    __device__ __forceinline__ void leave(const Place& at) {
        if (CHAINS == 2)
#pragma unroll
            for (int n = 0; n < ROW_TILES * 4; n++) value[0][n / 4][n % 4] += value[CHAINS - 1][n / 4][n % 4];
        constexpr int OWN = P::PAIRED ? P::COLUMNS / 2 : P::COLUMNS;
        const uint32_t part = at.rank * P::GROUPS + P::group(at.warp);
#pragma unroll
        for (int each = 0; each < P::EACH; each++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const uint32_t tile = P::PAIRED ? P::set(at.warp) : P::set(at.warp) + each * P::SETS;
                const uint32_t column = tile * 16 + half * 8 + at.lane / 4, to = column / OWN;
                const uint32_t own = column % OWN + (P::PAIRED ? each * OWN : 0);
                const shared_t gate = in_block(shared_base() + LANDING_AT, to);
                const uint32_t place = (part * P::COLUMNS + own) * ROW_STEP + at.lane % 4 * 2;
                const shared_t there = in_block(shared_base() + PARTS_AT + 4 * place, to);
#pragma unroll
                for (int row = 0; row < ROW_TILES; row++)
                    push(there + 32 * row, gate, value[each][row][2 * half], value[each][row][2 * half + 1]);
            }
    }
};

template <class P>
__device__ __forceinline__ float total(uint32_t column, uint32_t row) {
    const float* parts = reinterpret_cast<const float*>(shared_memory + PARTS_AT) + column * ROW_STEP + row;
    float sum = 0.0f;
#pragma unroll 8
    for (int part = 0; part < RANKS * P::GROUPS; part++) sum += parts[part * P::COLUMNS * ROW_STEP];
    return sum;
}

__device__ __forceinline__ float opened(float gate, float up) {
    gate = rounded(gate);
    return rounded(gate * inverse(1.0f + power_of_two(gate * -1.4426950408889634f))) * rounded(up);
}

struct Pass {
    const StackArgs& a;
    Stream weights;
    Gains gains;
    uint32_t turn = 0;  // of all gates
    uint32_t goal = 0;  // of the counter, at the next barrier

    __device__ __forceinline__ explicit Pass(const StackArgs& args) : a(args), weights(args) {}

    __device__ __forceinline__ void mark(int point) const {
        if (MARKED && threadIdx.x == 0)
            a.marks[(blockIdx.x * 4 * MOST_LAYERS + turn) * POINTS + point] = ticks();
    }

    // A thread's two columns and its row, where a block ends a product. Of one column, rows lie next to each other.
    struct Own {
        uint32_t column, row;
        bool there;
        uint32_t *x, *held;  // two neighbours of x, which only this thread writes; and what they are
    };
    __device__ __forceinline__ Own own(const Place& at) const {
        const uint32_t thread = at.warp * 32 + at.lane, column = thread / ROWS * 2, row = thread % ROWS;
        uint16_t* x = a.x + row * HIDDEN + Output::column(at.cluster, at.rank * Output::COLUMNS + column);
        uint32_t* held = reinterpret_cast<uint32_t*>(shared_memory + HELD_AT) + thread;
        return {column, row, column < Output::COLUMNS && row < a.rows, reinterpret_cast<uint32_t*>(x), held};
    }

    // From shared memory, whose rows are STEP apart.
    template <class P, int STEP>
    __device__ __forceinline__ void multiply_shared(const Place& at) {
        if (P::busy(at.warp, at.cluster)) {
            Sums<P> sums;
            sums.clear();
#pragma unroll 1
            for (int chunk = 0; chunk < P::EVERY; chunk++) {
                Piece right[2][ROW_TILES];
                read_input<P, STEP>(right, chunk, at);
                sums.add(weights, right, at);
            }
            sums.leave(at);
        }
    }

    // Until a gate opens, with weights asked for meanwhile.
    __device__ __forceinline__ void await(int gate, const Place& at) {
        while (!__all_sync(ALL, gate_passed(shared_base() + gate, turn & 1))) weights.pump(at);
    }

    __device__ __forceinline__ void expect(uint32_t bytes) const {
        if (threadIdx.x == WORKERS) gate_expect(shared_base() + LANDING_AT, bytes);
    }

    __device__ __forceinline__ void landed(const Place& at) {
        mark(2);
        await(LANDING_AT, at);
        mark(3);
    }

    // All blocks: what any of them has written before, all may read after it.
    __device__ __forceinline__ void meet() {
        const Place at = here();
        mark(4);
        __syncwarp();  // all of the warp have written
        if (at.warp < WARPS) {
            if (at.lane == 0) gate_arrive(shared_base() + WRITTEN_AT);
            await(PASSAGE_AT, at);
        } else {
            if (at.lane == 0) {
                while (!gate_passed(shared_base() + WRITTEN_AT, turn & 1)) continue;
                goal += BLOCKS;
                count_in(a.counter);
                count_wait(a.counter, goal);
                gate_arrive(shared_base() + PASSAGE_AT);
            }
            __syncwarp();  // what its first lane has waited for, all have
        }
        turn++;
    }

    __device__ __forceinline__ void project() {
        const Place at = here();
        mark(0);
        expect(Projection::bytes(at.cluster, at.rank) + 4 * RANKS * ROWS);
        Squares squares;
        if (at.warp < WARPS) open_branch(squares, a, gains, at);
        __syncthreads();  // the input is whole
        mark(1);
        if (at.warp == WARPS) return;
        multiply_shared<Projection, NORMED_STEP>(at);
        squares.leave(at);
        landed(at);
        for (uint32_t n = at.warp * 32 + at.lane; n < Projection::COLUMNS / 2 * ROWS; n += WORKERS) {
            const uint32_t column = n / ROWS * 2, row = n % ROWS, own = at.rank * Projection::COLUMNS + column;
            if (row >= a.rows || !Projection::has(at.cluster, own)) continue;
            const float factor = norm_factor(a.eps, row);
            const uint32_t to = row * QKV + Projection::column(at.cluster, own);
            *reinterpret_cast<uint32_t*>(a.qkv + to) =
                pack(total<Projection>(column, row) * factor, total<Projection>(column + 1, row) * factor);
        }
    }

    template <class P>
    __device__ __forceinline__ void add_to_x(const Place& at) {
        const Own mine = own(at);
        if (!mine.there) return;
        const uint32_t x = *mine.held;
        *mine.x = *mine.held = pack(low(x) + rounded(total<P>(mine.column, mine.row)),
                                    high(x) + rounded(total<P>(mine.column + 1, mine.row)));
    }

    __device__ __forceinline__ void mix() {
        const Place at = here();
        mark(0);
        expect(Output::bytes(at.cluster, at.rank));
        attend(a, at);
        mark(1);
        if (at.warp == WARPS) return;
        multiply_shared<Output, GATHERED_STEP>(at);
        landed(at);
        add_to_x<Output>(at);
    }

    __device__ __forceinline__ void open_gates() {
        const Place at = here();
        mark(0);
        expect(Gates::bytes(at.cluster, at.rank) + 4 * RANKS * ROWS);
        Squares squares;
        if (at.warp < WARPS) open_branch(squares, a, gains, at);
        __syncthreads();  // the input is whole
        mark(1);
        if (at.warp == WARPS) return;
        multiply_shared<Gates, NORMED_STEP>(at);
        squares.leave(at);
        landed(at);
        constexpr int OWN = Gates::COLUMNS / 2;
        for (uint32_t n = at.warp * 32 + at.lane; n < OWN / 2 * ROWS; n += WORKERS) {
            const uint32_t column = n / ROWS * 2, row = n % ROWS;
            if (row >= a.rows) continue;
            const float factor = norm_factor(a.eps, row);
            float made[2];
#pragma unroll
            for (int k = 0; k < 2; k++)
                made[k] = opened(total<Gates>(column + k, row) * factor, total<Gates>(OWN + column + k, row) * factor);
            const uint32_t to = row * INNER + place_of(Gates::column(at.cluster, at.rank * OWN + column));
            *reinterpret_cast<uint32_t*>(a.inner + to) = pack(made[0], made[1]);
        }
    }

    __device__ __forceinline__ void close_branch() {
        const Place at = here();
        mark(0);
        expect(Down::bytes(at.cluster, at.rank));
        if (at.warp == WARPS) return;
        if (Down::busy(at.warp, at.cluster)) {
            constexpr int HELD = ROW_TILES <= 3 && Down::EVERY % 2 == 0 ? 2 : 1;  // as many chunks as there are registers for
            Sums<Down> sums;
            sums.clear();
#pragma unroll
            for (int first = 0; first < Down::EVERY; first += HELD) {
                Piece right[HELD][2][ROW_TILES];
#pragma unroll
                for (int n = 0; n < HELD; n++) read_input<Down>(right[n], a.inner, a.rows, first + n, at);
                if (MARKED && right[HELD - 1][1][ROW_TILES - 1].word[0] != 1) mark(1);  // it is there
#pragma unroll
                for (int n = 0; n < HELD; n++) sums.add(weights, right[n], at);
            }
            sums.leave(at);
        }
        landed(at);
        add_to_x<Down>(at);
    }

    __device__ __forceinline__ void run() {
        const Place at = here();
        if (threadIdx.x == 0) {
            gate_make(shared_base() + LANDING_AT, 1);
            gate_make(shared_base() + WRITTEN_AT, WARPS);
            gate_make(shared_base() + PASSAGE_AT, 1);
        }
        if (at.warp < WARPS) weights.begin(at);
        launch_dependents();
        cluster_meet();  // all its gates are made
        wait_prior();
        // Nobody gets past the first barrier before this block has read the counter and come there itself.
        goal = read_fresh(a.counter) / BLOCKS * BLOCKS;
        read_rotations(a);  // they are read behind a barrier
        const Own mine = own(at);
        if (mine.there) *mine.held = read_fresh(mine.x);
        gains.read(a.layer[0].gains[0], at);
        for (int layer = 0; layer < a.layers; layer++) {
            project();
            meet();
            mix();
            gains.read(a.layer[layer].gains[1], here());
            meet();
            open_gates();
            meet();
            close_branch();
            if (layer + 1 == a.layers) break;
            gains.read(a.layer[layer + 1].gains[0], here());
            meet();
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1) local_stack(const __grid_constant__ StackArgs a) {
    Pass(a).run();
}
