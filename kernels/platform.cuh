// The instructions behind the kernels, each in one function: everything that depends on the architecture is here.
// No header is included, so that NVRTC needs nothing beside itself.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define ALL_LANES 0xffffffffu
#define NEGATIVE_INFINITY __int_as_float(0xff800000)
#define DYNAMIC_SHARED(name) extern __shared__ __align__(1024) u8 name[]

// The first statement of every kernel: lets the next kernel of the stream be placed while this one runs, then waits until all before it
// have ended; nothing may be read or written earlier. Where launches do not ask for that, it does nothing.
__device__ __forceinline__ void follow() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ u16 half_from(float x) {
    u16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
    return h;
}

__device__ __forceinline__ float float_from(u16 h) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h));
    return x;
}

// Two halves are one u32 everywhere, the first element in the low bits.
__device__ __forceinline__ u32 half2_from(float low, float high) {
#if __CUDA_ARCH__ >= 800
    u32 both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
#else
    return (u32)half_from(low) | (u32)half_from(high) << 16;
#endif
}

__device__ __forceinline__ u32 half2_fma(u32 a, u32 b, u32 c) {
    u32 d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

__device__ __forceinline__ u32 half2_subtract(u32 a, u32 b) {
    u32 d;
    asm("sub.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}

// 2^x to about 2 ulp; 0 for minus infinity.
__device__ __forceinline__ float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// c += a b for a 16x16 tile of rows and a 16x8 tile of columns in f16, sums in f32.
__device__ __forceinline__ void multiply_add(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#if __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(b0));
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[2]), "r"(a[3]), "r"(b1));
#endif
}

__device__ __forceinline__ u32 shared_address(const void* p) {
    return (u32)__cvta_generic_to_shared(p);
}

// Four 8x8 tiles of halves; lane l gives the address of row l % 8 of tile l / 8.
__device__ __forceinline__ void load_tiles(u32 (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}

// The same, each tile transposed.
__device__ __forceinline__ void load_tiles_transposed(u32 (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}

// Sixteen bytes from global to shared memory, or zeros; asynchronous where the architecture can.
__device__ __forceinline__ void copy_async(void* to, const void* from, bool valid) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(valid ? 16 : 0)
                 : "memory");
#else
    *(uint4*)to = valid ? *(const uint4*)from : make_uint4(0, 0, 0, 0);
#endif
}

// The same, always copied.
__device__ __forceinline__ void copy_async(void* to, const void* from) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
#else
    *(uint4*)to = *(const uint4*)from;
#endif
}

__device__ __forceinline__ void copy_commit() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most `pending` of this thread's committed groups are still under way.
template <int pending> __device__ __forceinline__ void copy_wait() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
#endif
}

// Hopper's products of four warps, which read both sides from shared memory while the threads go on.
#if __CUDA_ARCH__ == 900
#define HAS_WIDE_PRODUCTS 1

