// A warp's stream of weights, in the order in which it needs them, through all products and all layers: they are
// prefetched into a ring of its own, so that they arrive while it waits for other blocks. They are requested at a
// steady pace: what blocks tell each other would otherwise wait behind megabytes that are not needed yet.
#pragma once
#include "stack.cuh"

// What a warp must know of a product to request its weights; in shared memory, since it differs by product.
struct Plan {
    int offset;         // of the warp's first value
    int width;          // of a row
    int across, along;  // from a chunk to the next: to the warp's second tile, or back to its first
    int chunks;
    int pad[3];

    template <class P>
    __device__ __forceinline__ void write(const Place& at) {
        static_assert(P::EACH <= 2, "tiles take turns");
        offset = P::tile(at.cluster, P::set(at.warp)) * 16 * P::WIDTH;
        offset += at.rank * P::DEPTH + P::group(at.warp) * P::EVERY * CHUNK;
        width = P::WIDTH;
        across = P::EACH == 2 ? P::STEP * P::WIDTH : CHUNK;
        along = P::EACH == 2 ? CHUNK - P::STEP * P::WIDTH : CHUNK;
        chunks = P::busy(at.warp, at.cluster) ? P::CHUNKS : 0;
    }
};
static_assert(sizeof(Plan) == PLAN_BYTES, "as its place has it");

struct Stream {
    const StackArgs& a;
    const uint16_t* from = nullptr;  // this lane's first sixteen bytes of the next chunk to request
    uint32_t left = 0;               // chunks of this product that are still to be requested
    uint32_t product = 0;            // the number of the product after it, through all layers
    int slot = 0, place = 0;         // ring slots of the next chunk to use, and of the next one to request
    int here = 0;                    // chunks that were requested and are not used yet
    uint32_t last = 0;               // when `pump` last requested a chunk

    __device__ __forceinline__ explicit Stream(const StackArgs& args) : a(args) {}

    static __device__ __forceinline__ Plan* plans(const Place& at) {
        return reinterpret_cast<Plan*>(shared_memory + PLANS_AT) + at.warp * 4;
    }

    __device__ __forceinline__ void next_product(const Place& at) {
        const Plan plan = plans(at)[product % 4];
        from = a.layer[product / 4].weights[product % 4] + plan.offset + at.lane / 8 * plan.width + at.lane % 8 * 8;
        left = plan.chunks;
        product++;
    }

    // Request the next chunk: four of its sixteen rows at a time, in whole lines of 128 bytes, whose pieces are
    // swizzled by the row's number, so that the eight rows that a matrix load reads at once lie in different banks.
    __device__ __forceinline__ void ask(const Place& at) {
        while (left == 0 && product < 4u * a.layers) next_product(at);
        if (left == 0) return;
        const Plan& plan = plans(at)[(product - 1) % 4];
        const int width = plan.width;
        const int next = left % 2 ? plan.along : plan.across;  // a product has as many of both, or no second tile
        shared_t to = shared_base() + RING_AT + (at.warp * AHEAD + place) * CHUNK_BYTES + at.lane / 8 * 128;
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const uint32_t row = at.lane / 8 + n * 4;
            copy_weights16(to + n * 512 + ((at.lane % 8 ^ (row % 8)) << 4), from + n * 4 * width);
        }
        copies_commit();
        from += next;
        left--;
        place = place + 1 == AHEAD ? 0 : place + 1;
        here++;
    }

    __device__ __forceinline__ void begin(const Place& at) {
        if (at.lane == 0) {
            plans(at)[0].write<Projection>(at);
            plans(at)[1].write<Output>(at);
            plans(at)[2].write<Gates>(at);
            plans(at)[3].write<Down>(at);
        }
        __syncwarp();  // all lanes read them
        last = ticks();
#pragma unroll 1
        for (int n = 0; n < LEAST; n++) ask(at);
    }

    // Request one more chunk if it is time; called while a warp has nothing to do.
    __device__ __forceinline__ void pump(const Place& at) {
        const uint32_t now = __shfl_sync(ALL, ticks(), 0);  // all lanes must do the same
        if (here == AHEAD || now - last < PACE) return;
        last = now;
        ask(at);
    }

    // Load the next chunk, as the left operands of four products.
    __device__ __forceinline__ void take(uint32_t (&sides)[4][4], const Place& at) {
        if (here < (slot % TAKES ? AHEAD : LEAST)) ask(at);
        copies_wait_for(here - 1);
        __syncwarp();  // other lanes' copies have arrived too
        const uint32_t row = at.lane % 16;
        const shared_t chunk = shared_base() + RING_AT + (at.warp * AHEAD + slot) * CHUNK_BYTES + row * 128;
#pragma unroll
        for (int n = 0; n < 4; n++) load_matrices(sides[n], chunk + (((2 * n + at.lane / 16) ^ (row % 8)) << 4));
        __syncwarp();  // all lanes have read what may be overwritten now
        slot = slot + 1 == AHEAD ? 0 : slot + 1;
        here--;
    }
};
