/* Quantises rotated vectors (method turboquant): stores a vector's norm, and the index of the level
 * nearest to each number. */
#include "methods/bits/cuda/packed_words.cuh"

namespace
{

enum { ROWS = 16, D_MAX = KVD_WIDTH_NARROW };

/* Vectors that a CTA rotates, in shared memory: element j of vector r is x[j][r]. */
struct shared_rows {
    float x[D_MAX][ROWS];
    double square[D_MAX / 32][ROWS];
    float norm[ROWS];
};

/* Computes the lengths of ROWS vectors. Thread i has element i of each vector in x. */
__device__ __forceinline__ void take_norms(shared_rows &s, const float (&x)[ROWS], int i)
{
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const double sum = sum_of_warp((double)x[r] * (double)x[r]);
        if (i % 32 == 0)
            s.square[i / 32][r] = sum;
    }
    __syncthreads();
    if (i < ROWS) {
        double sum = 0;
        for (int w = 0; w < (int)blockDim.x / 32; w++)
            sum += s.square[w][i];
        s.norm[i] = (float)sqrt(sum);
    }
    __syncthreads();
}

/* Multiplies ROWS vectors by a transposed matrix [d][d]. Begins and ends with a barrier of the
 * CTA. */
__device__ __forceinline__ void turn(shared_rows &s, const float *matrix, const float (&x)[ROWS],
                                     float (&y)[ROWS], int i)
{
    const int d = (int)blockDim.x;
    __syncthreads();
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        s.x[i][r] = x[r];
        y[r] = 0;
    }
    __syncthreads();
#pragma unroll 16
    for (int j = 0; j < d; j++) {
        const float m = __ldg(matrix + j * d + i);
#pragma unroll
        for (int r = 0; r < ROWS; r += 4) {
            const float4 v = *reinterpret_cast<const float4 *>(&s.x[j][r]);
            y[r] = fmaf(m, v.x, y[r]);
            y[r + 1] = fmaf(m, v.y, y[r + 1]);
            y[r + 2] = fmaf(m, v.z, y[r + 2]);
            y[r + 3] = fmaf(m, v.w, y[r + 3]);
        }
    }
    __syncthreads();
}

__device__ __forceinline__ float of_bits(uint16_t x)
{
    return bf16_of(x, 0);
}

__device__ __forceinline__ uint16_t to_bits(float x)
{
    return (uint16_t)(bf16_pair(x, 0) & 0xffff);
}

__device__ __forceinline__ int word_of(int side, int bits, int t, int i)
{
    return kvd_packed_words(bits, i / 16,
                            side ? kvd_packed_value_lane(t, i) : kvd_packed_key_lane(t, i));
}

__device__ __forceinline__ int number_of(int side, int t, int i)
{
    return side ? kvd_packed_value_number(t, i) : kvd_packed_key_number(t, i);
}

__device__ __forceinline__ void put_norm(char *codes, const kvd_packed_parts &parts, int side,
                                         int t, float norm)
{
    const uint16_t h = (uint16_t)half_bits(norm / KVD_PACKED_NORM);
    uint16_t *const keys = reinterpret_cast<uint16_t *>(codes + parts.k_norm),
                    *const values = reinterpret_cast<uint16_t *>(codes + parts.v_side) +
                                    32 * (t / 16) + kvd_packed_scale(t);
    if (side) {
        values[0] = h;
        values[4] = 0;
    } else {
        keys[t] = h;
    }
}

/* Codes of ROWS quantised vectors. Thread i has the codes of element i of each vector. */
struct coded_rows {
    uint32_t code[ROWS];
    /* Thread i < ROWS holds the norm of vector i, and the norm of that vector's quantisation
     * error. */
    float norm, rest;
};

/* Quantises vectors x. Vector r is a key if bit r of `keys` is 1, otherwise a value. Begins and
 * ends with a barrier of the CTA. */
