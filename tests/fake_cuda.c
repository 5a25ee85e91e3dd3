/* A libcuda.so.1 without a GPU: what kvikio asks of one, with "device" memory that is host memory.

   A device pointer is a host address moved out of the address space, so that nothing but a copy by this library can
   reach what it points to. There is one device with one context. Copies are done at once; streams that would not wait
   for the default one are refused. */

#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define MOVED (1ull << 47)
#define SUCCESS 0
#define INVALID_VALUE 1
#define NOT_SUPPORTED 801

enum { CONTEXT = 1, MEMORY_TYPE = 2, DEVICE_POINTER = 3, DEVICE_ORDINAL = 9 };
enum { HOST = 1, DEVICE = 2 };

typedef unsigned long long pointer;

static char primary, stream;
static _Thread_local void *contexts[64];
static _Thread_local int depth;

static void *reach(pointer at) { return (void *)(at & ~MOVED); }
static int on_device(pointer at) { return (at & MOVED) != 0; }

EXPORT int cuDriverGetVersion(int *version) { *version = 12000; return SUCCESS; }
EXPORT int cuDeviceGet(int *device, int ordinal) { *device = 0; return ordinal ? INVALID_VALUE : SUCCESS; }
EXPORT int cuDeviceGetCount(int *count) { *count = 1; return SUCCESS; }
EXPORT int cuDeviceGetAttribute(int *value, int which, int device) {
    *value = 0;
    return device || which < 0 ? INVALID_VALUE : SUCCESS;
}
EXPORT int cuDevicePrimaryCtxRetain(void **context, int device) {
    *context = &primary;
    return device ? INVALID_VALUE : SUCCESS;
}
EXPORT int cuDevicePrimaryCtxRelease_v2(int device) { return device ? INVALID_VALUE : SUCCESS; }

EXPORT int cuGetErrorName(int error, const char **name) {
    *name = error == INVALID_VALUE ? "CUDA_ERROR_INVALID_VALUE" : "CUDA_ERROR";
    return SUCCESS;
}
EXPORT int cuGetErrorString(int error, const char **text) { return cuGetErrorName(error, text); }

EXPORT int cuCtxGetCurrent(void **context) { *context = depth ? contexts[depth - 1] : 0; return SUCCESS; }
EXPORT int cuCtxGetDevice(int *device) { *device = 0; return SUCCESS; }
EXPORT int cuCtxPushCurrent_v2(void *context) {
    if (context != &primary || depth == 64) return INVALID_VALUE;
    contexts[depth++] = context;
    return SUCCESS;
}
EXPORT int cuCtxPopCurrent_v2(void **context) {
    if (!depth) return INVALID_VALUE;
    *context = contexts[--depth];
    return SUCCESS;
}

EXPORT int cuMemAlloc_v2(pointer *at, size_t size) {
    void *memory = malloc(size ? size : 1);
    *at = (pointer)memory | MOVED;
    return memory ? SUCCESS : INVALID_VALUE;
}
EXPORT int cuMemFree_v2(pointer at) { free(reach(at)); return SUCCESS; }
EXPORT int cuMemHostAlloc(void **at, size_t size, unsigned flags) {
    *at = malloc(size);
    return *at && flags < 8 ? SUCCESS : INVALID_VALUE;
}
EXPORT int cuMemFreeHost(void *at) { free(at); return SUCCESS; }
EXPORT int cuMemHostRegister_v2(void *at, size_t size, unsigned flags) {
    return at && size && flags < 16 ? SUCCESS : INVALID_VALUE;
}
EXPORT int cuMemHostUnregister(void *at) { return at ? SUCCESS : INVALID_VALUE; }
EXPORT int cuMemGetAddressRange_v2(pointer *base, size_t *size, pointer at) {
    *base = at;
    *size = 1;
    return on_device(at) ? SUCCESS : INVALID_VALUE;
}

EXPORT int cuPointerGetAttribute(void *value, int which, pointer at) {
    switch (which) {
    case MEMORY_TYPE: *(unsigned *)value = on_device(at) ? DEVICE : 0; return SUCCESS;
    case CONTEXT: *(void **)value = &primary; break;
    case DEVICE_POINTER: *(pointer *)value = at; break;
    case DEVICE_ORDINAL: *(int *)value = 0; break;
    default: return INVALID_VALUE;
    }
    return on_device(at) ? SUCCESS : INVALID_VALUE;
}
EXPORT int cuPointerGetAttributes(unsigned n, const int *which, void **values, pointer at) {
    for (unsigned i = 0; i < n; i++)
        if (cuPointerGetAttribute(values[i], which[i], at)) return INVALID_VALUE;
    return SUCCESS;
}

EXPORT int cuMemcpyAsync(pointer to, pointer from, size_t size, void *on) {
    if (on && on != &stream) return INVALID_VALUE;
    memcpy(reach(to), reach(from), size);
    return SUCCESS;
}
EXPORT int cuMemcpyHtoDAsync_v2(pointer to, const void *from, size_t size, void *on) {
    return on_device(to) ? cuMemcpyAsync(to, (pointer)from, size, on) : INVALID_VALUE;
}
EXPORT int cuMemcpyDtoHAsync_v2(void *to, pointer from, size_t size, void *on) {
    return on_device(from) ? cuMemcpyAsync((pointer)to, from, size, on) : INVALID_VALUE;
}

EXPORT int cuStreamCreate(void **made, unsigned flags) {
    *made = &stream;
    return flags ? NOT_SUPPORTED : SUCCESS;
}
EXPORT int cuStreamDestroy_v2(void *on) { return on == &stream ? SUCCESS : INVALID_VALUE; }
EXPORT int cuStreamSynchronize(void *on) { return on && on != &stream ? INVALID_VALUE : SUCCESS; }

/* Looked up, but not needed by what is tested. */
#define LEFT_OUT(name) EXPORT int name(void) { return NOT_SUPPORTED; }
LEFT_OUT(cuCtxCreate_v2)
LEFT_OUT(cuCtxCreate_v4)
LEFT_OUT(cuCtxDestroy_v2)
LEFT_OUT(cuEventCreate)
LEFT_OUT(cuEventDestroy_v2)
LEFT_OUT(cuEventQuery)
LEFT_OUT(cuEventRecord)
LEFT_OUT(cuEventSynchronize)
LEFT_OUT(cuLaunchHostFunc)
