// A residual unit's source for a CPU.
#include "unit.cu"

extern "C" void run(const void* args, const int* grid, int threads, int bytes, unsigned seed) {
    run_grid([=] { residual_unit(*static_cast<const UnitArgs*>(args)); }, grid, threads, bytes, seed);
}
