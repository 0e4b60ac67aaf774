// Attention in f32 for any head size and cell type: decode, split over tiles of 64 cells, and the prompts that have no tensor-core kernel.
// A tile gives its own maximum, sum and weighted values; they are merged into the running state in ascending order.

#define GROUP 8
#define THREADS 128

// One element of K or V as f32.
__device__ __forceinline__ float cell_element(const u8* cell, int kind, u32 offset, int head, int dim, int i, u32 scales, int scale_at) {
    const u8* from = cell + offset;
    int at = head * dim + i;
    if (kind == 0) return ((const float*)from)[at];
    if (kind == 1) return float_from(((const u16*)from)[at]);
    return (float)((const signed char*)from)[at] * ((const float*)(cell + scales))[scale_at];
}

struct Heads {
    int kind;
    int heads;
    int kv_heads;
    int head_dim;
    int value_dim;
    float scale;
};

// Cells of a tile that are brought to shared memory at a time.
__device__ __forceinline__ int cells_at_once(int dim) { return dim <= 128 ? 64 : 32; }

// The tile's result for up to GROUP heads that read the same key head. Shared memory: q [GROUP][head_dim], scores [64][GROUP], then
// cells [.][dim + 1]. Thread t holds element t (and t + 128, ..) of the weighted values.
struct TileResult { float largest[GROUP], sum[GROUP]; };

#define MOST_ELEMENTS 4

__device__ __forceinline__ void attend_tile(const Heads& of, const Cells& cells, int kv_head, int heads, int tile, int sees, float* shared,
                                            TileResult& result, float (&value)[MOST_ELEMENTS][GROUP]) {
    const float* q = shared;
    float* scores = shared + GROUP * of.head_dim;
    float* stage = scores + ATTENTION_TILE * GROUP;
    int first = tile * ATTENTION_TILE;
    const CellSpan& span = span_of(cells, first);
    int count = span.first + span.count - first;
    if (count > sees - first) count = sees - first;
    if (count > ATTENTION_TILE) count = ATTENTION_TILE;
    const u8* at = span.at + (u64)(first - span.first) * cells.cell_bytes;

    int once = cells_at_once(of.head_dim), pitch = of.head_dim + 1;
    for (int start = 0; start < count; start += once) {
        int n = count - start < once ? count - start : once;
        __syncthreads();
        for (int i = threadIdx.x; i < n * of.head_dim; i += THREADS) {
            int c = i / of.head_dim, d = i % of.head_dim;
            stage[c * pitch + d] = cell_element(at + (u64)(start + c) * cells.cell_bytes, of.kind, 0, kv_head, of.head_dim, d,
                                                cells.scales_offset, kv_head);
        }
        __syncthreads();
        for (int i = threadIdx.x; i < n * GROUP; i += THREADS) {
            int c = i % n, h = i / n;
            if (h >= heads) continue;
            const float* k = stage + c * pitch;
            const float* of_head = q + h * of.head_dim;
            float dot = 0.0f;
#pragma unroll 4
            for (int d = 0; d < of.head_dim; d++) dot = fmaf(of_head[d], k[d], dot);
            scores[(start + c) * GROUP + h] = dot * of.scale;
        }
    }
    __syncthreads();
#pragma unroll
    for (int h = 0; h < GROUP; h++) {
        float largest = NEGATIVE_INFINITY;
        if (h < heads) {
            for (int c = threadIdx.x & 31; c < count; c += 32) largest = fmaxf(largest, scores[c * GROUP + h]);
            largest = lanes_max(largest);
        }
        result.largest[h] = largest;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < count * GROUP; i += THREADS) {
        int h = i % GROUP;
        float largest = NEGATIVE_INFINITY;
#pragma unroll
        for (int k = 0; k < GROUP; k++) {
            if (k == h) largest = result.largest[k];
        }
        scores[i] = h < heads ? power_of_two((scores[i] - largest) * LOG2_E) : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int h = 0; h < GROUP; h++) {
        float sum = 0.0f;
        for (int c = threadIdx.x & 31; c < count; c += 32) sum += scores[c * GROUP + h];
        result.sum[h] = lanes_sum(sum);
    }

#pragma unroll
    for (int e = 0; e < MOST_ELEMENTS; e++)
#pragma unroll
        for (int h = 0; h < GROUP; h++) value[e][h] = 0.0f;
    once = cells_at_once(of.value_dim), pitch = of.value_dim;
    for (int start = 0; start < count; start += once) {
        int n = count - start < once ? count - start : once;
        __syncthreads();
        for (int i = threadIdx.x; i < n * of.value_dim; i += THREADS) {
            int c = i / of.value_dim, d = i % of.value_dim;
            stage[c * pitch + d] = cell_element(at + (u64)(start + c) * cells.cell_bytes, of.kind, cells.value_offset, kv_head, of.value_dim, d,
                                                cells.scales_offset, of.kv_heads + kv_head);
        }
        __syncthreads();
#pragma unroll
        for (int e = 0; e < MOST_ELEMENTS; e++) {
            int d = threadIdx.x + e * THREADS;
            if (d >= of.value_dim) break;
            for (int c = 0; c < n; c++) {
                float v = stage[c * pitch + d];
#pragma unroll
                for (int h = 0; h < GROUP; h++) value[e][h] = fmaf(scores[(start + c) * GROUP + h], v, value[e][h]);
            }
        }
    }
}

