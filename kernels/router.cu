// Choice of experts, the table of who goes where, and the sums over experts.

// One warp a row: scores, the top_k best (ties to the lower id), their weights, of at most 32 EACH experts. scores: 0 softmax, 1 sigmoid.
template <int EACH>
__device__ __forceinline__ void route_row(const float* from, u64 row, int experts, int top_k, int scores, int normalise, float scale, u32* ids,
                                          float* weights) {
    int lane = threadIdx.x & 31;
    float score[EACH];
    float largest = NEGATIVE_INFINITY;
    // An expert without a number is never chosen, so that the choice alone would hide it.
    bool bad = false;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int e = i * 32 + lane;
        score[i] = e < experts ? from[e] : NEGATIVE_INFINITY;
        largest = fmaxf(largest, score[i]);
        if (e < experts) bad |= !(score[i] - score[i] == 0.0f);
    }
    bad = __ballot_sync(ALL_LANES, bad) != 0;
    if (scores == 0) {
        largest = lanes_max(largest);
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            bool there = i * 32 + lane < experts;
            score[i] = there ? expf(score[i] - largest) : NEGATIVE_INFINITY;
            if (there) sum += score[i];
        }
        sum = lanes_sum(sum);
#pragma unroll
        for (int i = 0; i < EACH; i++) score[i] = score[i] / sum;
    } else {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            if (i * 32 + lane < experts) score[i] = 1.0f / (1.0f + expf(-score[i]));
        }
    }
    float total = 0.0f, mine = 0.0f;
    for (int k = 0; k < top_k; k++) {
        float best = NEGATIVE_INFINITY;
        int at = 1 << 20;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            if (score[i] > best) {
                best = score[i];
                at = i * 32 + lane;
            }
        }
#pragma unroll
        for (int step = 16; step > 0; step >>= 1) {
            float other = __shfl_xor_sync(ALL_LANES, best, step);
            int where = __shfl_xor_sync(ALL_LANES, at, step);
            if (other > best || (other == best && where < at)) {
                best = other;
                at = where;
            }
        }
        // Scores that are not numbers are never the best: an id stands in, and the weights tell.
        if (at >= experts) {
            at = k;
            best = 0.0f;
        }
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            if (at == i * 32 + lane) score[i] = NEGATIVE_INFINITY;
        }
        total += best;
        if (lane == k) mine = best;
        if (lane == 0) ids[row * top_k + k] = (u32)at;
    }
    if (lane < top_k) {
        if (normalise) mine = mine / fmaxf(total, 6.103515625e-5f);
        weights[row * top_k + lane] = bad ? __int_as_float(0x7fc00000) : mine * scale;
    }
}

// At most 1,024 experts.
extern "C" __global__ void route(const float* logits, int rows, int experts, int top_k, int scores, int normalise, float scale,
                                 u32* ids, float* weights) {
    follow();
    u64 row = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
    if (row >= rows) return;
    const float* from = logits + row * experts;
    if (experts <= 128) route_row<4>(from, row, experts, top_k, scores, normalise, scale, ids, weights);
    else if (experts <= 512) route_row<16>(from, row, experts, top_k, scores, normalise, scale, ids, weights);
    else route_row<32>(from, row, experts, top_k, scores, normalise, scale, ids, weights);
}

// Adds the entries' experts, of 32 WORDS, to a set: each thread gathers its own first.
template <int WORDS> __device__ __forceinline__ void add_to_set(const u32* ids, int entries, u32* set) {
    u32 own[WORDS];
#pragma unroll
    for (int w = 0; w < WORDS; w++) own[w] = 0;
    for (int i = threadIdx.x; i < entries; i += blockDim.x) {
        u32 id = ids[i];
#pragma unroll
        for (int w = 0; w < WORDS; w++) own[w] |= id >> 5 == w ? 1u << (id & 31) : 0u;
    }
#pragma unroll
    for (int w = 0; w < WORDS; w++) {
#pragma unroll
        for (int step = 16; step > 0; step >>= 1) own[w] |= __shfl_xor_sync(ALL_LANES, own[w], step);
        if ((threadIdx.x & 31) == 0 && own[w]) atomicOr(&set[w], own[w]);
    }
}

