// Norm, rope, gate, KV store and the conversion of rows to f16. Compiled once for all models.

// out[r] = x[r] / sqrt(mean(x[r]^2) + eps) * weight. One block a row; threads = 32 to 512, by the number of columns alone.
extern "C" __global__ void rms_norm(const float* x, const float* weight, float eps, int cols, float* out) {
    follow();
    __shared__ float sums[16];
    const float* row = x + (u64)blockIdx.x * cols;
    float* to = out + (u64)blockIdx.x * cols;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < cols; i += blockDim.x) sum = fmaf(row[i], row[i], sum);
    sum = lanes_sum(sum);
    if ((threadIdx.x & 31) == 0) sums[threadIdx.x >> 5] = sum;
    __syncthreads();
    float total = 0.0f;
    for (int i = 0; i < (int)(blockDim.x >> 5); i++) total += sums[i];
    float mean = total / (float)cols;
    // Squares that overflow would make the scale zero and hide the row: the difference is NaN then, and else zero.
    float scale = 1.0f / sqrtf(mean + eps) + (mean - mean);
    for (int i = threadIdx.x; i < cols; i += blockDim.x) to[i] = row[i] * scale * weight[i];
}

// The same for rows of at most 1,024 columns, a multiple of 4: one warp a row, which it holds.
extern "C" __global__ void rms_norm_short(const float* x, const float* weight, float eps, int rows, int cols, float* out) {
    follow();
    u64 r = (u64)blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
    int lane = threadIdx.x & 31, fours = cols / 4;
    if (r >= rows) return;
    const float4* row = (const float4*)(x + r * cols);
    float4* to = (float4*)(out + r * cols);
    float4 held[8];
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < 8; k++) {
        if (lane + 32 * k >= fours) break;
        float4 v = held[k] = row[lane + 32 * k];
        sum = fmaf(v.w, v.w, fmaf(v.z, v.z, fmaf(v.y, v.y, fmaf(v.x, v.x, sum))));
    }
    float mean = lanes_sum(sum) / (float)cols;
    float scale = 1.0f / sqrtf(mean + eps) + (mean - mean);
#pragma unroll
    for (int k = 0; k < 8; k++) {
        if (lane + 32 * k >= fours) break;
        float4 v = held[k], w = ((const float4*)weight)[lane + 32 * k];
        to[lane + 32 * k] = make_float4(v.x * scale * w.x, v.y * scale * w.y, v.z * scale * w.z, v.w * scale * w.w);
    }
}

#define MOST_PAIRS 256
struct Frequencies { float of[MOST_PAIRS]; };

// Rotates each head in place. One block a row: the angles are the same for all its heads. neox: halves, else adjacent pairs.
// Cosines and sines are multiplied by `magnitude`.
extern "C" __global__ void rope(float* x, int heads, int head_dim, int rotated, int first, int neox, float magnitude, Frequencies f) {
    follow();
    __shared__ float2 turn[MOST_PAIRS];
    int half = rotated / 2;
    int position = first + blockIdx.x;
    for (int j = threadIdx.x; j < half; j += blockDim.x) {
        float s, c;
        sincosf((float)position * f.of[j], &s, &c);
        turn[j] = make_float2(s * magnitude, c * magnitude);
    }
    __syncthreads();
    float* row = x + (u64)blockIdx.x * heads * head_dim;
    for (int i = threadIdx.x; i < heads * half; i += blockDim.x) {
        int head = i / half, j = i - head * half;
        float* p = row + head * head_dim;
        int a = neox ? j : 2 * j, b = neox ? j + half : 2 * j + 1;
        float s = turn[j].x, c = turn[j].y, u = p[a], v = p[b];
        p[a] = fmaf(u, c, -(v * s));
        p[b] = fmaf(u, s, v * c);
    }
}

extern "C" __global__ void gated_activation(const float* gate, const float* up, u64 elements, int activation, float* out) {
    follow();
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < elements) out[i] = activate(gate[i], activation) * up[i];
}

