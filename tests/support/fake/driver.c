// A driver library that computes nothing, so that all calls to a driver run without a GPU. A missing function of the list that the program calls is
// added by the test as one that succeeds. FAKE_CUDA_VERSION is its version, FAKE_CUDA_ARCH the compute capability of its device. FAKE_CUDA_FAIL
// names a call and how often it goes well before it fails with an error: `cuLaunchKernelEx:3:700`. What is made and destroyed is counted, and
// what is left is written to FAKE_CUDA_LEFT at the end.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int streams, events, modules, memory, hosts;

static int number(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}

static int fails(const char *call) {
    static int calls;
    const char *text = getenv("FAKE_CUDA_FAIL");
    size_t length = strlen(call);
    if (!text || strncmp(text, call, length) || text[length] != ':') return 0;
    int well = 0, error = 0;
    sscanf(text + length, ":%d:%d", &well, &error);
    return __sync_fetch_and_add(&calls, 1) >= well ? error : 0;
}

__attribute__((destructor)) static void tell(void) {
    const char *path = getenv("FAKE_CUDA_LEFT");
    FILE *file = path ? fopen(path, "w") : NULL;
    if (!file) return;
    fprintf(file, "streams %d events %d modules %d memory %d hosts %d\n", streams, events, modules, memory, hosts);
    fclose(file);
}

static int make(void **to, int *count) {
    *to = malloc(1);
    __sync_fetch_and_add(count, 1);
    return 0;
}

static int end(int *count) {
    __sync_fetch_and_sub(count, 1);
    return 0;
}

int cuDriverGetVersion(int *to) { *to = number("FAKE_CUDA_VERSION", 12000); return 0; }
int cuDeviceGetCount(int *to) { *to = 1; return 0; }
int cuDeviceGet(int *to, int ordinal) { *to = ordinal; return 0; }
int cuDeviceGetName(char *to, int bytes, int device) { (void)device; return snprintf(to, bytes, "Fake GPU") < 0; }
int cuDeviceGetUuid_v2(char *to, int device) { memset(to, device + 1, 16); return 0; }
int cuDeviceGetPCIBusId(char *to, int bytes, int device) { return snprintf(to, bytes, "0000:%02x:00.0", device + 1) < 0; }
int cuDeviceTotalMem_v2(size_t *to, int device) { (void)device; *to = 8ull << 30; return 0; }
int cuDeviceGetAttribute(int *to, int which, int device) {
    int arch = number("FAKE_CUDA_ARCH", 86);
    (void)device;
    *to = which == 75 ? arch / 10 : which == 76 ? arch % 10 : which == 16 ? 30 : which == 97 ? 99 << 10 : 0;
    return 0;
}
int cuDevicePrimaryCtxRetain(void **to, int device) { (void)device; *to = &streams; return 0; }
int cuMemGetInfo_v2(size_t *rest, size_t *all) { *rest = 7ull << 30; *all = 8ull << 30; return 0; }
int cuMemAlloc_v2(unsigned long long *to, size_t bytes) {
    static unsigned long long next = 1ull << 40;
    int error = fails("cuMemAlloc_v2");
    if (error) return error;
    *to = __sync_fetch_and_add(&next, (bytes + 0xfffff) & ~0xfffffull);
    __sync_fetch_and_add(&memory, 1);
    return 0;
}
int cuMemFree_v2(unsigned long long at) { (void)at; return end(&memory); }
int cuMemHostAlloc(void **to, size_t bytes, unsigned flags) { (void)flags; *to = malloc(bytes); __sync_fetch_and_add(&hosts, 1); return 0; }
int cuMemFreeHost(void *at) { free(at); return end(&hosts); }
int cuMemHostGetDevicePointer_v2(unsigned long long *to, void *host, unsigned flags) { (void)flags; *to = (unsigned long long)host; return 0; }
int cuMemcpyDtoH_v2(void *to, unsigned long long from, size_t bytes) { (void)from; memset(to, 0xa7, bytes); return 0; }
int cuMemcpyHtoDAsync_v2(unsigned long long to, const void *from, size_t bytes, void *stream) {
    (void)to, (void)from, (void)bytes, (void)stream;
    return fails("cuMemcpyHtoDAsync_v2");
}
int cuStreamCreate(void **to, unsigned flags) { (void)flags; return make(to, &streams); }
int cuStreamDestroy_v2(void *stream) { free(stream); return end(&streams); }
int cuStreamQuery(void *stream) { (void)stream; return fails("cuStreamQuery"); }
int cuEventCreate(void **to, unsigned flags) { (void)flags; return make(to, &events); }
int cuEventDestroy_v2(void *event) { free(event); return end(&events); }
int cuEventElapsedTime(float *to, void *from, void *until) { (void)from, (void)until; *to = 1; return 0; }
int cuModuleLoadDataEx(void **to, const char *image, unsigned count, int *options, void **values) {
    (void)count, (void)options;
    if (strncmp(image, "\x7f" "ELF of ", 8)) {
        snprintf(values[0], 100, "no image");
        return 200;
    }
    return make(to, &modules);
}
int cuModuleUnload(void *module) { free(module); return end(&modules); }
int cuModuleGetFunction(void **to, void *module, const char *name) { (void)name; *to = module; return 0; }
int cuFuncGetAttribute(int *to, int which, void *function) { (void)which, (void)function; *to = 0; return 0; }
int cuLaunchKernelEx(const void *config, void *function, void **arguments, void **extra) {
    (void)config, (void)function, (void)arguments, (void)extra;
    return fails("cuLaunchKernelEx");
}
int cuGetErrorName(int error, const char **to) { *to = error == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : error == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR"; return 0; }
int cuGetErrorString(int error, const char **to) { (void)error; *to = "a fake error"; return 0; }
int cuDeviceCanAccessPeer(int *to, int a, int b) { (void)a, (void)b; *to = 0; return 0; }