// The factors with which a state and a tile's result merge into one whose largest score is `both`.
__device__ __forceinline__ float kept_share(float largest, float both) {
    return largest == NEGATIVE_INFINITY ? 0.0f : power_of_two((largest - both) * LOG2_E);
}

__device__ __forceinline__ void load_queries(const Heads& of, const float* q, u64 row, int head, int heads, float* shared) {
    for (int i = threadIdx.x; i < GROUP * of.head_dim; i += THREADS) {
        shared[i] = i / of.head_dim < heads ? q[(row * of.heads + head) * of.head_dim + i] : 0.0f;
    }
}

// Where block y of `kv_heads * ceil(group / GROUP)` works: its key head, first query head and number of heads.
__device__ __forceinline__ void heads_of_block(const Heads& of, int block, int& kv_head, int& head, int& heads) {
    int group = of.heads / of.kv_heads, parts = (group + GROUP - 1) / GROUP;
    kv_head = block / parts;
    int from = block % parts * GROUP;
    heads = group - from < GROUP ? group - from : GROUP;
    head = kv_head * group + from;
}

// Decode: the results of tiles first_tile + blockIdx.x, to f32 [rows][heads][tiles][2 + value_dim]. Row r sees cells 0..=first + r.
extern "C" __global__ void __launch_bounds__(THREADS, 2) attend_tiles(const float* q, Heads of, Cells cells, int first, int first_tile,
                                                                   int tiles, float* results) {
    follow();
    DYNAMIC_SHARED(bytes);
    float* shared = (float*)bytes;
    int kv_head, head, heads, tile = first_tile + blockIdx.x;
    heads_of_block(of, blockIdx.y, kv_head, head, heads);
    u64 row = blockIdx.z;
    int sees = first + (int)row + 1, end = cells_end(cells);
    if (sees > end) sees = end;
    if (tile * ATTENTION_TILE >= sees) return;
    load_queries(of, q, row, head, heads, shared);
    TileResult result;
    float value[MOST_ELEMENTS][GROUP];
    attend_tile(of, cells, kv_head, heads, tile, sees, shared, result, value);
#pragma unroll
    for (int h = 0; h < GROUP; h++) {
        if (h >= heads) break;
        float* to = results + ((row * of.heads + head + h) * tiles + blockIdx.x) * (2 + of.value_dim);
        if (threadIdx.x == 0) to[0] = result.largest[h], to[1] = result.sum[h];
#pragma unroll
        for (int e = 0; e < MOST_ELEMENTS; e++) {
            int d = threadIdx.x + e * THREADS;
            if (d < of.value_dim) to[2 + d] = value[e][h];
        }
    }
}

