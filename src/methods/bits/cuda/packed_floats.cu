/* Quantises K and V to 8-bit and 4-bit floating-point numbers (methods fp8, mxfp4, nvfp4), and
 * decodes them. */
#include "methods/bits/cuda/packed_floats.cuh"

namespace
{

enum { WARPS = 8 };

struct page_side {
    int side, d, left;
    float tensor; /* scale of all keys, or of all values, of a head or layer */
    const uint16_t *from;
    uint16_t *to;
    char *codes, *scales;
};

__device__ __forceinline__ page_side side_of(const kvd_packed_args &a, int side, int b, int g,
                                             int p, int left, bool ring)
{
    const int page = page_number(a, b, p), d_qk = a.map.d_qk[g];
    const kvd_packed_parts parts = kvd_packed_parts_of(&a.form, d_qk, a.map.d_v[g]);
    const int first = side ? KVD_PAGE_TOKENS * d_qk : 0;
    uint16_t *const rows = in_rows(a, page, g) + first;
    char *const codes = in_codes(a, page, g);
    return {side,
            side ? a.map.d_v[g] : d_qk,
            left,
            tensor_scale(a, side, g),
            ring ? in_ring(a, b, p, g) + first : rows,
            rows,
            codes + (side ? parts.v : 0),
            codes + (side ? parts.v_side : parts.k_side)};
}

/* Returns the index, in a bf16 page, of dimension 16 u + 8 h + 2 c of token t. */
__device__ __forceinline__ int element(const page_side &o, int u, int h, int t, int c)
{
    return t / 8 * 8 * o.d + (2 * u + h) * 64 + t % 8 * 8 + 2 * c;
}

__device__ __forceinline__ uint32_t *words_of(const page_side &o, int bits, int u, int lane)
{
    return reinterpret_cast<uint32_t *>(o.codes) + kvd_packed_words(bits, u, lane);
}

template <class F>
__device__ __forceinline__ float choose_scale(float most, float tensor, uint32_t &byte)
{
    byte = F::BLOCK ? block_byte<F>(most, tensor) : 0;
    return read_scale<F>(byte, tensor);
}

template <class F> __device__ __forceinline__ uint32_t coded(float x, float scale)
{
    return scale > 0 ? float_code<F>(x / scale) : 0;
}

template <int B> __device__ __forceinline__ void put_pairs(uint32_t *at, const uint32_t (&pair)[16])
{
    constexpr int EACH = 16 / B;
    uint32_t word[B];
#pragma unroll
    for (int i = 0; i < B; i++) {
        word[i] = 0;
#pragma unroll
        for (int p = 0; p < EACH; p++)
            word[i] |= pair[i * EACH + p] << p * B;
    }
#pragma unroll
    for (int i = 0; i < B; i += 4)
        *reinterpret_cast<uint4 *>(at + i) =
            make_uint4(word[i], word[i + 1], word[i + 2], word[i + 3]);
}

/* Quantises block i of the channels in a page. A block has 16 channels, or 32 with mxfp4. Tokens
 * after the request's last token become 0. */
template <class F> __device__ void code_block(const page_side &o, int i, int lane)
{
    constexpr int UNITS = F::BLOCK == 32 ? 2 : 1;
    const int units = min(UNITS, o.d / 16 - UNITS * i);
    /* Word [u][2 j + h]: channels x and x + 1 of token 8 j + lane / 4. The first channel of the
     * block is number 0, and x = 16 u + 8 h + 2 * (lane % 4). */
    uint32_t pair[UNITS][16];
#pragma unroll
    for (int u = 0; u < UNITS; u++)
#pragma unroll
        for (int n = 0; n < 16; n++) {
            const int t = n / 2 * 8 + lane / 4;
            pair[u][n] = u < units && t < o.left
                             ? *reinterpret_cast<const uint32_t *>(
                                   o.from + element(o, UNITS * i + u, n % 2, t, lane % 4))
                             : 0;
        }
#pragma unroll
    for (int j = 0; j < 8; j++) {
        float most = 0;
        uint32_t byte;
#pragma unroll
        for (int n = 0; n < 4 * UNITS; n++)
            most = fmaxf(most, fabsf(bf16_of(pair[n / 4][2 * j + n / 2 % 2], n % 2)));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
        const float scale = choose_scale<F>(most, o.tensor, byte);
#pragma unroll
        for (int n = 0; n < 2 * UNITS; n++) {
            uint32_t &x = pair[n / 2][2 * j + n % 2];
            x = coded<F>(bf16_of(x, 0), scale) | coded<F>(bf16_of(x, 1), scale) << 16;
        }
        if (F::BLOCK && lane % 4 == j / 2)
            o.scales[KVD_PAGE_TOKENS * i + kvd_packed_block_scale(o.side, 8 * j + lane / 4)] =
                (char)byte;
    }
#pragma unroll
    for (int u = 0; u < UNITS; u++) {
        uint32_t ordered[16];
        if (u >= units)
            break;
#pragma unroll
        for (int n = 0; n < 16; n++) {
            const int j = n / 4 * 2;
            ordered[n] = o.side ? exchanged(pair[u][2 * (j + n / 2 % 2) + n % 2])
                                : pair[u][2 * (j + n % 2) + n / 2 % 2];
        }
        put_pairs<F::BITS>(words_of(o, F::BITS, UNITS * i + u, lane), ordered);
    }
}

template <class F> __device__ void code_part(const page_side &o, int t, int part)
{
    const bool there = 4 * part < o.d;
    float x[4] = {}, most = 0;
    uint32_t byte;
    if (there) {
        const uint2 v = *reinterpret_cast<const uint2 *>(
            o.from + element(o, part / 4, part / 2 % 2, t, part % 2 * 2));
        x[0] = bf16_of(v.x, 0), x[1] = bf16_of(v.x, 1), x[2] = bf16_of(v.y, 0),
        x[3] = bf16_of(v.y, 1);
    }
#pragma unroll
    for (int k = 0; k < 4; k++)
        most = fmaxf(most, fabsf(x[k]));
#pragma unroll
    for (int i = 1; i < F::BLOCK / 4; i *= 2)
        most = fmaxf(most, __shfl_xor_sync(~0u, most, i));
    if (!there)
        return;
    const float scale = choose_scale<F>(most, o.tensor, byte);
    if (F::BLOCK && 4 * part % (F::BLOCK ? F::BLOCK : 1) == 0)
        o.scales[4 * part / (F::BLOCK ? F::BLOCK : 1) * KVD_PAGE_TOKENS +
                 kvd_packed_block_scale(o.side, t)] = (char)byte;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const int i = 4 * part + k;
        put_bits(words_of(o, F::BITS, i / 16,
                          o.side ? kvd_packed_value_lane(t, i) : kvd_packed_key_lane(t, i)),
                 false, F::BITS,
                 o.side ? kvd_packed_value_number(t, i) : kvd_packed_key_number(t, i),
                 coded<F>(x[k], scale));
    }
}

