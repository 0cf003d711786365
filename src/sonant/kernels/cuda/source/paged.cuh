// Paged keys and values: how a warp copies a chunk of positions of one head into shared memory, and the layout of a tile there.
// A row is one position's head; its 16-byte pieces are swizzled by the row's number, so that the eight rows that a matrix load
// reads at once lie in different banks.
#pragma once
#ifndef HEAD_DIM
#define HEAD_DIM 128
#endif
#ifndef KV_BYTES  // of a value in the cache: 2 for bfloat16, 1 for e4m3
#define KV_BYTES 2
#endif
#include "ptx.cuh"

#if KV_BYTES == 1
typedef uint8_t cached_t;
#else
typedef uint16_t cached_t;
#endif

constexpr int DIM = HEAD_DIM;
constexpr int ROW_BYTES = KV_BYTES * DIM;  // of a key or value
constexpr int WIDE_BYTES = 2 * DIM;        // of a query or result
constexpr int PIECES = ROW_BYTES / 16, WIDE_PIECES = WIDE_BYTES / 16;
constexpr int WARPS = 4;
constexpr int THREADS = 32 * WARPS;
constexpr uint32_t ALL = 0xffffffffu;
static_assert(DIM == 64 || DIM == 128, "rows of 64 to 256 bytes");
static_assert(KV_BYTES == 1 || KV_BYTES == 2, "e4m3 or bfloat16");

__device__ __forceinline__ float lowest() { return from_bits(0xff800000u); }  // minus infinity

// What the numbers of a row's pieces are XORed with: two short rows lie side by side in the banks.
template <int BYTES>
__device__ __forceinline__ int order_of(int row) { return BYTES >= 128 ? row & 7 : (row >> 1) & 3; }

template <int BYTES>
__device__ __forceinline__ uint32_t place(int row, int piece) {
    return row * BYTES + ((piece ^ order_of<BYTES>(row)) << 4);
}

__device__ __forceinline__ int64_t read_position(const void* positions, int64_t index, int wide) {
    return wide ? read_fresh(static_cast<const int64_t*>(positions) + index)
                : static_cast<int64_t>(read_fresh(static_cast<const int*>(positions) + index));
}

struct Pages {
    const uint8_t* keys;    // of this head
    int64_t plane_bytes;    // from keys to their values
    uint32_t token_bytes;   // from one position to the next
    const int* table;       // of this row
    int block_tokens;
    uint32_t block_magic;   // 2³² / block_tokens, rounded up: exact below 2³² / block_tokens positions; 0: one each
    int end;                // first position that is not to be read

    // The index of a position's block in the table.
    __device__ __forceinline__ int block_of(int at) const {
        return block_magic ? static_cast<int>(__umulhi(static_cast<uint32_t>(at), block_magic)) : at;
    }

    // A chunk has 16 or 32 positions. The table's entry for the block of position `first` + lane % CHUNK, if that is below
    // `limit`.
    template <int CHUNK>
    __device__ __forceinline__ int look_up(int first, int limit, int lane) const {
        const int at = first + (lane & (CHUNK - 1));
        return at < limit ? read_fresh(table + block_of(at)) : 0;
    }

    // The slot of this position in the cache, from that entry (`block`); -1 where there is nothing to read.
    template <int CHUNK>
    __device__ __forceinline__ int slot_in(int block, int first, int lane) const {
        const int at = first + (lane & (CHUNK - 1));
        return at < end ? (block - block_of(at)) * block_tokens + at : -1;
    }

    template <int CHUNK>
    __device__ __forceinline__ int slot(int first, int lane) const {
        return slot_in<CHUNK>(look_up<CHUNK>(first, end, lane), first, lane);
    }

    // Copy a chunk, by one warp, `slot` being each lane's own as above; the copies are not committed.
    template <int CHUNK>
    __device__ __forceinline__ void copy(shared_t to_keys, shared_t to_values, int slot, int lane) const {
        each_piece<CHUNK>(slot, lane, [&](uint32_t to, const uint8_t* at, bool there) {
            copy16(to_keys + to, at, there);
            copy16(to_values + to, at + plane_bytes, there);
        });
    }

    // Copy only its keys (`plane` 0) or its values.
    template <int CHUNK>
    __device__ __forceinline__ void copy_plane(shared_t dest, int64_t plane, int slot, int lane) const {
        each_piece<CHUNK>(slot, lane, [&](uint32_t to, const uint8_t* at, bool there) { copy16(dest + to, at + plane, there); });
    }

private:
    template <int CHUNK, class Copy>
    __device__ __forceinline__ void each_piece(int slot, int lane, const Copy& copy_piece) const {
        constexpr int ROWS = 32 / PIECES;  // in one turn
        const int row = lane / PIECES, piece = lane % PIECES;
        const uint32_t first = place<ROW_BYTES>(row, piece);
        const uint8_t* source = keys + piece * 16;
#pragma unroll
        for (int turn = 0; turn < CHUNK / ROWS; turn++) {
            const int from = __shfl_sync(ALL, slot, turn * ROWS + row);
            const bool there = from >= 0;
            const uint8_t* at = source + static_cast<uint64_t>(there ? from : 0) * token_bytes;
            // place(turn * ROWS + row, piece): the bits of turn * ROWS and row do not overlap
            copy_piece(turn * ROWS * ROW_BYTES + (first ^ (order_of<ROW_BYTES>(turn * ROWS) << 4)), at, there);
        }
    }
};

// The offset into a tile that a lane gives to a matrix load (ldmatrix) of rows 0…15 and the first pair of pieces.
// Matrices are (rows 0…7, first piece), (8…15, first), (0…7, second), (8…15, second).
template <int BYTES>
__device__ __forceinline__ uint32_t by_rows(int lane) { return place<BYTES>(lane & 15, lane >> 4); }

// The same with the second and third exchanged: for a product's right operand, whose columns are the rows here.
__device__ __forceinline__ uint32_t by_pieces(int lane) {
    return place<ROW_BYTES>((lane & 7) + (lane >> 4) * 8, (lane >> 3) & 1);
}

// The address of pair n of the same rows, from such an address in a tile that begins at a multiple of its rows' bytes: pieces
// are swizzled by XOR, so a pair's number is XORed too.
__device__ __forceinline__ shared_t pair(shared_t address, int n) { return address ^ (n << 5); }
