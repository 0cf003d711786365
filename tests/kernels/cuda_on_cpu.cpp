// One kernel's source for a CPU: SOURCE and KERNEL say which.
#include <algorithm>

#include SOURCE

template <class Arguments>
void call(void (*kernel)(const Arguments), const void* args) { kernel(*static_cast<const Arguments*>(args)); }

extern "C" void run(
    const void* args, const int* grid, int threads, int cluster, int together, int shared_bytes, unsigned seed
) {
    run_grid([=] { call(KERNEL, args); }, grid, threads, cluster, together, shared_bytes, seed);
}