template <class F> __device__ __forceinline__ void code_row(const page_side &o, int t, int lane)
{
    for (int part = lane; part - lane < o.d / 4; part += 32)
        code_part<F>(o, t, part);
}

template <class F>
__global__ void __launch_bounds__(32 * WARPS) code_kernel(const __grid_constant__ kvd_packed_args a)
{
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, warp = (int)threadIdx.x / 32,
              lane = (int)threadIdx.x % 32;
    const int m = a.kv_len[b], before = m - (a.q_len ? a.q_len[b] : 1);
    constexpr int DIMS = F::BLOCK == 32 ? 32 : 16;
    const int k_tasks = (a.map.d_qk[g] + DIMS - 1) / DIMS,
              v_tasks = (a.map.d_v[g] + DIMS - 1) / DIMS;
    for (int p = before / KVD_PAGE_TOKENS + (int)blockIdx.z; KVD_PAGE_TOKENS * p < m;
         p += (int)gridDim.z) {
        const int first = max(before - KVD_PAGE_TOKENS * p, 0),
                  left = min(m - KVD_PAGE_TOKENS * p, (int)KVD_PAGE_TOKENS);
        const int tasks = first ? 2 * (left - first) : k_tasks + v_tasks;
        for (int task = warp; task < tasks; task += WARPS) {
            const int side = first ? task % 2 : task >= k_tasks;
            const page_side o = side_of(a, side, b, g, p, left, !a.q_len);
            if (first)
                code_row<F>(o, first + task / 2, lane);
            else
                code_block<F>(o, side ? task - k_tasks : task, lane);
        }
    }
}