// Block e < experts lists the entries of expert e, ascending; the last block writes the set of experts that any entry names. Each warp has a
// stretch of the entries.
extern "C" __global__ void __launch_bounds__(1024) group(const u32* ids, int entries, int experts, u32* groups, u64* routed) {
    follow();
    __shared__ u32 warp_below[32];
    __shared__ u32 warp_mine[32];
    __shared__ u32 set[32];
    int warps = blockDim.x >> 5, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    u32 e = blockIdx.x;
    if (e == (u32)experts) {
        if (threadIdx.x < 32) set[threadIdx.x] = 0;
        __syncthreads();
        if (experts <= 128) add_to_set<4>(ids, entries, set);
        else add_to_set<32>(ids, entries, set);
        __syncthreads();
        if (routed && (int)threadIdx.x < (experts + 63) / 64) {
            routed[threadIdx.x] = (u64)set[2 * threadIdx.x] | (u64)set[2 * threadIdx.x + 1] << 32;
            __threadfence_system();
        }
        return;
    }
    int stretch = ((entries + warps - 1) / warps + 31) & ~31;
    int begin = warp * stretch, end = begin + stretch < entries ? begin + stretch : entries;
    u32 below = 0, mine = 0;
#pragma unroll 4
    for (int i = begin + lane; i < end; i += 32) {
        u32 id = ids[i];
        below += id < e;
        mine += id == e;
    }
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) {
        below += __shfl_xor_sync(ALL_LANES, below, step);
        mine += __shfl_xor_sync(ALL_LANES, mine, step);
    }
    if (lane == 0) warp_below[warp] = below, warp_mine[warp] = mine;
    __syncthreads();
    u32 first = 0, before = 0;
    for (int w = 0; w < warps; w++) {
        first += warp_below[w];
        if (w < warp) before += warp_mine[w];
    }
    if (threadIdx.x == 0) {
        groups[e] = first;
        if (e == (u32)experts - 1) groups[experts] = (u32)entries;
    }
    u32* list = groups + experts + 1 + first + before;
#pragma unroll 4
    for (int start = begin; start < end; start += 32) {
        int i = start + lane;
        bool is = i < end && ids[i] == e;
        u32 votes = __ballot_sync(ALL_LANES, is);
        if (is) list[__popc(votes & ((1u << lane) - 1))] = (u32)i;
        list += __popc(votes);
    }
}

struct Members { u32 word[32]; };

// out[row] = fma(weight, slot, out[row]) over the row's experts in ascending id. `members` says which slots are in `slots`; the
// others are in `others`, or are left out where that is null. Columns first..first + cols of out; slots hold `cols` a row.
extern "C" __global__ void combine(const u32* ids, const float* weights, int top_k, const float* slots, const float* others,
                                   Members members, int first, int cols, int width, float* out) {
    follow();
    __shared__ u32 slot_of[32];
    __shared__ float weight_of[32];
    __shared__ int held_of[32];
    __shared__ int used;
    u64 row = blockIdx.x;
    if (threadIdx.x < 32) {
        u32 id = (int)threadIdx.x < top_k ? ids[row * top_k + threadIdx.x] : 0xffffffffu;
        bool held = id < 1024 && (members.word[id >> 5] >> (id & 31) & 1);
        bool takes = (int)threadIdx.x < top_k && (held || others);
        int rank = 0;
        for (int k = 0; k < top_k; k++) {
            u32 other = __shfl_sync(ALL_LANES, id, k);
            int counts = __shfl_sync(ALL_LANES, (int)takes, k);
            // Where scores are no numbers an expert can come twice.
            if (counts && (other < id || (other == id && k < (int)threadIdx.x))) rank++;
        }
        u32 all = __ballot_sync(ALL_LANES, takes);
        if (takes) {
            slot_of[rank] = threadIdx.x;
            weight_of[rank] = weights[row * top_k + threadIdx.x];
            held_of[rank] = held;
        }
        if (threadIdx.x == 0) used = __popc(all);
    }
    __syncthreads();
    for (int c = threadIdx.x; c < cols; c += blockDim.x) {
        float sum = out[row * width + first + c];
        for (int k = 0; k < used; k++) {
            const float* from = held_of[k] ? slots : others;
            sum = fmaf(weight_of[k], from[(row * top_k + slot_of[k]) * cols + c], sum);
        }
        out[row * width + first + c] = sum;
    }
}

