#include "decode.cuh"

// More blocks on a processor with fewer warps or shorter rings, or the reverse: which is for what grid is the host's to say.
// In the longest rings, which are for few blocks, a chunk is of 32 positions: a sum over scores takes as long for them as
// for 16.
#define PAGED_DECODE(WARPS_HERE, UNITS, CHUNK, IN_TURN, HOLDS, RESIDENT)                                    \
    extern "C" __global__ void __launch_bounds__(32 * WARPS_HERE, RESIDENT)                                 \
        paged_decode_##WARPS_HERE##x##UNITS(const __grid_constant__ DecodeArgs a) {                         \
        decode<WARPS_HERE, UNITS * RING_UNIT, CHUNK, IN_TURN, HOLDS>(a);                                    \
    }

PAGED_DECODE(4, 4, 32, true, true, 1)
PAGED_DECODE(6, 2, USUAL, true, false, 2)
PAGED_DECODE(4, 3, USUAL, false, false, 2)
PAGED_DECODE(2, 3, USUAL, false, false, 4)
PAGED_DECODE(2, 2, USUAL, false, false, 6)
