// All layers of a stack over few rows in one launch: a persistent grid, with a barrier of all blocks after each of a
// layer's four steps. Weights are prefetched whatever the step (weights.cuh), so that a step only takes as long as its
// few rows do: from the L2 cache, through the products, to the blocks of the cluster, and back.
//
// What blocks read of each other's writes: x is written by the second and the fourth step and read by the first and the
// third, qkv is written by the first and read by the second, inner is written by the third and read by the fourth. So
// between a write and a read there is one barrier, and between a read and the next write there is another.
#include "branch.cuh"
#include "local_heads.cuh"
#include "sums.cuh"

static_assert(Output::COLUMNS / 2 * ROWS <= WORKERS && Output::COLUMNS == Down::COLUMNS, "each thread keeps some of x");

__device__ __forceinline__ float opened(float gate, float up) {
    gate = rounded(gate);
    return rounded(gate * inverse(1.0f + power_of_two(gate * -1.4426950408889634f))) * rounded(up);
}

struct Pass {
    const StackArgs& a;
    Stream weights;
    Gains gains;
    uint32_t turn = 0;  // of all gates: steps so far

    __device__ __forceinline__ explicit Pass(const StackArgs& args) : a(args), weights(args) {}

    __device__ __forceinline__ void mark(int point) const {
        if (MARKED && threadIdx.x == 0)
            a.marks[(blockIdx.x * 4 * MOST_LAYERS + turn) * POINTS + point] = ticks();
    }

    // The two columns and the row in which a thread completes a product. Neighbouring threads have neighbouring rows,
    // since a column's rows are adjacent among the sums.
    struct Own {
        uint32_t column, row;
        bool there;
        uint32_t *x, *held;  // two neighbours of x, which only this thread writes; and its copy of their values
    };
    __device__ __forceinline__ Own own(const Place& at) const {
        const uint32_t thread = at.warp * 32 + at.lane, column = thread / ROWS * 2, row = thread % ROWS;
        uint16_t* x = a.x + row * HIDDEN + Output::column(at.cluster, at.rank * Output::COLUMNS + column);
        uint32_t* held = reinterpret_cast<uint32_t*>(shared_memory + HELD_AT) + thread;
        return {column, row, column < Output::COLUMNS && row < a.rows, reinterpret_cast<uint32_t*>(x), held};
    }

    // Multiply the input in shared memory, whose rows are STEP bytes apart.
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

    // The counter's value at the start; only the thread that counts reads it.
    static __device__ __forceinline__ uint32_t* began() {
        return reinterpret_cast<uint32_t*>(shared_memory + BEGAN_AT);
    }

    // Wait until a gate opens, and prefetch weights meanwhile.
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

    // A barrier of all blocks: what any of them has written before, all may read after it.
    __device__ __forceinline__ void meet() {
        const Place at = here();
        mark(4);
        __syncwarp();  // all lanes have written
        if (at.warp < WARPS) {
            if (at.lane == 0) gate_arrive(shared_base() + WRITTEN_AT);
            await(PASSAGE_AT, at);
        } else {
            if (at.lane == 0) {
                while (!gate_passed(shared_base() + WRITTEN_AT, turn & 1)) continue;
                count_in(a.counter);
                count_wait(a.counter, *began() + (turn + 1) * BLOCKS);
                gate_arrive(shared_base() + PASSAGE_AT);
            }
            __syncwarp();  // all lanes wait with the first
        }
        turn++;
    }

    __device__ __forceinline__ void project() {
        const Place at = here();
        mark(0);
        expect(Projection::bytes(at.cluster, at.rank) + 4 * RANKS * ROWS);
        Squares squares;
        if (at.warp < WARPS) open_branch(squares, a, gains, at);
        __syncthreads();  // the input is complete
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
        __syncthreads();  // the input is complete
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
            // chunks of input that are read at once: as many as there are registers for
            constexpr int HELD = ROW_TILES <= 3 && Down::EVERY % 2 == 0 ? 2 : 1;
            Sums<Down> sums;
            sums.clear();
#pragma unroll
            for (int first = 0; first < Down::EVERY; first += HELD) {
                Piece right[HELD][2][ROW_TILES];
#pragma unroll
                for (int n = 0; n < HELD; n++) read_input<Down>(right[n], a.inner, a.rows, first + n, at);
                if (MARKED && right[HELD - 1][1][ROW_TILES - 1].word[0] != 1) mark(1);  // it has arrived
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
        cluster_meet();  // all gates of the cluster are made
        wait_prior();
        // No block passes the first barrier before this one has read the counter and arrived there itself.
        if (threadIdx.x == WORKERS) *began() = read_fresh(a.counter) / BLOCKS * BLOCKS;
        read_rotations(a);  // they are used behind a barrier
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
