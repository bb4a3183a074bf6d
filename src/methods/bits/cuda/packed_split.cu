/* Quantises and decodes K and V with different numbers of bits in different channels (methods vidkv
 * and turboquant). */
#include "common/cuda/launch.cuh"
#include "methods/bits/cuda/packed_split.cuh"

namespace
{

enum { CHOOSE = 1024 };

/* Computes the sum of squares (if SQUARES is true) or the smallest and largest element of each of 8
 * channels. Reads every `step`-th token. */
template <bool SQUARES>
__device__ __forceinline__ void measure(const kvd_packed_args &a, int b, int g, int side, int u,
                                        int from, int to, int step, double (&sum)[8],
                                        float (&lo)[8], float (&hi)[8])
{
#pragma unroll
    for (int e = 0; e < 8; e++) {
        sum[e] = 0;
        lo[e] = INFINITY;
        hi[e] = -INFINITY;
    }
    for (int t = from; t < to; t += step) {
        const uint4 x = eight_at(uncoded(a, b, g, side, t, 8 * u));
        if (!SQUARES)
            widen_ranges(lo, hi, x);
#pragma unroll
        for (int e = 0; SQUARES && e < 8; e++)
            sum[e] += (double)number_of(x, e) * (double)number_of(x, e);
    }
#pragma unroll
    for (int e = 0; e < 8; e++) {
        sum[e] = SQUARES ? sum_of_warp(sum[e]) : 0;
        lo[e] = SQUARES ? 0 : min_of_warp(lo[e]);
        hi[e] = SQUARES ? 0 : -min_of_warp(-hi[e]);
    }
}

/* Chooses the channels that get more bits, and marks them in bit masks. These are the channels with
 * the largest sums of squares (if SQUARES is true) or the widest ranges. */
template <bool SQUARES>
__global__ void __launch_bounds__(CHOOSE) choose_kernel(const __grid_constant__ kvd_packed_args a)
{
    __shared__ double part[32][8], size[WIDE];
    __shared__ float low[32][8], high[32][8];
    __shared__ uint32_t mask[WIDE / 32];
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, side = (int)blockIdx.z,
              me = (int)threadIdx.x, warp = me / 32, d = a.width[side][g], units = (d + 7) / 8,
              parts = CHOOSE / 32 / units;
    const coded_span s = coded_now(a, b);
    if (s.from >= s.to)
        return;
    double sum[8];
    float lo[8], hi[8];
    measure<SQUARES>(a, b, g, side, warp % units, s.from + warp / units * 32 + me % 32,
                     warp < parts * units ? s.to : 0, 32 * parts, sum, lo, hi);
#pragma unroll
    for (int e = 0; e < 8; e++) {
        part[warp][e] = sum[e];
        low[warp][e] = lo[e];
        high[warp][e] = hi[e];
    }
    __syncthreads();
    if (me < d) {
        double all = 0;
        float least = INFINITY, most = -INFINITY;
        for (int p = 0; p < parts; p++) {
            const int w = p * units + me / 8;
            all += part[w][me % 8];
            least = fminf(least, low[w][me % 8]);
            most = fmaxf(most, high[w][me % 8]);
        }
        size[me] = SQUARES ? all : (double)(most - least);
    }
    __syncthreads();
    if (me < WIDE) {
        int larger = 0;
        for (int i = 0; me < d && i < d; i++)
            larger += size[i] > size[me] || (size[i] == size[me] && i < me);
        const bool chosen = larger < kvd_packed_chosen(&a.split.of, side, d);
        const uint32_t bits = __ballot_sync(~0u, me < d && chosen);
        if (me % 32 == 0)
            mask[warp] = bits;
    }
    __syncthreads();
    const int group = a.split.of.group, words = (d + 31) / 32;
    for (int i = me; i < (s.to - s.from) / group * words; i += CHOOSE)
        mask_of(make_group(a, b, g, s.from + i / words * group), side)[i % words] = mask[i % words];
}

/* Loads K or V of a group of tokens to x [channels][group] in shared memory. Ends with a barrier of
 * the CTA. */
__device__ void load_group(const group_of &o, int side, float *x)
{
    const int n = o.a.split.of.group, units = (o.a.width[side][o.g] + 7) / 8;
    for (int i = (int)threadIdx.x; i < n * units; i += THREADS) {
        const int t = i % n, u = i / n;
        const uint4 y = eight_at(uncoded(o.a, o.b, o.g, side, o.first + t, 8 * u));
#pragma unroll
        for (int e = 0; e < 8; e++)
            x[(8 * u + e) * n + t] = number_of(y, e);
    }
    __syncthreads();
}

__device__ void code_two(const group_of &o, int side, int part, int channel, const float *x)
{
    const int n = o.a.split.of.group;
    float lo = INFINITY, hi = -INFINITY;
    for (int t = 0; t < n; t++) {
        lo = fminf(lo, x[t]);
        hi = fmaxf(hi, x[t]);
    }
    const float step = as_half((hi - lo) / 3), zero = as_half(lo);
    *word_at(o, side, part, channel) = half_bits(step) | half_bits(zero) << 16;
    for (int at = 0; at < n / 8; at++) {
        uint32_t code[8];
        for (int e = 0; e < 8; e++)
            code[e] = even_code(x[8 * at + e], zero, step, 3);
        for (int j = 0; j < 2; j++)
            *plane_at(o, side, part, channel, j, at) = (uint8_t)plane_of(code, j);
    }
}

__device__ float mean_magnitude(const float *x, int n)
{
    double sum = 0;
    for (int t = 0; t < n; t++)
        sum = __dadd_rn(sum, fabs((double)x[t]));
    return as_half((float)(sum / (double)n));
}

/* Returns coefficient q of the Fourier transform over the m listed channels of token t. */
__device__ float coefficient(const float *x, int n, const uint8_t *list, int m, const double *wave,
                             int q, int t)
{
    const int k = (q + 1) / 2;
    const bool imaginary = q && q % 2 == 0;
    double sum = 0;
    for (int j = 0, at = 0; j < m; j++) {
        const double y = (double)x[list[j] * n + t];
        sum = imaginary ? __dadd_rn(sum, -__dmul_rn(y, wave[m + at]))
                        : __dadd_rn(sum, __dmul_rn(y, wave[at]));
        at += k;
        at -= at >= m ? m : 0;
    }
    return (float)sum;
}

/* Quantises K of a group of tokens (method vidkv). x and y are scratch in shared memory. */
__device__ void code_keys(const group_of &o, const uint8_t *list, float *x, float *y)
{
    const int n = o.a.split.of.group, chosen = o.part.channels[0][0], m = o.part.channels[0][1];
    const double *const wave = wave_of(o.a, m);
    load_group(o, 0, x);
    for (int c = (int)threadIdx.x; c < chosen; c += THREADS)
        code_two(o, 0, 0, c, x + list[c] * n);
    for (int i = (int)threadIdx.x; i < m * n; i += THREADS)
        y[i] = coefficient(x, n, list + chosen, m, wave, i / n, i % n);
    __syncthreads();
    for (int q = (int)threadIdx.x; q < m; q += THREADS) {
        *half_at(o, 0, 1, q) = (uint16_t)half_bits(mean_magnitude(y + q * n, n));
        for (int at = 0; at < n / 8; at++) {
            uint32_t bits = 0;
            for (int e = 0; e < 8; e++)
                bits |= (y[q * n + 8 * at + e] < 0 ? 1u : 0u) << e;
            *plane_at(o, 0, 1, q, 0, at) = (uint8_t)bits;
        }
    }
    __syncthreads();
}

__device__ void code_values(const group_of &o, float *x, uint8_t *digit)
{
    const int n = o.a.split.of.group, d = o.a.width[1][o.g];
    load_group(o, 1, x);
    for (int c = (int)threadIdx.x; c < d; c += THREADS) {
        if (!o.a.split.of.ternary) {
            code_two(o, 1, 1, c, x + c * n);
            continue;
        }
        const float s = mean_magnitude(x + c * n, n);
        *half_at(o, 1, 1, c) = (uint16_t)half_bits(s);
        for (int t = 0; t < n; t++)
            digit[c * n + t] = fabsf(x[c * n + t]) > s / 2 ? x[c * n + t] < 0 ? 2 : 1 : 0;
    }
    __syncthreads();
    uint8_t *const bytes = reinterpret_cast<uint8_t *>(o.record) + o.part.codes[1][1];
    for (int i = (int)threadIdx.x; o.a.split.of.ternary && i < (n * d + 4) / 5; i += THREADS) {
        int byte = 0;
        for (int e = 4; e >= 0; e--)
            byte = 3 * byte + (5 * i + e < n * d ? digit[5 * i + e] : 0);
        bytes[i] = (uint8_t)byte;
    }
    __syncthreads();
}

/* Computes y [m][n] as the product of `matrix`, or of its transpose if `transposed` is true, and x.
 * Begins and ends with a barrier of the CTA. */
__device__ void multiply_part(const float *__restrict__ matrix, bool transposed, const float *x,
                              float *y, int m, int n)
{
    const int row = transposed ? 1 : m, column = transposed ? m : 1;
    const bool whole = transposed && m % 8 == 0;
    __syncthreads();
    for (int i = (int)threadIdx.x; i < (m + 7) / 8 * n; i += THREADS) {
        const int t = i % n, first = i / n * 8;
        float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        for (int j = 0; j < m; j++) {
            const float by = x[j * n + t];
            float a[8];
            if (whole) {
                const float4 *const at =
                    reinterpret_cast<const float4 *>(matrix + first + j * column);
                const float4 low = __ldg(at), high = __ldg(at + 1);
                a[0] = low.x, a[1] = low.y, a[2] = low.z, a[3] = low.w;
                a[4] = high.x, a[5] = high.y, a[6] = high.z, a[7] = high.w;
            } else {
#pragma unroll
                for (int e = 0; e < 8; e++)
                    a[e] = __ldg(matrix + min(first + e, m - 1) * row + j * column);
            }
#pragma unroll
            for (int e = 0; e < 8; e++)
                sum[e] = fmaf(a[e], by, sum[e]);
        }
#pragma unroll
        for (int e = 0; e < 8; e++)
            if (first + e < m)
                y[(first + e) * n + t] = sum[e];
    }
    __syncthreads();
}

__device__ __forceinline__ int level_bits(const group_of &o, int side, int part)
{
    return o.part.planes[side][part] - (o.a.split.of.sketch && !side);
}

__device__ __forceinline__ const float *levels_of(const group_of &o, int side, int part)
{
    return o.a.split.level[part] + 256 * (level_bits(o, side, part) - o.a.split.of.bits + 1);
}

/* Stores the norms of n tokens, which are the columns of x [m][n], as float16. Ends with a barrier
 * of the CTA. */
__device__ void put_norms(const float *x, int m, int n, uint16_t *to, float *norm)
{
    for (int t = (int)threadIdx.x; t < n; t += THREADS) {
        double sum = 0;
        for (int j = 0; j < m; j++)
            sum = __dadd_rn(sum, __dmul_rn((double)x[j * n + t], (double)x[j * n + t]));
        norm[t] = (float)sqrt(sum);
        to[t] = (uint16_t)half_bits(norm[t]);
    }
    __syncthreads();
}

/* Quantises x [m][n], which has m channels and n tokens. `part` is 0 for channels with more bits, 1
 * for the others. Ends with a barrier of the CTA. */
__device__ void code_part(const group_of &o, int side, int part, float *x, float *y, float *norm)
{
    const kvd_packed_split_codes &s = o.a.split;
    const int n = s.of.group, m = o.part.channels[side][part], bits = level_bits(o, side, part);
    const float *const level = levels_of(o, side, part);
    put_norms(x, m, n, half_at(o, side, part, 0), norm);
    for (int i = (int)threadIdx.x; i < m * n; i += THREADS)
        x[i] = norm[i % n] > 0 ? __fdiv_rn(x[i], norm[i % n]) : 0;
    multiply_part(s.rotation[part], false, x, y, m, n);
    for (int i = (int)threadIdx.x; i < m * n / 8; i += THREADS) {
        uint32_t code[8];
        for (int e = 0; e < 8; e++) {
            code[e] = nearest_level(level, bits, y[8 * i + e]);
            y[8 * i + e] -= level[code[e]];
        }
        for (int j = 0; j < bits; j++)
            *plane_at(o, side, part, i / (n / 8), j, i % (n / 8)) = (uint8_t)plane_of(code, j);
    }
    __syncthreads();
    if (!s.of.sketch || side)
        return;
    put_norms(y, m, n, half_at(o, side, part, n), norm);
    multiply_part(s.sketch[part], false, y, x, m, n);
    for (int i = (int)threadIdx.x; i < m * n / 8; i += THREADS) {
        uint32_t byte = 0;
        for (int e = 0; e < 8; e++)
            byte |= (x[8 * i + e] < 0 ? 1u : 0u) << e;
        *plane_at(o, side, part, i / (n / 8), bits, i % (n / 8)) = (uint8_t)byte;
    }
    __syncthreads();
}

/* Quantises K or V of a group of tokens. `tile` is scratch memory. Ends with a barrier of the
 * CTA. */
__device__ void code_side(const group_of &o, int side, uint8_t *list, float *tile, float *norm)
{
    const int n = o.a.split.of.group;
    float *const x = tile + o.a.d_head * n, *const y = x + o.a.d_head * n;
    load_group(o, side, tile);
    list_channels(o, side, list);
    for (int part = 0; part < 2; part++) {
        const int m = o.part.channels[side][part];
        const uint8_t *const from = list + (part ? o.part.channels[side][0] : 0);
        for (int i = (int)threadIdx.x; i < m * n; i += THREADS)
            x[i] = tile[from[i / n] * n + i % n];
        __syncthreads();
        if (m)
            code_part(o, side, part, x, y, norm);
    }
}

/* Quantises K and V of groups of tokens (methods vidkv and turboquant). `tile` is scratch
 * memory. */
__global__ void __launch_bounds__(THREADS) code_kernel(const __grid_constant__ kvd_packed_args a)
{
    extern __shared__ float tile[];
    __shared__ float norm[KVD_PAGE_TOKENS];
    __shared__ uint8_t list[WIDE];
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, z = (int)blockIdx.z, n = a.split.of.group;
    const coded_span s = coded_now(a, b);
    for (int first = s.from + z * n; first < s.to; first += (int)gridDim.z * n) {
        const group_of o = make_group(a, b, g, first);
        for (int side = 0; side < 2 && a.split.of.bits; side++)
            code_side(o, side, list, tile, norm);
        if (a.split.of.bits)
            continue;
        list_channels(o, 0, list);
        code_keys(o, list, tile, tile + a.d_head * n);
        code_values(o, tile, reinterpret_cast<uint8_t *>(tile + a.d_head * n));
    }
    if (a.q_len)
        keep_newest(a, b, g, s.to, s.m, z * (THREADS / 32) + (int)threadIdx.x / 32,
                    (int)gridDim.z * (THREADS / 32), (int)threadIdx.x % 32);
}

__device__ __forceinline__ uint32_t code_of(const group_of &o, int side, int part, int channel,
                                            int t)
{
    uint32_t code = 0;
    for (int j = 0; j < o.part.planes[side][part]; j++)
        code |= (uint32_t)(*plane_at(o, side, part, channel, j, t / 8) >> t % 8 & 1) << j;
    return code;
}

__device__ __forceinline__ void put(const group_of &o, uint16_t *rows, int side, int t, int i,
                                    float x)
{
    rows[place_in_page(o.a, o.g, side, (o.first + t) % KVD_PAGE_TOKENS, i)] =
        (uint16_t)(bf16_pair(x, 0) & 0xffff);
}

/* Decodes channels with more bits (part 0) or with fewer bits (part 1) of a group of tokens, for
 * method turboquant. Ends with a barrier of the CTA. */
__device__ void restore_part(const group_of &o, uint16_t *rows, int side, int part,
                             const uint8_t *list, float *x, float *y)
{
    const kvd_packed_split_codes &s = o.a.split;
    const int n = s.of.group, m = o.part.channels[side][part], bits = level_bits(o, side, part);
    const bool sketch = s.of.sketch && !side;
    const float *const level = levels_of(o, side, part);
    const uint16_t *const norm = half_at(o, side, part, 0);
    for (int i = (int)threadIdx.x; i < m * n; i += THREADS) {
        const uint32_t code = code_of(o, side, part, i / n, i % n);
        x[i] = level[code & ((1u << bits) - 1)];
        y[i] = code >> bits ? -1 : 1;
    }
    if (sketch) {
        float *const back = y + o.a.d_head * n;
        const float factor = (float)(sqrt(1.5707963267948966) / (double)m);
        multiply_part(s.sketch[part], true, y, back, m, n);
        for (int i = (int)threadIdx.x; i < m * n; i += THREADS)
            x[i] += half_of(norm[n + i % n], 0) * factor * back[i];
    }
    multiply_part(s.rotation[part], true, x, y, m, n);
    for (int i = (int)threadIdx.x; i < m * n; i += THREADS)
        put(o, rows, side, i % n, list[i / n], y[i] * half_of(norm[i % n], 0));
    __syncthreads();
}

/* Decodes K or V of a group of tokens to `rows`, for method turboquant. `tile` is scratch memory.
 * Ends with a barrier of the CTA. */
__device__ void restore_parts(const group_of &o, uint16_t *rows, int side, uint8_t *list,
                              float *tile)
{
    const int n = o.a.split.of.group, d = o.a.width[side][o.g],
              all = side ? o.a.map.d_v[o.g] : o.a.map.d_qk[o.g], chosen = o.part.channels[side][0];
    list_channels(o, side, list);
    for (int part = 0; part < 2; part++)
        if (o.part.channels[side][part])
            restore_part(o, rows, side, part, list + (part ? chosen : 0), tile,
                         tile + o.a.d_head * n);
    for (int i = (int)threadIdx.x; i < (all - d) * n; i += THREADS)
        put(o, rows, side, i % n, d + i / n, 0);
    __syncthreads();
}

/* Writes tokens `from` to `to` - 1 of a bf16 page. Tokens before `left` are copied from the ring
 * buffer; later tokens become 0. */
__device__ void fill_rows(const kvd_packed_args &a, int b, int g, int p, uint16_t *rows, int from,
                          int to, int left)
{
    const uint16_t *const ring = in_ring(a, b, p, g);
    const int units = (a.map.d_qk[g] + a.map.d_v[g]) / 8, k_units = a.map.d_qk[g] / 8,
              n = to - from;
    for (int i = (int)threadIdx.x; i < n * units; i += THREADS) {
        const int t = from + i % n, u = i / n, side = u >= k_units,
                  place = place_in_page(a, g, side, t, 8 * (u - side * k_units));
        *reinterpret_cast<uint4 *>(rows + place) =
            t < left ? eight_at(ring + place) : make_uint4(0, 0, 0, 0);
    }
}

/* Decodes quantised pages to bf16 pages a->rows. VIDKV is true for method vidkv. */
template <bool VIDKV>
__global__ void __launch_bounds__(THREADS) restore_kernel(const __grid_constant__ kvd_packed_args a)
{
    extern __shared__ __align__(16) char memory[];
    __shared__ uint8_t list[WIDE];
    __shared__ uint16_t digits[256];
    float *const tile = reinterpret_cast<float *>(memory);
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, m = a.kv_len[b], n = a.split.of.group,
              coded = keys_coded(a, m - 1), seen = first_seen(a, m);
    const vidkv_memory of_vidkv = divide_memory(a, memory, list, digits);
    if (VIDKV)
        make_inverse(a, a.width[0][g] - kvd_packed_chosen(&a.split.of, 0, a.width[0][g]), of_vidkv);
    for (int p = seen / KVD_PAGE_TOKENS + (int)blockIdx.z; KVD_PAGE_TOKENS * p < m;
         p += (int)gridDim.z) {
        const int t0 = KVD_PAGE_TOKENS * p, left = min(m - t0, (int)KVD_PAGE_TOKENS),
                  done = min(max(coded - t0, 0), (int)KVD_PAGE_TOKENS);
        uint16_t *const rows = in_rows(a, page_number(a, b, p), g);
        for (int first = 0; first < done; first += n) {
            if (t0 + first + n <= seen) {
                fill_rows(a, b, g, p, rows, first, first + n, 0);
                continue;
            }
            const group_of o = make_group(a, b, g, t0 + first);
            if (VIDKV) {
                restore_vidkv(o, of_vidkv, rows);
            } else {
                restore_parts(o, rows, 0, list, tile);
                restore_parts(o, rows, 1, list, tile);
            }
        }
        if (done < left)
            fill_rows(a, b, g, p, rows, done, (left + 7) / 8 * 8, left);
    }
}

size_t bytes_of(const kvd_packed_args *a, int tiles)
{
    return (size_t)(tiles * a->d_head * a->split.of.group) * sizeof(float);
}

} // namespace

cudaError_t kvd_packed_code_split(const kvd_packed_args *a, cudaStream_t stream)
{
    const unsigned heads = (unsigned)a->map.n_kv_heads, n = (unsigned)a->n;
    if (a->split.of.bits)
        choose_kernel<true><<<dim3(heads, n, 2), CHOOSE, 0, stream>>>(*a);
    else
        choose_kernel<false><<<dim3(heads, n), CHOOSE, 0, stream>>>(*a);
    return kvd_launch(code_kernel, grid_of(a), THREADS, bytes_of(a, a->split.of.bits ? 3 : 2),
                      stream, *a);
}

cudaError_t kvd_packed_restore_split(const kvd_packed_args *a, cudaStream_t stream)
{
    if (a->split.of.bits)
        return kvd_launch(restore_kernel<false>, grid_of(a), THREADS, bytes_of(a, 3), stream, *a);
    const kvd_packed_split_record widest =
        kvd_packed_split_record_of(&a->split.of, a->d_head, a->d_head);
    return kvd_launch(
        restore_kernel<true>, grid_of(a), THREADS,
        2 * (size_t)vidkv_numbers(a->d_head, a->split.of.group) + (size_t)widest.bytes, stream, *a);
}
