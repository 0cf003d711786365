// One kernel's source for a CPU: SOURCE and KERNEL say which.
#include SOURCE

template <class Arguments>
void call(void (*kernel)(const Arguments), const void* args) { kernel(*static_cast<const Arguments*>(args)); }

extern "C" void run(const void* args, const int* grid, int threads, int bytes, unsigned seed) {
    run_grid([=] { call(KERNEL, args); }, grid, threads, bytes, seed);
}