// The row tiles of a prompt's experts: tiles[0] counts them, then {place in the table, first position in the groups' list}.
// One block of 256 threads.
extern "C" __global__ void plan_tiles(const u32* groups, ExpertTable table, int tile_rows, u32* tiles) {
    follow();
    __shared__ u32 start[TABLE_EXPERTS + 1];
    int i = threadIdx.x;
    u32 from = 0, rows = 0;
    if (i < table.count) {
        from = groups[table.id[i]];
        rows = groups[table.id[i] + 1] - from;
    }
    u32 mine = (rows + tile_rows - 1) / tile_rows;
    start[i + 1] = mine;
    if (i == 0) start[0] = 0;
    __syncthreads();
    if (i == 0) {
        for (int k = 0; k < TABLE_EXPERTS; k++) start[k + 1] += start[k];
        tiles[0] = start[TABLE_EXPERTS];
    }
    __syncthreads();
    for (u32 k = 0; k < mine; k++) {
        tiles[2 + 2 * (start[i] + k)] = (u32)i;
        tiles[3 + 2 * (start[i] + k)] = from + k * tile_rows;
    }
}

// h = activation(gate) * up for the rows of the tiles, from f32 [entries][2][hidden] to f16 rows padded with zeros (or f32 rows without
// padding). Block (tile, eight rows of it), one warp a row.
#define HELD_PAIRS 16
extern "C" __global__ void __launch_bounds__(256) gate_rows(const u32* groups, ExpertTable table, int tile_rows, const u32* tiles,
                                                            const float* products, int hidden, int stride, int activation,
                                                            u16* halves, float* restore, float* floats) {
    follow();
    if (blockIdx.x >= tiles[0]) return;
    u32 expert = table.id[tiles[2 + 2 * blockIdx.x]], begin = tiles[3 + 2 * blockIdx.x];
    u32 end = groups[expert + 1];
    if (end > begin + tile_rows) end = begin + tile_rows;
    int lane = threadIdx.x & 31;
    u32 p = begin + blockIdx.y * 8 + (threadIdx.x >> 5);
    if (p >= end) return;
    const float* gate = products + (u64)p * 2 * hidden;
    const float* up = gate + hidden;
    if (floats) {
        for (int i = lane; i < hidden; i += 32) floats[(u64)p * hidden + i] = activate(gate[i], activation) * up[i];
        return;
    }
    float shrink, back, largest = 0.0f;
    u32* to = (u32*)(halves + (u64)p * stride);
    if ((hidden & 1) == 0 && hidden <= 64 * HELD_PAIRS) {
        float2 h[HELD_PAIRS];
#pragma unroll
        for (int k = 0; k < HELD_PAIRS; k++) {
            int i = 2 * (lane + 32 * k);
            h[k] = make_float2(0.0f, 0.0f);
            if (i < hidden) {
                float2 g = *(const float2*)(gate + i), u = *(const float2*)(up + i);
                h[k] = make_float2(activate(g.x, activation) * u.x, activate(g.y, activation) * u.y);
                largest = fmaxf(largest, fmaxf(fabsf(h[k].x), fabsf(h[k].y)));
            }
        }
        row_exponent(lanes_max(largest), shrink, back);
#pragma unroll
        for (int k = 0; k < HELD_PAIRS; k++) {
            int i = lane + 32 * k;
            if (i < stride / 2) to[i] = half2_from(h[k].x * shrink, h[k].y * shrink);
        }
    } else {
        for (int i = lane; i < hidden; i += 32) largest = fmaxf(largest, fabsf(activate(gate[i], activation) * up[i]));
        row_exponent(lanes_max(largest), shrink, back);
        for (int i = lane; i < stride / 2; i += 32) {
            float a = 2 * i < hidden ? activate(gate[2 * i], activation) * up[2 * i] * shrink : 0.0f;
            float b = 2 * i + 1 < hidden ? activate(gate[2 * i + 1], activation) * up[2 * i + 1] * shrink : 0.0f;
            to[i] = half2_from(a, b);
        }
    }
    if (lane == 0) restore[p] = back;
}
