/* Stand-ins for the functions of NVIDIA's driver that kernels/cuda/driver.py calls. They record their arguments in
   `seen`, for tests to read. The structures repeat those of cuda.h. */
#include <string.h>

typedef struct { int id; char pad[4]; union { char all[64]; int allowed, cluster[3]; } value; } Attribute;
typedef struct {
    unsigned grid[3], block[3], shared_bytes;
    void* stream;
    Attribute* attributes;
    unsigned attribute_count;
} Config;

struct {
    unsigned grid[3], block[3], shared_bytes, attribute_count;
    int attribute, allowed, launches, context_set, asked_attribute, asked_value, refuse, carveout;
    int clusters, refuse_early, cluster[3], cooperative;
    void *stream, *function;
    char arguments[16], code[16], entry[32];
} seen;

int cuInit(unsigned flags) { return 0; }
int cuPointerGetAttribute(void* data, int attribute, unsigned long long pointer) { return 0; } /* for Triton's launchers */
int cuGetErrorString(int code, const char** text) { *text = "stand-in says no"; return 0; }
int cuCtxGetCurrent(void** context) { *context = seen.context_set ? &seen : 0; return 0; }
int cuDeviceGet(int* device, int ordinal) { *device = ordinal; return 0; }
int cuDevicePrimaryCtxRetain(void** context, int device) { *context = &seen; return 0; }
int cuCtxSetCurrent(void* context) { seen.context_set = context == &seen; return 0; }
int cuModuleLoadData(void** module, const void* code) {
    strncpy(seen.code, code, 15);
    *module = (void*)0x123456789abcdef0;
    return seen.refuse;
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
    strncpy(seen.entry, name, 31);
    *function = (void*)0x7fedcba987654321;
    return module == (void*)0x123456789abcdef0 ? 0 : 400;
}
int cuFuncSetAttribute(void* function, int attribute, int value) {
    if (attribute == 9) seen.carveout = value;
    else seen.asked_attribute = attribute, seen.asked_value = value;
    return 0;
}
int cuLaunchKernelEx(const Config* config, void* function, void** arguments, void** extra) {
    seen.launches++;
    if (!seen.context_set) return 201;
    memcpy(seen.grid, config->grid, 12), memcpy(seen.block, config->block, 12);
    seen.shared_bytes = config->shared_bytes, seen.stream = config->stream, seen.function = function;
    seen.attribute_count = config->attribute_count;
    seen.attribute = config->attributes[0].id, seen.allowed = config->attributes[0].value.allowed;
    memcpy(seen.arguments, arguments[0], 16);
    int early = 0;
    seen.cooperative = 0;
    for (unsigned n = 0; n < config->attribute_count; n++) {
        const Attribute* told = config->attributes + n;
        if (told->id == 6) early = told->value.allowed;
        if (told->id == 4) memcpy(seen.cluster, told->value.cluster, 12);
        if (told->id == 2) seen.cooperative = told->value.allowed;
    }
    if (early && seen.refuse_early) return seen.refuse_early;
    return extra ? 1 : seen.refuse;
}
int cuOccupancyMaxActiveClusters(int* clusters, void* function, const Config* config) {
    *clusters = config->attributes[0].id == 4 && config->attributes[0].value.cluster[0] == 4 ? seen.clusters : 0;
    return 0;
}
