// A row's positions shared by a cluster of blocks: for few rows, whose sums would else take most of the time. Two blocks
// have room on a processor, so that the next launch can begin to read before this one's sums are done, or one.
#include "decode.cuh"

#define PAGED_DECODE(WARPS_HERE, UNITS, CHUNK, RESIDENT)                                                          \
    extern "C" __global__ void __launch_bounds__(32 * WARPS_HERE, RESIDENT)                                       \
        paged_decode_cluster_##WARPS_HERE##x##UNITS(const __grid_constant__ DecodeArgs a) {                       \
        decode<WARPS_HERE, UNITS * RING_UNIT, CHUNK, true, true, true>(a);                                        \
    }

PAGED_DECODE(4, 3, USUAL, 2)
PAGED_DECODE(8, 3, USUAL, 1)
PAGED_DECODE(4, 6, 32, 1)