__device__ __forceinline__ void code_rows(shared_rows &s, const kvd_packed_args &a, uint32_t keys,
                                          const float (&x)[ROWS], coded_rows &c, int i)
{
    const int bits = a.form.bits;
    float y[ROWS], z[ROWS];
    take_norms(s, x, i);
    c.norm = i < ROWS ? s.norm[i] : 0;
    c.rest = 0;
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        z[r] = s.norm[r] > 0 ? x[r] / s.norm[r] : 0;
    turn(s, a.turn_rows, z, y, i);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const bool key = keys >> r & 1, sketched = key && a.form.sketch;
        const float *const level = a.level + (key ? 0 : 2 << bits);
        c.code[r] = nearest_level(level, bits - sketched, y[r]);
        z[r] = sketched ? y[r] - level[c.code[r]] : 0;
    }
    if (!a.form.sketch || !keys)
        return;
    take_norms(s, z, i);
    c.rest = i < ROWS ? s.norm[i] : 0;
    turn(s, a.sketch_rows, z, y, i);
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        c.code[r] |= keys >> r & 1 && !(y[r] < 0) ? 1u << (bits - 1) : 0;
}

/* Stores the norm of a vector. If QJL signs of a key are stored (form.sketch), also stores `rest`,
 * the norm of the key's quantisation error. */
__device__ __forceinline__ void put_norms(const kvd_packed_args &a, char *codes,
                                          const kvd_packed_parts &parts, int side, int t,
                                          float norm, float rest)
{
    put_norm(codes, parts, side, t, norm);
    if (a.form.sketch && !side)
        reinterpret_cast<uint16_t *>(codes + parts.k_norm)[KVD_PAGE_TOKENS + t] =
            (uint16_t)half_bits(rest);
}

/* Writes element i of each rotated query of KV head g to `queries`, in bf16. */
__device__ __forceinline__ void put_queries(const kvd_packed_args &a, uint16_t *queries, int b,
                                            int g, const float (&x)[ROWS], int i)
{
    uint16_t *const q =
        queries + (size_t)b * (size_t)a.map.q_pitch + a.map.q_offset[g * a.map.group];
#pragma unroll
    for (int r = 0; r < ROWS - 2; r++)
        if (r < a.map.group)
            q[r * (int)blockDim.x + i] = to_bits(x[r]);
}

/* Multiplies the queries and the key's quantisation error by a random matrix. Thread i returns the
 * sign bit of element i of the error after this product. */
__device__ __forceinline__ uint32_t sketch_step(shared_rows &s, const kvd_packed_args &a,
                                                uint16_t *sketched, int b, int g,
                                                const float (&y)[ROWS], float *rest, int i)
{
    float z[ROWS];
    take_norms(s, y, i);
    *rest = s.norm[ROWS - 2];
    turn(s, a.sketch_rows, y, z, i);
    put_queries(a, sketched, b, g, z, i);
    return !(z[ROWS - 2] < 0) ? 1u << (a.form.bits - 1) : 0;
}