// One warp a head of K or V of a cell. kind: 0 f32, 1 f16, 2 int8 with a scale.
extern "C" __global__ void store_kv(const float* k, const float* v, u8* cells, int count, int kind, int kv_heads, int head_dim,
                                    int value_dim, u32 value_offset, u32 scales_offset, u32 cell_bytes) {
    follow();
    int warp = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5), lane = threadIdx.x & 31;
    if (warp >= count * kv_heads * 2) return;
    int head = warp % kv_heads, is_value = warp / kv_heads % 2, cell = warp / kv_heads / 2;
    int dim = is_value ? value_dim : head_dim;
    const float* from = (is_value ? v : k) + ((u64)cell * kv_heads + head) * dim;
    u8* at = cells + (u64)cell * cell_bytes;
    u8* to = at + (is_value ? value_offset : 0);
    if (kind == 0) {
        for (int i = lane; i < dim; i += 32) ((float*)to)[head * dim + i] = from[i];
    } else if (kind == 1) {
        for (int i = lane; i < dim; i += 32) ((u16*)to)[head * dim + i] = half_from(from[i]);
    } else {
        float largest = 0.0f;
        bool bad = false;
        for (int i = lane; i < dim; i += 32) {
            largest = fmaxf(largest, fabsf(from[i]));
            bad |= !(from[i] - from[i] == 0.0f);
        }
        largest = lanes_max(largest);
        float scale = largest / 127.0f;
        // Bytes have no NaN and no infinity: the scale tells, and the whole head reads as NaN.
        if (__ballot_sync(ALL_LANES, bad)) scale = __int_as_float(0x7fc00000);
        for (int i = lane; i < dim; i += 32) {
            float q = scale > 0.0f ? roundf(from[i] / scale) : 0.0f;
            ((signed char*)to)[head * dim + i] = (signed char)(int)fminf(fmaxf(q, -127.0f), 127.0f);
        }
        if (lane == 0) ((float*)(at + scales_offset))[is_value * kv_heads + head] = scale;
    }
}

// f32 rows to f16 rows padded with zeros to `stride`, each shrunk by a power of two that goes to `restore`. A block of 256 threads a row.
#define HELD_FOURS 4
extern "C" __global__ void __launch_bounds__(256) rows_to_halves(const float* x, int cols, int stride, u16* halves, float* restore) {
    follow();
    __shared__ float warp_largest[8];
    u64 row = blockIdx.x;
    const float* from = x + row * cols;
    u16* to = halves + row * stride;
    bool held = (cols & 3) == 0 && cols <= 4 * 256 * HELD_FOURS;
    float4 four[HELD_FOURS];
    float largest = 0.0f;
    if (held) {
#pragma unroll
        for (int k = 0; k < HELD_FOURS; k++) {
            int i = 4 * (threadIdx.x + 256 * k);
            four[k] = i < cols ? *(const float4*)(from + i) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            largest = fmaxf(largest, fmaxf(fmaxf(fabsf(four[k].x), fabsf(four[k].y)), fmaxf(fabsf(four[k].z), fabsf(four[k].w))));
        }
    } else {
        for (int i = threadIdx.x; i < cols; i += 256) largest = fmaxf(largest, fabsf(from[i]));
    }
    largest = lanes_max(largest);
    if ((threadIdx.x & 31) == 0) warp_largest[threadIdx.x >> 5] = largest;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < 8; w++) largest = fmaxf(largest, warp_largest[w]);
    float shrink, back;
    row_exponent(largest, shrink, back);
    if (held) {
#pragma unroll
        for (int k = 0; k < HELD_FOURS; k++) {
            int i = 4 * (threadIdx.x + 256 * k);
            uint2 pairs = make_uint2(half2_from(four[k].x * shrink, four[k].y * shrink), half2_from(four[k].z * shrink, four[k].w * shrink));
            if (i < stride) *(uint2*)(to + i) = pairs;
        }
    } else {
        for (int i = 2 * threadIdx.x; i < stride; i += 512) {
            float a = i < cols ? from[i] * shrink : 0.0f;
            float b = i + 1 < cols ? from[i + 1] * shrink : 0.0f;
            *(u32*)(to + i) = half2_from(a, b);
        }
    }
    if (threadIdx.x == 0) restore[row] = back;
}
