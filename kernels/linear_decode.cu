// Decode with one weight format, QUANT: outputs of dense products and of experts.

template <int ROWS>
__device__ __forceinline__ void linear_decode(const float* x, int rows, int cols, int each, const Parts& parts) {
    DYNAMIC_SHARED(shared);
    Vector<QUANT> vector;
    vector.prepare(shared, x, rows, cols);
    __syncthreads();
    const Part& part = part_of(parts, blockIdx.x);
    int first = (blockIdx.x - part.first_tile) * WARPS * each + (threadIdx.x >> 5);
    for (int i = 0; i < each; i++) {
        int output = first + i * WARPS;
        if (output >= part.outputs) break;
        float sum[ROWS];
        vector.product(sum, rows, part.weight + (u64)output * row_bytes<QUANT>(cols));
        if ((threadIdx.x & 31) == 0) {
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                if (r < rows) Target{part.out + (u64)r * part.outputs, 1.0f, part.bias, parts.add}.put(output, sum[r]);
            }
        }
    }
}

// One row or up to 8; a block computes 8 * `each` outputs, and a part's tiles are that large.
extern "C" __global__ void __launch_bounds__(256) linear_decode_1(const float* x, int rows, int cols, int each, Parts parts) {
    follow();
    linear_decode<1>(x, rows, cols, each, parts);
}
extern "C" __global__ void __launch_bounds__(256, 2) linear_decode_8(const float* x, int rows, int cols, int each, Parts parts) {
    follow();
    linear_decode<MOST_ROWS>(x, rows, cols, each, parts);
}

// Experts, first step: h[entry] = activation(gate x) * (up x) of the entries whose expert is in the table. blockIdx.y is the entry;
// gate and up may differ in format, then `part` 0 stores gate products, 1 multiplies h by the activation of what is there.
extern "C" __global__ void __launch_bounds__(256, 3) experts_decode_in(const float* x, const u32* ids, int top_k, ExpertTable table,
                                                                    u64 gate_offset, u64 up_offset, int part, int hidden, int width,
                                                                    int activation, int each, float* h) {
    follow();
    int entry = blockIdx.y;
    int place = find_expert(table, ids[entry]);
    if (place < 0) return;
    DYNAMIC_SHARED(shared);
    Vector<QUANT> vector;
    vector.prepare(shared, x + (u64)(entry / top_k) * width, 1, width);
    __syncthreads();
    const u8* blob = (const u8*)table.blob[place];
    int first = blockIdx.x * WARPS * each + (threadIdx.x >> 5);
    for (int i = 0; i < each; i++) {
        int output = first + i * WARPS;
        if (output >= hidden) break;
        u64 row = (u64)output * row_bytes<QUANT>(width);
        float gate[1] = {0.0f}, up[1] = {0.0f};
        if (part != 1) vector.product(gate, 1, blob + gate_offset + row);
        if (part != 0) vector.product(up, 1, blob + up_offset + row);
        if ((threadIdx.x & 31) == 0) {
            float* to = h + (u64)entry * hidden + output;
            if (part == 0) *to = gate[0];
            else *to = activate(part == 1 ? *to : gate[0], activation) * up[0];
        }
    }
}

// Experts, second step: slots[entry] = down h[entry].
extern "C" __global__ void __launch_bounds__(256) experts_decode_out(const float* h, const u32* ids, ExpertTable table, u64 down_offset,
                                                                     int hidden, int width, int each, float* slots) {
    follow();
    int entry = blockIdx.y;
    int place = find_expert(table, ids[entry]);
    if (place < 0) return;
    DYNAMIC_SHARED(shared);
    Vector<QUANT> vector;
    vector.prepare(shared, h + (u64)entry * hidden, 1, hidden);
    __syncthreads();
    const u8* weight = (const u8*)table.blob[place] + down_offset;
    int first = blockIdx.x * WARPS * each + (threadIdx.x >> 5);
    for (int i = 0; i < each; i++) {
        int output = first + i * WARPS;
        if (output >= width) break;
        float sum[1];
        vector.product(sum, 1, weight + (u64)output * row_bytes<QUANT>(hidden));
        if ((threadIdx.x & 31) == 0) slots[(u64)entry * width + output] = sum[0];
    }
}