__global__ void __launch_bounds__(D_MAX)
    turn_steps_kernel(const __grid_constant__ kvd_packed_args a, uint16_t *queries,
                      uint16_t *sketched)
{
    __shared__ __align__(16) shared_rows s;
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, i = (int)threadIdx.x, d = (int)blockDim.x;
    const int t = a.kv_len[b] - 1, p = t / KVD_PAGE_TOKENS, bits = a.form.bits;
    if (t < 0)
        return;
    const uint16_t *const q =
        queries + (size_t)b * (size_t)a.map.q_pitch + a.map.q_offset[g * a.map.group];
    uint16_t *const ring =
        const_cast<uint16_t *>(in_ring(a, b, p, g)) + page_index(t % KVD_PAGE_TOKENS, i, d);
    char *const codes = in_codes(a, page_number(a, b, p), g);
    const kvd_packed_parts parts = kvd_packed_parts_of(&a.form, d, d);
    /* The last two of the ROWS vectors are K and V of the newest token, the others are queries. */
    float x[ROWS] = {}, y[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS - 2; r++)
        x[r] = r < a.map.group ? of_bits(q[r * d + i]) : 0;
    x[ROWS - 2] = of_bits(ring[0]);
    x[ROWS - 1] = of_bits(ring[KVD_PAGE_TOKENS * d]);
    take_norms(s, x, i);
    const float norm[2] = {s.norm[ROWS - 2], s.norm[ROWS - 1]};
#pragma unroll
    for (int side = 0; side < 2; side++)
        x[ROWS - 2 + side] = norm[side] > 0 ? x[ROWS - 2 + side] / norm[side] : 0;
    turn(s, a.turn_rows, x, y, i);
    put_queries(a, queries, b, g, y, i);
    uint32_t code[2];
#pragma unroll
    for (int side = 0; side < 2; side++) {
        float &u = y[ROWS - 2 + side];
        const float *const level = a.level + (side ? 2 << bits : 0);
        ring[side * KVD_PAGE_TOKENS * d] = to_bits(u * norm[side]);
        code[side] = nearest_level(level, bits - (a.form.sketch && !side), u);
        u = side ? 0 : u - level[code[side]];
    }
    float rest = 0;
    if (a.form.sketch)
        code[0] |= sketch_step(s, a, sketched, b, g, y, &rest, i);
#pragma unroll
    for (int side = 0; side < 2; side++) {
        put_bits(reinterpret_cast<uint32_t *>(codes + (side ? parts.v : 0)) +
                     word_of(side, bits, t % KVD_PAGE_TOKENS, i),
                 true, bits, number_of(side, t % KVD_PAGE_TOKENS, i), code[side]);
        if (i == 0)
            put_norms(a, codes, parts, side, t % KVD_PAGE_TOKENS, norm[side], rest);
    }
}

