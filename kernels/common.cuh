// What several kernels share. Everything is compiled without contraction of products and sums: a fused multiply-add is written
// as `fmaf`, so that a value never depends on the kernel variant that computed it.

__device__ __forceinline__ float lanes_sum(float x) {
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) x += __shfl_xor_sync(ALL_LANES, x, step);
    return x;
}

__device__ __forceinline__ float lanes_max(float x) {
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, step));
    return x;
}

// The gate function: 0 is SiLU.
__device__ __forceinline__ float activate(float x, int activation) {
    return activation == 0 ? x / (1.0f + expf(-x)) : x;
}

// The power of two that brings a row with this largest magnitude below 2^11, and its inverse: f16 then keeps 24 bits below the
// largest element in its normal range.
__device__ __forceinline__ void row_exponent(float largest, float& shrink, float& restore) {
    int e = __float_as_int(largest) >> 23 & 255;
    e = e < 11 ? 11 : e > 253 ? 253 : e;
    shrink = __int_as_float((264 - e) << 23);
    restore = __int_as_float((e - 10) << 23);
}

// A table of expert blobs passed by value; ids ascend.
#define TABLE_EXPERTS 256
struct ExpertTable {
    u64 blob[TABLE_EXPERTS];
    u16 id[TABLE_EXPERTS];
    int count;
};

// The place of an expert in the table, or -1.
__device__ __forceinline__ int find_expert(const ExpertTable& table, u32 id) {
    int low = 0, high = table.count;
    while (low < high) {
        int middle = (low + high) >> 1;
        if (table.id[middle] < id) low = middle + 1;
        else high = middle;
    }
    return low < table.count && table.id[low] == id ? low : -1;
}
