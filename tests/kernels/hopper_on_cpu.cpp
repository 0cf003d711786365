// The source of a kernel for a CPU: a convolution's where its tile has COLUMNS, one of a panel where it has TAPS, else a
// residual unit's.
#ifdef COLUMNS
#ifdef TAPS
#include "panel.cu"
#else
#include "conv.cu"
#endif
#define ENTRY causal_conv(*static_cast<const ConvArgs*>(args))
#else
#include "unit.cu"
#define ENTRY residual_unit(*static_cast<const UnitArgs*>(args))
#endif

extern "C" void run(const void* args, const int* grid, int threads, int bytes, unsigned seed) {
    run_grid([=] { ENTRY; }, grid, threads, bytes, seed);
}
