// One kernel's source for a CPU: SOURCE, KERNEL and ARGS say which.
#include <algorithm>

#include SOURCE

extern "C" void run(const void* args, const int* grid, int threads, int cluster, int shared_bytes, unsigned seed) {
    run_grid([=] { KERNEL(*static_cast<const ARGS*>(args)); }, grid, threads, cluster, shared_bytes, seed);
}