__global__ void __launch_bounds__(D_MAX)
    turn_outputs_kernel(const __grid_constant__ kvd_packed_args a, uint16_t *outputs)
{
    __shared__ __align__(16) shared_rows s;
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, i = (int)threadIdx.x, d = (int)blockDim.x;
    uint16_t *const o =
        outputs + (size_t)b * (size_t)a.map.o_pitch + a.map.o_offset[g * a.map.group];
    float x[ROWS], y[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        x[r] = r < a.map.group ? of_bits(o[r * d + i]) : 0;
    turn(s, a.turn_outputs, x, y, i);
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        if (r < a.map.group)
            o[r * d + i] = to_bits(y[r]);
}

__global__ void __launch_bounds__(D_MAX)
    turn_prompts_kernel(const __grid_constant__ kvd_packed_args a)
{
    __shared__ __align__(16) shared_rows s;
    extern __shared__ uint32_t words[];
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, i = (int)threadIdx.x, d = (int)blockDim.x;
    const int m = a.kv_len[b], bits = a.form.bits, n_words = 2 * d * bits;
    const kvd_packed_parts parts = kvd_packed_parts_of(&a.form, d, d);
    for (int p = (int)blockIdx.z; KVD_PAGE_TOKENS * p < m; p += (int)gridDim.z) {
        const int page = page_number(a, b, p),
                  left = min(m - KVD_PAGE_TOKENS * p, (int)KVD_PAGE_TOKENS);
        char *const codes = in_codes(a, page, g);
        for (int side = 0; side < 2; side++) {
            const uint16_t *const rows = in_rows(a, page, g) + side * KVD_PAGE_TOKENS * d;
            for (int w = i; w < n_words; w += d)
                words[w] = 0;
            for (int t0 = 0; t0 < left; t0 += ROWS) {
                float x[ROWS];
                coded_rows c;
#pragma unroll
                for (int r = 0; r < ROWS; r++)
                    x[r] = t0 + r < left ? of_bits(rows[page_index(t0 + r, i, d)]) : 0;
                code_rows(s, a, side ? 0 : ~0u, x, c, i);
                if (i < ROWS && t0 + i < left)
                    put_norms(a, codes, parts, side, t0 + i, c.norm, c.rest);
#pragma unroll
                for (int r = 0; r < ROWS; r++)
                    s.x[i][r] = __uint_as_float(c.code[r]);
#pragma unroll 1
                for (int r = 0; r < min((int)ROWS, left - t0); r++) {
                    const int n = number_of(side, t0 + r, i) * bits;
                    const uint32_t code = __float_as_uint(s.x[i][r]);
                    uint32_t *const at = words + word_of(side, bits, t0 + r, i) + n / 32;
                    atomicOr(at, code << n % 32);
                    if (n % 32 + bits > 32)
                        atomicOr(at + 1, code >> (32 - n % 32));
                }
            }
            __syncthreads();
            uint32_t *const to = reinterpret_cast<uint32_t *>(codes + (side ? parts.v : 0));
            for (int w = i; w < n_words; w += d)
                to[w] = words[w];
            __syncthreads();
        }
    }
}

__global__ void __launch_bounds__(D_MAX)
    code_steps_kernel(const __grid_constant__ kvd_packed_args a)
{
    __shared__ __align__(16) shared_rows s;
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, i = (int)threadIdx.x, d = (int)blockDim.x;
    const int t = a.kv_len[b] - 1, p = t / KVD_PAGE_TOKENS, in_page = t % KVD_PAGE_TOKENS;
    if (t < 0)
        return;
    const uint16_t *const ring = in_ring(a, b, p, g) + page_index(in_page, i, d);
    char *const codes = in_codes(a, page_number(a, b, p), g);
    const kvd_packed_parts parts = kvd_packed_parts_of(&a.form, d, d);
    coded_rows c;
    const float x[ROWS] = {of_bits(ring[0]), of_bits(ring[KVD_PAGE_TOKENS * d])};
    code_rows(s, a, 1, x, c, i);
#pragma unroll
    for (int side = 0; side < 2; side++) {
        put_bits(reinterpret_cast<uint32_t *>(codes + (side ? parts.v : 0)) +
                     word_of(side, a.form.bits, in_page, i),
                 true, a.form.bits, number_of(side, in_page, i), c.code[side]);
        if (i == side)
            put_norms(a, codes, parts, side, in_page, c.norm, c.rest);
    }
}

enum { RESTORE = 256, PITCH = D_MAX + 8 /* a pitch without bank conflicts */ };

/* Decoded numbers of a page, and signs of the projected quantisation errors of K, as float16 in
 * shared memory. */
struct shared_page {
    uint16_t x[KVD_PAGE_TOKENS][PITCH], sign[KVD_PAGE_TOKENS][PITCH];
};

/* Decodes K or V of a page. Tokens that are not quantised get arbitrary finite numbers. */
__device__ __forceinline__ void decode_page(shared_page &s, const kvd_packed_args &a,
                                            const char *codes, int side, int d)
{
    const int bits = a.form.bits, sketched = a.form.sketch && !side;
    const kvd_packed_parts parts = kvd_packed_parts_of(&a.form, d, d);
    const uint32_t *const words = reinterpret_cast<const uint32_t *>(codes + (side ? parts.v : 0));
    const float *const level = a.level + (side ? 2 << bits : 0);
    const uint32_t mask = (1u << (bits - sketched)) - 1;
    for (int i = (int)threadIdx.x; i < 2 * d; i += RESTORE) {
        const int u = i / 32, row = i % 32 / 4, column = i % 4 * 2;
        uint32_t pair[16];
        load_pairs(words + i * bits, true, bits, pair);
#pragma unroll
        for (int p = 0; p < 16; p++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const uint32_t code = e ? pair[p] >> 16 : pair[p] & 0xffff;
                const int inner = row + p % 2 * 8, outer = column + e + p % 4 / 2 * 8,
                          t = p / 4 * 16 + (side ? outer : inner),
                          at = 16 * u + (side ? inner : outer);
                s.x[t][at] = (uint16_t)half_bits(level[code & mask]);
                if (sketched)
                    s.sign[t][at] = code >> (bits - 1) ? 0x3c00 : 0xbc00;
            }
    }
}

/* Multiplies 64 vectors by a transposed matrix [d][d]. Calls `put` for every two numbers of the
 * products. */
template <class PUT>
__device__ __forceinline__ void multiply_page(const uint16_t (&x)[KVD_PAGE_TOKENS][PITCH],
                                              const float *__restrict__ matrix, int d,
                                              const PUT &put)
{
    const int lane = (int)threadIdx.x % 32, row = lane / 4, column = lane % 4 * 2;
    for (int first = (int)threadIdx.x / 32 * 8; first < d; first += RESTORE / 32 * 8) {
        float sum[4][4] = {};
#pragma unroll 4
        for (int k = 0; k < d; k += 16) {
            const float *const m = matrix + (k + column) * d + first + row;
            const uint32_t b[2] = {f16_pair(__ldg(m), __ldg(m + d)),
                                   f16_pair(__ldg(m + 8 * d), __ldg(m + 9 * d))};
#pragma unroll
            for (int i = 0; i < 4; i++) {
                uint32_t a[4];
#pragma unroll
                for (int r = 0; r < 4; r++)
                    a[r] = *reinterpret_cast<const uint32_t *>(
                        &x[16 * i + row + r % 2 * 8][k + column + r / 2 * 8]);
                mma_pure<false>(sum[i], a, b[0], b[1]);
            }
        }
#pragma unroll
        for (int i = 0; i < 8; i++)
            put(8 * i + row, first + column, sum[i / 2][i % 2 * 2], sum[i / 2][i % 2 * 2 + 1]);
    }
}

/* Decodes K or V of page p of a request of m tokens. Begins and ends with a barrier of the CTA. */
__device__ void restore_side(shared_page &s, const kvd_packed_args &a, int b, int g, int p, int m,
                             int side)
{
    const int d = a.map.d_qk[g], page = page_number(a, b, p), after = side * KVD_PAGE_TOKENS * d,
              left = min(m - KVD_PAGE_TOKENS * p, (int)KVD_PAGE_TOKENS),
              coded = min(m - 1 - KVD_PAGE_TOKENS * p, (int)KVD_PAGE_TOKENS);
    const kvd_packed_parts parts = kvd_packed_parts_of(&a.form, d, d);
    const char *const codes = in_codes(a, page, g);
    const uint16_t *const keys = reinterpret_cast<const uint16_t *>(codes + parts.k_norm),
                          *const values = reinterpret_cast<const uint16_t *>(codes + parts.v_side),
                          *const ring = in_ring(a, b, p, g) + after;
    uint16_t *const rows = in_rows(a, page, g) + after;
    __syncthreads();
    decode_page(s, a, codes, side, d);
    __syncthreads();
    if (a.form.sketch && !side) {
        const float each = (float)(1.2533141373155003 / d); /* sqrt(pi / 2) / d */
        multiply_page(s.sign, a.sketch_back, d, [&](int t, int i, float x, float y) {
            uint32_t *const to = reinterpret_cast<uint32_t *>(&s.x[t][i]);
            const float rest = t < coded ? half_of(keys[KVD_PAGE_TOKENS + t], 0) * each : 0;
            *to = f16_pair(fmaf(rest, x, half_of(*to, 0)), fmaf(rest, y, half_of(*to, 1)));
        });
        __syncthreads();
    }
    multiply_page(s.x, a.turn_outputs, d, [&](int t, int i, float x, float y) {
        const int at = page_index(t, i, d);
        if (t >= (left + 7) / 8 * 8)
            return;
        const float norm =
            half_of(side ? values[32 * (t / 16) + kvd_packed_scale(t)] : keys[t], 0) *
            KVD_PACKED_NORM;
        *reinterpret_cast<uint32_t *>(rows + at) =
            t < coded  ? bf16_pair(x * norm, y * norm)
            : t < left ? *reinterpret_cast<const uint32_t *>(ring + at)
                       : 0;
    });
    __syncthreads();
}

__global__ void __launch_bounds__(RESTORE) restore_kernel(const __grid_constant__ kvd_packed_args a)
{
    __shared__ __align__(16) shared_page s;
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, m = a.kv_len[b];
    for (int p = first_seen(a, m) / KVD_PAGE_TOKENS + (int)blockIdx.z; KVD_PAGE_TOKENS * p < m;
         p += (int)gridDim.z)
        for (int side = 0; side < 2; side++)
            restore_side(s, a, b, g, p, m, side);
}

bool restorable(const kvd_packed_args *a)
{
    const int d = a->map.d_qk[0];
    for (int g = 0; g < a->map.n_kv_heads; g++)
        if (a->map.d_qk[g] != d || a->map.d_v[g] != d)
            return false;
    return d % 32 == 0 && d <= D_MAX && a->form.norms && a->level && a->form.bits >= 1 &&
           a->form.bits <= 8 && a->n >= 1 && a->n <= 65535;
}

bool supported(const kvd_packed_args *a)
{
    const int d = a->map.d_qk[0];
    return restorable(a) && (d == 64 || d == 128) && a->map.group <= ROWS - 2;
}

} // namespace