// Brings cells over the link from host memory to work memory, 16 KiB a block and round: whole lines of 128 bytes, each read once, whatever
// the attention kernels then do with them.
#define BRING_THREADS 256
#define BRING_EACH 4

extern "C" __global__ void __launch_bounds__(BRING_THREADS) bring_cells(const uint4* from, uint4* to, u64 chunks) {
    follow();
    u64 round = (u64)gridDim.x * (BRING_THREADS * BRING_EACH);
    for (u64 at = (u64)blockIdx.x * (BRING_THREADS * BRING_EACH) + threadIdx.x; at < chunks; at += round) {
        uint4 held[BRING_EACH];
#pragma unroll
        for (int i = 0; i < BRING_EACH; i++) {
            u64 chunk = at + i * BRING_THREADS;
            held[i] = chunk < chunks ? from[chunk] : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (int i = 0; i < BRING_EACH; i++) {
            u64 chunk = at + i * BRING_THREADS;
            if (chunk < chunks) to[chunk] = held[i];
        }
    }
}

// Merges tiles in ascending order into the state, or from nothing, and ends as told: out null keeps the state. Block (head, row).
extern "C" __global__ void __launch_bounds__(THREADS, 1) merge_tiles(const float* results, Heads of, Cells cells, int first, int first_tile,
                                                                  int tiles, int resume, float* state, float* out) {
    follow();
    __shared__ float keep[THREADS], take[THREADS], sums[THREADS], warp_largest[THREADS / 32];
    u64 row = blockIdx.y;
    int head = blockIdx.x, each = 2 + of.value_dim, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    int sees = first + (int)row + 1, end = cells_end(cells);
    if (sees > end) sees = end;
    int mine = (sees - first_tile * ATTENTION_TILE + ATTENTION_TILE - 1) / ATTENTION_TILE;
    if (mine > tiles) mine = tiles;
    float* kept = state + (row * of.heads + head) * each;
    const float* from = results + (row * of.heads + head) * (u64)tiles * each;
    float largest = resume ? kept[0] : NEGATIVE_INFINITY, sum = resume ? kept[1] : 0.0f;
    float value[MOST_ELEMENTS];
#pragma unroll
    for (int e = 0; e < MOST_ELEMENTS; e++) {
        int d = threadIdx.x + e * THREADS;
        value[e] = resume && d < of.value_dim ? kept[2 + d] : 0.0f;
    }
    // The largest score before and after each tile is a running maximum: all tiles' factors at once, then the sums in order.
    for (int start = 0; start < mine; start += THREADS) {
        int n = mine - start < THREADS ? mine - start : THREADS;
        const float* tile = from + (u64)(start + threadIdx.x) * each;
        bool there = (int)threadIdx.x < n;
        float own = there ? tile[0] : NEGATIVE_INFINITY;
        float after = own;
#pragma unroll
        for (int step = 1; step < 32; step <<= 1) {
            float other = __shfl_sync(ALL_LANES, after, lane >= step ? lane - step : lane);
            if (lane >= step) after = fmaxf(after, other);
        }
        __syncthreads();
        if (lane == 31) warp_largest[warp] = after;
        __syncthreads();
        float before_warp = largest;
        for (int w = 0; w < warp; w++) before_warp = fmaxf(before_warp, warp_largest[w]);
        float before = __shfl_sync(ALL_LANES, after, lane > 0 ? lane - 1 : 0);
        before = lane > 0 ? fmaxf(before, before_warp) : before_warp;
        after = fmaxf(after, before_warp);
        keep[threadIdx.x] = kept_share(before, after);
        take[threadIdx.x] = kept_share(own, after);
        sums[threadIdx.x] = there ? tile[1] : 0.0f;
        for (int w = 0; w < THREADS / 32; w++) largest = fmaxf(largest, warp_largest[w]);
        __syncthreads();
        for (int t = 0; t < n; t++) sum = fmaf(sums[t], take[t], sum * keep[t]);
#pragma unroll
        for (int e = 0; e < MOST_ELEMENTS; e++) {
            int d = threadIdx.x + e * THREADS;
            if (d >= of.value_dim) break;
            const float* element = from + (u64)start * each + 2 + d;
#pragma unroll 8
            for (int t = 0; t < n; t++) value[e] = fmaf(element[(u64)t * each], take[t], value[e] * keep[t]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int e = 0; e < MOST_ELEMENTS; e++) {
        int d = threadIdx.x + e * THREADS;
        if (d >= of.value_dim) break;
        if (out) out[(row * of.heads + head) * of.value_dim + d] = value[e] / sum;
        else kept[2 + d] = value[e];
    }
    if (!out && threadIdx.x == 0) kept[0] = largest, kept[1] = sum;
}

// A prompt's rows one by one: block (row, heads), tiles in ascending order.
extern "C" __global__ void __launch_bounds__(THREADS, 2) attend_rows(const float* q, Heads of, Cells cells, int first, int resume, float* state,
                                                                  float* out) {
    follow();
    DYNAMIC_SHARED(bytes);
    float* shared = (float*)bytes;
    int kv_head, head, heads;
    heads_of_block(of, blockIdx.y, kv_head, head, heads);
    u64 row = blockIdx.x;
    int sees = first + (int)row + 1, end = cells_end(cells), each = 2 + of.value_dim;
    if (sees > end) sees = end;
    load_queries(of, q, row, head, heads, shared);
    float* kept = state + (row * of.heads + head) * each;
    float largest[GROUP], sum[GROUP], value[MOST_ELEMENTS][GROUP];
#pragma unroll
    for (int h = 0; h < GROUP; h++) {
        bool there = resume && h < heads;
        largest[h] = there ? kept[h * each] : NEGATIVE_INFINITY;
        sum[h] = there ? kept[h * each + 1] : 0.0f;
#pragma unroll
        for (int e = 0; e < MOST_ELEMENTS; e++) {
            int d = threadIdx.x + e * THREADS;
            value[e][h] = there && d < of.value_dim ? kept[h * each + 2 + d] : 0.0f;
        }
    }
    __syncthreads();
    for (int tile = cells.span[0].first / ATTENTION_TILE; tile * ATTENTION_TILE < sees; tile++) {
        TileResult result;
        float more[MOST_ELEMENTS][GROUP];
        attend_tile(of, cells, kv_head, heads, tile, sees, shared, result, more);
#pragma unroll
        for (int h = 0; h < GROUP; h++) {
            float both = fmaxf(largest[h], result.largest[h]);
            float keep = kept_share(largest[h], both), take = kept_share(result.largest[h], both);
            largest[h] = both;
            sum[h] = fmaf(result.sum[h], take, sum[h] * keep);
#pragma unroll
            for (int e = 0; e < MOST_ELEMENTS; e++) value[e][h] = fmaf(more[e][h], take, value[e][h] * keep);
        }
    }
    __syncthreads();
#pragma unroll
    for (int h = 0; h < GROUP; h++) {
        if (h >= heads) break;
        if (!out && threadIdx.x == 0) kept[h * each] = largest[h], kept[h * each + 1] = sum[h];
#pragma unroll
        for (int e = 0; e < MOST_ELEMENTS; e++) {
            int d = threadIdx.x + e * THREADS;
            if (d >= of.value_dim) break;
            if (out) out[(row * of.heads + head + h) * of.value_dim + d] = value[e][h] / sum[h];
            else kept[h * each + 2 + d] = value[e][h];
        }
    }
}
