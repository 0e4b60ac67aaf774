// Products of decode: one warp an output, rows as signed bytes with a scale for each 32 (or as they are, for float weights). An
// output's sum has one order, however many rows are computed beside it.

#define MOST_ROWS 8
#define WARPS 8

// Rows in shared memory: codes [rows][cols], then {scale, sums of the two halves} [rows][cols / 32].
struct RunSum { float scale; short low, high; };

// Bytes of shared memory of `rows` rows.
template <class Q> struct Vector {
    const signed char* code;
    const RunSum* sums;
    int cols;

    // All threads of the block take part.
    __device__ __forceinline__ void prepare(u8* shared, const float* x, int rows, int cols_) {
        cols = cols_;
        int runs = cols / 32, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
        signed char* to = (signed char*)shared;
        RunSum* sum_to = (RunSum*)(shared + rows * cols);
        for (int i = warp; i < rows * runs; i += WARPS) {
            float v = x[(u64)i * 32 + lane];
            float largest = lanes_max(fabsf(v));
            float scale = largest / 127.0f;
            int q = scale > 0.0f ? __float2int_rn(v / scale) : 0;
            int sum = q;
#pragma unroll
            for (int step = 8; step > 0; step >>= 1) sum += __shfl_xor_sync(ALL_LANES, sum, step);
            int high = __shfl_sync(ALL_LANES, sum, 16);
            to[i * 32 + lane] = (signed char)q;
            // A row with a NaN stays one.
            bool bad = __ballot_sync(ALL_LANES, !(v - v == 0.0f)) != 0;
            if (lane == 0) {
                RunSum s;
                s.scale = bad ? __int_as_float(0x7fc00000) : scale;
                s.low = (short)sum, s.high = (short)high;
                sum_to[i] = s;
            }
        }
        code = to;
        sums = sum_to;
    }

    template <int ROWS> __device__ __forceinline__ void add(float (&sum)[ROWS], int rows, const Codes& w, int run) const {
        int runs = cols / 32;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (r >= rows) break;
            const uint4* q = (const uint4*)(code + (r * cols + run * 32));
            uint4 a = q[0], b = q[1];
            RunSum s = sums[r * runs + run];
            int low = 0, high = 0;
            low = __dp4a((int)w.code[0], (int)a.x, low), low = __dp4a((int)w.code[1], (int)a.y, low);
            low = __dp4a((int)w.code[2], (int)a.z, low), low = __dp4a((int)w.code[3], (int)a.w, low);
            high = __dp4a((int)w.code[4], (int)b.x, high), high = __dp4a((int)w.code[5], (int)b.y, high);
            high = __dp4a((int)w.code[6], (int)b.z, high), high = __dp4a((int)w.code[7], (int)b.w, high);
            float v = fmaf(w.scale[1], (float)high, w.scale[0] * (float)low);
            if (Q::HAS_OFFSET) v = fmaf(w.offset[1], (float)s.high, fmaf(w.offset[0], (float)s.low, v));
            sum[r] = fmaf(s.scale, v, sum[r]);
        }
    }

    // The sums of this warp's output for the rows, in every lane.
    template <int ROWS> __device__ __forceinline__ void product(float (&sum)[ROWS], int rows, const u8* weight) const {
        int lane = threadIdx.x & 31, runs = cols / 32;
#pragma unroll
        for (int r = 0; r < ROWS; r++) sum[r] = 0.0f;
        typename Q::Raw raw;
        if (lane < runs) raw = Q::load(weight, lane);
        for (int run = lane; run < runs; run += 32) {
            Codes codes;
            Q::unpack(raw, run, codes);
            if (run + 32 < runs) raw = Q::load(weight, run + 32);
            add(sum, rows, codes, run);
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) sum[r] = lanes_sum(sum[r]);
    }
};

__device__ __forceinline__ float weight_at(const u8* row, int i, F32*) { return ((const float*)row)[i]; }
__device__ __forceinline__ float weight_at(const u8* row, int i, F16*) { return float_from(((const u16*)row)[i]); }
__device__ __forceinline__ float weight_at(const u8* row, int i, BF16*) { return __int_as_float((int)((u32)((const u16*)row)[i] << 16)); }

// Float weights: rows are read where they are.
template <class Q> struct FloatVector {
    const float* x;
    int cols;

    __device__ __forceinline__ void prepare(u8*, const float* x_, int, int cols_) { x = x_, cols = cols_; }

    template <int ROWS> __device__ __forceinline__ void product(float (&sum)[ROWS], int rows, const u8* weight) const {
        int lane = threadIdx.x & 31;
#pragma unroll
        for (int r = 0; r < ROWS; r++) sum[r] = 0.0f;
#pragma unroll 4
        for (int i = lane; i < cols; i += 32) {
            float w = weight_at(weight, i, (Q*)0);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                if (r < rows) sum[r] = fmaf(w, x[(u64)r * cols + i], sum[r]);
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) sum[r] = lanes_sum(sum[r]);
    }
};
template <> struct Vector<F32> : FloatVector<F32> {};
template <> struct Vector<F16> : FloatVector<F16> {};
template <> struct Vector<BF16> : FloatVector<BF16> {};