cudaError_t kvd_packed_turn_prompts(const kvd_packed_args *a, cudaStream_t stream)
{
    if (!restorable(a) || a->pages_side_by_side < 1)
        return cudaErrorInvalidValue;
    const int d = a->map.d_qk[0];
    turn_prompts_kernel<<<grid_of(a), (unsigned)d, (size_t)(8 * d * a->form.bits), stream>>>(*a);
    return cudaGetLastError();
}

cudaError_t kvd_packed_code_turned(const kvd_packed_args *a, cudaStream_t stream)
{
    if (a->q_len)
        return kvd_packed_turn_prompts(a, stream);
    if (!restorable(a))
        return cudaErrorInvalidValue;
    const dim3 grid((unsigned)a->map.n_kv_heads, (unsigned)a->n);
    code_steps_kernel<<<grid, (unsigned)a->map.d_qk[0], 0, stream>>>(*a);
    return cudaGetLastError();
}

cudaError_t kvd_packed_restore_turned(const kvd_packed_args *a, cudaStream_t stream)
{
    if (!restorable(a) || a->pages_side_by_side < 1)
        return cudaErrorInvalidValue;
    restore_kernel<<<grid_of(a), RESTORE, 0, stream>>>(*a);
    return cudaGetLastError();
}

cudaError_t kvd_packed_turn_steps(const kvd_packed_args *a, void *q, void *sketched,
                                  cudaStream_t stream)
{
    if (!supported(a) || (a->form.sketch && !sketched))
        return cudaErrorInvalidValue;
    const dim3 grid((unsigned)a->map.n_kv_heads, (unsigned)a->n);
    turn_steps_kernel<<<grid, (unsigned)a->map.d_qk[0], 0, stream>>>(
        *a, static_cast<uint16_t *>(q), static_cast<uint16_t *>(sketched));
    return cudaGetLastError();
}

cudaError_t kvd_packed_turn_outputs(const kvd_packed_args *a, void *o, cudaStream_t stream)
{
    if (!supported(a))
        return cudaErrorInvalidValue;
    const dim3 grid((unsigned)a->map.n_kv_heads, (unsigned)a->n);
    turn_outputs_kernel<<<grid, (unsigned)a->map.d_qk[0], 0, stream>>>(*a,
                                                                       static_cast<uint16_t *>(o));
    return cudaGetLastError();
}