// Describes rows of 64 halves whose chunks of 8 are swizzled, from an address that is a multiple of 1,024 bytes (and steps of 16 halves).
__device__ __forceinline__ u64 describe_rows(const void* tile) {
    u64 address = shared_address(tile);
    return (address & 0x3ffff) >> 4 | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

__device__ __forceinline__ void wide_begin() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

// What this thread wrote to shared memory is seen by the products that start after the next barrier.
__device__ __forceinline__ void publish_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ __forceinline__ void wide_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most `pending` of this warp's committed groups are still under way.
template <int pending> __device__ __forceinline__ void wide_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

// The sums of a product as it names them, and where they are.
#define SUMS_32 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define SUMS_64 SUMS_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define SUMS_OF_4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SUMS_OF_16(d, i) SUMS_OF_4(d, i), SUMS_OF_4(d, i + 4), SUMS_OF_4(d, i + 8), SUMS_OF_4(d, i + 12)
#define SUMS_OF_32(d, i) SUMS_OF_16(d, i), SUMS_OF_16(d, i + 16)
#define SUMS_OF_64(d) SUMS_OF_32(d, 0), SUMS_OF_32(d, 32)

// d += a b for 64 rows, 128 columns, 16 deep. Element 4 j + k of a thread is row lane / 4 + 8 (k / 2) of its warp's 16, column
// 8 j + 2 (lane % 4) + k % 2.
__device__ __forceinline__ void wide_multiply_add(float (&d)[64], u64 a, u64 b) {
    asm volatile(
        "{ .reg .pred p; setp.eq.u32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" SUMS_64 "}, %64, %65, p, 1, 1, 0, 0; }"
        : SUMS_OF_64(d)
        : "l"(a), "l"(b));
}

// Describes a tile of cells for a product that sums over cells: rows of 64 halves as in `describe_rows`; where there are more columns, each
// 64 of them are a block of 64 rows of their own.
__device__ __forceinline__ u64 describe_columns(const void* tile) {
    u64 address = shared_address(tile);
    return (address & 0x3ffff) >> 4 | 512ull << 16 | 64ull << 32 | 1ull << 62;
}

// Registers that a product reads or writes must not be moved across its start or its end.
template <int count> __device__ __forceinline__ void settle(float (&d)[count]) {
#pragma unroll
    for (int i = 0; i < count; i++) asm volatile("" : "+f"(d[i])::"memory");
}

template <int count> __device__ __forceinline__ void settle(u32 (&a)[count]) {
#pragma unroll
    for (int i = 0; i < count; i++) asm volatile("" : "+r"(a[i])::"memory");
}

// d = a b, or d += a b: 64 rows, 64 columns, 16 deep; a in registers (of each warp its 16 rows, as `multiply_add` has them).
__device__ __forceinline__ void wide_scores(float (&d)[32], const u32 (&a)[4], u64 b, int add) {
    asm volatile(
        "{ .reg .pred p; setp.ne.u32 p, %37, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" SUMS_32 "}, {%32, %33, %34, %35}, %36, p, 1, 1, 0; }"
        : SUMS_OF_32(d, 0)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

// d += a b with b as `describe_columns` tells: 64 rows, 128 columns.
__device__ __forceinline__ void wide_values(float (&d)[64], const u32 (&a)[4], u64 b) {
    asm volatile(
        "{ .reg .pred p; setp.ne.u32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" SUMS_64 "}, {%64, %65, %66, %67}, %68, p, 1, 1, 1; }"
        : SUMS_OF_64(d)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// The same for 64 columns.
__device__ __forceinline__ void wide_values(float (&d)[32], const u32 (&a)[4], u64 b) {
    asm volatile(
        "{ .reg .pred p; setp.ne.u32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" SUMS_32 "}, {%32, %33, %34, %35}, %36, p, 1, 1, 1; }"
        : SUMS_OF_32(d, 0)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// Threads of a block wait for each other's memory at counted barriers in shared memory: each phase ends after `arrivals` of them.
__device__ __forceinline__ void barrier_begin(u64* barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void barrier_arrive(u64* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Waits for the end of the phase of this parity.
__device__ __forceinline__ void barrier_wait(u64* barrier, u32 parity) {
    asm volatile(
        "{ .reg .pred ended; again: mbarrier.try_wait.parity.shared::cta.b64 ended, [%0], %1; @ended bra passed; bra again; passed: }" ::"r"(
            shared_address(barrier)),
        "r"(parity)
        : "memory");
}

// 256 threads of a larger block wait for each other, at named barrier 1.
__device__ __forceinline__ void meet() { asm volatile("bar.sync 1, 256;" ::: "memory"); }

// Named barriers of two times four warps: four wait, the other four only tell. (A kernel that uses barrier 1 so has no `meet`.)
__device__ __forceinline__ void turn_wait(int which) { asm volatile("bar.sync %0, 256;" ::"r"(which) : "memory"); }

__device__ __forceinline__ void turn_give(int which) { asm volatile("bar.arrive %0, 256;" ::"r"(which) : "memory"); }

// Four warps give registers away, or take them.
template <int each> __device__ __forceinline__ void keep_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(each));
}

template <int each> __device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(each));
}
#endif