/* Restores 16 adjacent dimensions of a page in bf16. The first `done` tokens are decoded; the other
 * tokens are copied from the ring buffer. */
template <class F>
__device__ void restore_unit(const page_side &o, const uint16_t *ring, int u, int done, int lane)
{
    const char *const scales =
        o.scales + (F::BLOCK ? 16 * u / (F::BLOCK ? F::BLOCK : 1) * KVD_PAGE_TOKENS : 0);
    uint32_t pair[16];
    load_pairs(words_of(o, F::BITS, u, lane), false, F::BITS, pair);
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const int t = 8 * j + lane / 4;
        if (8 * j >= o.left)
            break;
        const uint32_t byte =
            F::BLOCK ? (uint32_t)(uint8_t)scales[kvd_packed_block_scale(o.side, t)] : 0;
        const float scale = read_scale<F>(byte, o.tensor);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t code = o.side ? exchanged(pair[j / 2 * 4 + j % 2 * 2 + h])
                                         : pair[j / 2 * 4 + 2 * h + j % 2];
            const int at = element(o, u, h, t, lane % 4);
            *reinterpret_cast<uint32_t *>(o.to + at) =
                t < done
                    ? bf16_pair(float_of<F>(code & 0xffff) * scale, float_of<F>(code >> 16) * scale)
                : t < o.left ? *reinterpret_cast<const uint32_t *>(ring + at)
                             : 0;
        }
    }
}

template <class F>
__global__ void __launch_bounds__(32 * WARPS)
    restore_kernel(const __grid_constant__ kvd_packed_args a)
{
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, warp = (int)threadIdx.x / 32,
              lane = (int)threadIdx.x % 32;
    const int m = a.kv_len[b], k_units = a.map.d_qk[g] / 16, v_units = a.map.d_v[g] / 16;
    for (int p = first_seen(a, m) / KVD_PAGE_TOKENS + (int)blockIdx.z; KVD_PAGE_TOKENS * p < m;
         p += (int)gridDim.z) {
        const int left = min(m - KVD_PAGE_TOKENS * p, (int)KVD_PAGE_TOKENS),
                  done = min(m - 1 - KVD_PAGE_TOKENS * p, (int)KVD_PAGE_TOKENS);
        for (int u = warp; u < k_units + v_units; u += WARPS) {
            const page_side o = side_of(a, u >= k_units, b, g, p, left, true);
            restore_unit<F>(o, o.from, o.side ? u - k_units : u, done, lane);
        }
    }
}

} // namespace

cudaError_t kvd_packed_code_floats(const kvd_packed_args *a, cudaStream_t stream)
{
    return with_floats(&a->form, [=](auto f) {
        code_kernel<decltype(f)><<<grid_of(a), 32 * WARPS, 0, stream>>>(*a);
        return cudaGetLastError();
    });
}

cudaError_t kvd_packed_restore_floats(const kvd_packed_args *a, cudaStream_t stream)
{
    return with_floats(&a->form, [=](auto f) {
        restore_kernel<decltype(f)><<<grid_of(a), 32 * WARPS, 0, stream>>>(*a);
        return cudaGetLastError();
    });
}
