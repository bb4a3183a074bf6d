/*
 * Attention of decode steps on KV pages that are quantised with equal steps:
 *
 *   O[b, h] = softmax(Q[b, h] K[b, g]^T / sqrt(d_head)) V[b, g]
 *
 * with K = s code + zero per channel, and V = s code + zero per token (kivi) or channel (comet).
 * Symmetric codes have zero = -s (2^(bits - 1) - 1).
 *
 * The pages of all requests and KV heads form one list that is cut into equal runs, one per warp. A
 * run that ends within a head writes a partial result. A second launch merges partial results in an
 * order that depends on the lengths and the number of requests only, so that the same batch gives
 * the same results.
 */
#include "methods/bits/cuda/packed_decode.cuh"

namespace
{

/*
 * Returns log2 of the factor by which the codes in registers 1 and 3 of an mma A operand are too
 * large. They are not shifted down to the lowest bits.
 */
template <int B> __device__ constexpr int twos()
{
    return B == 8 ? 0 : B == 4 ? 4 : 2;
}

template <int B>
__device__ __forceinline__ void tile_of(const uint32_t (&w)[B], int m, uint32_t (&a)[4])
{
    if (B == 8) {
#pragma unroll
        for (int r = 0; r < 4; r++)
            a[r] = w[2 * m % B + r / 2] >> r % 2 * 8 & 0x00ff00ffu;
    } else if (B == 4) {
#pragma unroll
        for (int r = 0; r < 4; r++)
            a[r] = w[m % B] >> r / 2 * 8 & 0x000f000fu << r % 2 * 4;
    } else {
#pragma unroll
        for (int r = 0; r < 4; r++) {
            a[r] = w[m / 2] >> (m % 2 * 8 + r / 2 * 4) & 0x00030003u << r % 2 * 2;
            if (B == 3)
                a[r] |= shifted(w[B - 1], 4 * m + r - 2 - r % 2 * 2) & 0x00040004u << r % 2 * 2;
        }
    }
}

/*
 * Reads pages of equal quantisation steps. If FINE, a scale of keys or of values is shared by 16
 * numbers, otherwise by 32 or 64. If CHANNELS, values have scales per channel, as keys do.
 */
template <int B, int N, bool FINE, bool CHANNELS> struct even_page {
    /*
     * UNITS is the number of blocks of 16 dimensions. A tile is 16 tokens of K or 16 dimensions of
     * V. SHARE is the number of adjacent tiles that share scales, whatever the group size is.
     */
    static constexpr int UNITS = N, WARPS = 8, SHARE = FINE ? 1 : 2;
    static constexpr bool BF = false, ZEROS = !CHANNELS, NEWEST = false;
    /*
     * CODE is 2^-24, the float16 number with bit pattern 1. Codes in rows 8 .. 15 of an mma A
     * operand are too large by the factor ROWS.
     */
    static constexpr float CODE = 1.0f / (1 << 24), ROWS = 1 << twos<B>();
    typedef words_ahead<B, N, false> words;
    queries<N> q;

    static __device__ constexpr float code_factor(int r)
    {
        return r % 2 ? CODE * ROWS : CODE;
    }

    static __device__ constexpr float factor(int r)
    {
        return CHANNELS ? 1 : code_factor(r);
    }

    /*
     * Returns the code of the number 0 in symmetric codes, which is subtracted when codes are
     * decoded.
     */
    static __device__ constexpr float middle()
    {
        return (1 << B) / 2 - 1;
    }

    static __device__ constexpr float outputs()
    {
        return 1;
    }

    __device__ even_page(const packed_params &, char *, char *)
    {
    }

    static __device__ __forceinline__ void ready(const packed_params &, char *, char *)
    {
    }

    __device__ __forceinline__ void begin(const packed_params &p, const cursor &at, int lane)
    {
        load_queries(p, p.d.q, at.b, at.g, lane, q);
    }

    static __device__ __forceinline__ void copy(const packed_params &p, const cursor &,
                                                const char *codes, uint32_t stage, int lane)
    {
        copy_ahead(stage, codes + p.parts.k_side, p.newest_at, lane);
    }

    __device__ __forceinline__ void scores(const packed_params &p, const cursor &,
                                           const char *stage, words &w, const char *codes,
                                           float (&s)[4][4], int lane)
    {
        const int shift = p.k_shift - 1;
        const bool mine = lane / 4 < 4 >> shift;
        const bool symmetric = CHANNELS && p.a.form.symmetric;
        const char *const zeros =
            stage + lane % 4 * 16 + (mine ? lane / 4 * 64 * N : 0) + (symmetric ? 0 : 8);
        const char *side[4 / SHARE];
        float sum[4][4] = {}, zero[4] = {};
#pragma unroll
        for (int i = 0; i < 4 / SHARE; i++)
            side[i] = stage + lane % 4 * 16 + (SHARE * i >> shift) * 64 * N;
#pragma unroll
        for (int u = 0; u < N; u++) {
            uint32_t a[4][4], scaled[2] = {};
#pragma unroll
            for (int m = 0; m < 4; m++)
                tile_of<B>(w.w[u % words::AHEAD], m, a[m]);
            w.taken(0, u, codes, codes + p.parts.v);
#pragma unroll
            for (int m = 0; m < 4; m++) {
                if (m % SHARE == 0) {
                    const uint2 scale = *reinterpret_cast<const uint2 *>(side[m / SHARE] + 64 * u);
                    scaled[0] = times(q.half[u][0], scale.x);
                    scaled[1] = times(q.half[u][1], scale.y);
                }
                multiply<false>(sum[m], a[m], scaled[0], scaled[1]);
            }
            const uint2 z = *reinterpret_cast<const uint2 *>(zeros + 64 * u);
            const uint32_t rows[4] = {z.x, 0, z.y, 0};
            multiply<false>(zero, rows, q.half[u][0], q.half[u][1]);
        }
        const float unit[2] = {p.scale_log2 * q.unit[0], p.scale_log2 * q.unit[1]};
#pragma unroll
        for (int m = 0; m < 4; m++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const float z = __shfl_sync(~0u, zero[e], (m >> shift) * 4 + lane % 4) *
                                (symmetric ? -middle() * unit[e] : unit[e]);
                s[m][e] = fmaf(sum[m][e], unit[e] * (1 / code_factor(0)), z);
                s[m][2 + e] = fmaf(sum[m][2 + e], unit[e] * (1 / code_factor(1)), z);
            }
    }

    /*
     * Adds the values of SHARE tiles of 16 tokens from tile `first` on, in 16 dimensions. `scale`
     * points to the scale of dimension lane / 4; the lane also has dimension lane / 4 + 8. `all`
     * has the sums of the probabilities of the lane's two query heads.
     */
    static __device__ __forceinline__ void add_tiles(const uint16_t *scale, bool symmetric,
                                                     int first, const uint32_t (&a)[4][4],
                                                     const uint32_t (&prob)[8],
                                                     const float (&all)[4], float (&o)[4])
    {
        float sum[4] = {};
#pragma unroll
        for (int k = first; k < first + SHARE; k++) {
            const uint32_t rows[4] = {exchanged(a[k][0]), exchanged(a[k][2]),
                                      exchanged(a[k][1] >> twos<B>()),
                                      exchanged(a[k][3] >> twos<B>())};
            multiply<false>(sum, rows, prob[2 * k], prob[2 * k + 1]);
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float step = half_of(scale[2 * h], 0),
                        zero = symmetric ? -middle() * step : half_of(scale[2 * h + 4], 0);
#pragma unroll
            for (int e = 0; e < 2; e++)
                o[2 * h + e] += step * (1 / CODE) * sum[2 * h + e] + zero * all[e];
        }
    }

    /* Adds the values of a page to the outputs, if values have one scale per channel. */
    static __device__ __forceinline__ void add_channels(const packed_params &p, const cursor &at,
                                                        const char *stage, words &w,
                                                        const char *codes, const char *next,
                                                        const uint32_t (&prob)[8], state<N> &st,
                                                        int lane)
    {
        const int coded = at.values - KVD_PAGE_TOKENS * at.page;
        const uint32_t one = 0x3c003c00u, ones[4] = {one, one, one, one};
        const char *const side = stage + p.parts.v_side - p.parts.k_side;
        float all[4 / SHARE][4] = {};
#pragma unroll
        for (int k = 0; k < 4; k++)
            multiply<false>(all[k / SHARE], ones, prob[2 * k], prob[2 * k + 1]);
#pragma unroll
        for (int u = 0; u < N; u++) {
            uint32_t a[4][4];
#pragma unroll
            for (int k = 0; k < 4; k++)
                tile_of<B>(w.w[u % words::AHEAD], k, a[k]);
            w.taken(1, u, codes + p.parts.v, next);
#pragma unroll
            for (int k = 0; k < 4; k += SHARE)
                if (16 * k < coded)
                    add_tiles(reinterpret_cast<const uint16_t *>(
                                  side + 64 * ((k >> (p.k_shift - 1)) * N + u)) +
                                  kvd_packed_scale(lane / 4),
                              p.a.form.symmetric, k, a, prob, all[k / SHARE], st.o[u]);
        }
    }

    __device__ __forceinline__ void values(const packed_params &p, const cursor &at,
                                           const char *stage, words &w, const char *codes,
                                           const char *next, const uint32_t (&prob)[8],
                                           state<N> &st, int lane)
    {
        if constexpr (CHANNELS) {
            add_channels(p, at, stage, w, codes, next, prob, st, lane);
            return;
        }
        const char *const side = stage + p.parts.v_side - p.parts.k_side + lane % 4 * 16;
        const int group = min(lane / 4, (N - 1) >> p.v_shift);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const uint2 z = *reinterpret_cast<const uint2 *>(side + group * 256 + 64 * k + 8);
            const uint32_t rows[4] = {z.x, 0, z.y, 0};
            multiply<false>(st.zero, rows, prob[2 * k], prob[2 * k + 1]);
        }
        uint32_t scaled[8] = {};
#pragma unroll
        for (int u = 0; u < N; u++) {
            if (u % SHARE == 0)
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    const uint2 scale =
                        *reinterpret_cast<const uint2 *>(side + (u >> p.v_shift) * 256 + 64 * k);
                    scaled[2 * k] = times(prob[2 * k], scale.x);
                    scaled[2 * k + 1] = times(prob[2 * k + 1], scale.y);
                }
            uint32_t a[4][4];
#pragma unroll
            for (int k = 0; k < 4; k++)
                tile_of<B>(w.w[u % words::AHEAD], k, a[k]);
            w.taken(1, u, codes + p.parts.v, next);
#pragma unroll
            for (int k = 0; k < 4; k++)
                multiply<false>(st.o[u], a[k], scaled[2 * k], scaled[2 * k + 1]);
        }
    }
};

template <int MERGERS>
__global__ void __launch_bounds__(32 * MERGERS)
    merge_kernel(const __grid_constant__ packed_params p)
{
    __shared__ float o[MERGERS][KVD_WIDTH_NARROW];
    __shared__ float2 ml[MERGERS];
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, row = (int)blockIdx.z,
              warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int pages = p.d.pages_before[b + 1] - p.d.pages_before[b],
              each = p.d.pages_before[p.a.n + 1];
    if (pages == 0)
        return;
    const int x0 = p.d.pages_before[b] * p.a.map.n_kv_heads + g * pages;
    const int first = x0 / each, last = (x0 + pages - 1) / each;
    if (first == last)
        return;
    float max = -INFINITY, sum = 0;
    float4 acc = make_float4(0, 0, 0, 0);
#pragma unroll 4
    for (int w = first + warp; w <= last; w += MERGERS) {
        const float *const slot =
            p.d.partial + (size_t)(2 * w + (w == first)) * (size_t)p.slot_floats;
        const float2 part = *reinterpret_cast<const float2 *>(slot + 2 * row);
        const float4 x =
            *reinterpret_cast<const float4 *>(slot + 2 * HEADS + row * KVD_WIDTH_NARROW + 4 * lane);
        const float most = fmaxf(max, part.x), f = power_of_two(max - most),
                    h = power_of_two(part.x - most);
        max = most;
        sum = sum * f + part.y * h;
        acc.x = acc.x * f + x.x * h;
        acc.y = acc.y * f + x.y * h;
        acc.z = acc.z * f + x.z * h;
        acc.w = acc.w * f + x.w * h;
    }
    *reinterpret_cast<float4 *>(&o[warp][4 * lane]) = acc;
    if (lane == 0)
        ml[warp] = make_float2(max, sum);
    __syncthreads();
    const int dim = (int)threadIdx.x;
    if (dim >= p.width)
        return;
    float most = -INFINITY, all = 0, x = 0;
    for (int w = 0; w < MERGERS; w++)
        most = fmaxf(most, ml[w].x);
#pragma unroll 8
    for (int w = 0; w < MERGERS; w++) {
        const float f = power_of_two(ml[w].x - most);
        all += ml[w].y * f;
        x += o[w][dim] * f;
    }
    const int head = g * p.a.map.group + row;
    output_of(p, b, head)[dim] = __float2bfloat16_rn(x / (all + sink_term(p, head, most)));
}

/* Returns the number of pages with the newest `window` of m tokens; window 0: with all tokens. */
__device__ __forceinline__ int pages_read(int m, int window)
{
    return (m + KVD_PAGE_TOKENS - 1) / KVD_PAGE_TOKENS -
           (window ? max(m - window, 0) / KVD_PAGE_TOKENS : 0);
}

/*
 * Writes prefix sums of page counts to before[0 .. n], then the number of pages per warp. Requests
 * from number `*live` on are padding and count as empty. Must be launched with one CTA.
 */
__global__ void __launch_bounds__(1024)
    plan_kernel(const int32_t *kv_len, const int32_t *live, int n, int window, int heads,
                int warps_of_all, int32_t *before)
{
    __shared__ int32_t warps[32];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int n_live = live ? min(*live, n) : n;
    int carried = 0;
    if (threadIdx.x == 0)
        before[0] = 0;
    for (int i0 = 0; i0 < n; i0 += 1024) {
        const int i = i0 + (int)threadIdx.x;
        int x = i < n_live ? pages_read(kv_len[i], window) : 0;
        for (int k = 1; k < 32; k *= 2) {
            const int y = __shfl_up_sync(~0u, x, k);
            x += lane >= k ? y : 0;
        }
        if (lane == 31)
            warps[warp] = x;
        __syncthreads();
        int all = 0;
        for (int w = 0; w < 32; w++) {
            x += w < warp ? warps[w] : 0;
            all += warps[w];
        }
        if (i < n)
            before[i + 1] = carried + x;
        carried += all;
        __syncthreads();
    }
    if (threadIdx.x == 0)
        before[n + 1] = (carried * heads + warps_of_all - 1) / warps_of_all;
}

template <int N, bool FINE, bool CHANNELS> kvd_packed_decode_kernel of_bits(int bits)
{
    return bits == 2   ? packed_decode_kernel<even_page<2, N, FINE, CHANNELS>>
           : bits == 3 ? packed_decode_kernel<even_page<3, N, FINE, CHANNELS>>
           : bits == 4 ? packed_decode_kernel<even_page<4, N, FINE, CHANNELS>>
           : bits == 8 ? packed_decode_kernel<even_page<8, N, FINE, CHANNELS>>
                       : NULL;
}

template <int N> kvd_packed_decode_kernel of_form(const kvd_packed_form *f)
{
    const bool fine = f->k_group == 16 || f->v_group == 16;
    if (f->v_channels)
        return fine ? of_bits<N, true, true>(f->bits) : of_bits<N, false, true>(f->bits);
    return fine ? of_bits<N, true, false>(f->bits) : of_bits<N, false, false>(f->bits);
}

kvd_packed_decode_kernel kernel_of(const kvd_packed_args *a)
{
    const int d = a->map.d_qk[0];
    for (int g = 0; g < a->map.n_kv_heads; g++)
        if (a->map.d_qk[g] != d || a->map.d_v[g] != d)
            return NULL;
    if (a->map.group > HEADS || a->form.allotted || a->form.rows || kvd_packed_in_blocks(&a->form))
        return NULL;
    /*
     * The kernel of kivi also reads unquantised tokens. The other kernels expect that all tokens
     * but the newest one are quantised.
     */
    if (!a->form.k_group && (a->k_block != 1 || a->v_newest))
        return NULL;
    if (a->form.norms)
        return kvd_packed_turned_kernel(a);
    if (a->level)
        return kvd_packed_levels_kernel(a);
    if (a->form.exponent)
        return kvd_packed_floats_kernel(a);
    return d == 64 ? of_form<4>(&a->form) : d == 128 ? of_form<8>(&a->form) : NULL;
}

int log2_of(int x)
{
    int n = 0;
    while (x > 1 << n)
        n++;
    return n;
}

/*
 * Sets `*p`, with as many warps per CTA as fit in shared memory. Returns false if none fits or the
 * device cannot be queried.
 */
bool lay_out(const kvd_packed_args *a, packed_params *p)
{
    int device, most;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) !=
            cudaSuccess)
        return false;
    *p = {};
    p->a = *a;
    p->parts = kvd_packed_parts_of(&a->form, a->map.d_qk[0], a->map.d_v[0]);
    p->width = a->map.d_qk[0];
    p->scale_log2 = a->map.scale * 1.4426950408889634f;
    p->slot_floats = HEADS * (2 + KVD_WIDTH_NARROW);
    p->k_shift = log2_of(a->form.k_group / 8);
    p->v_shift = log2_of(a->form.v_group / 16);
    p->newest_at = max(p->parts.v_list - p->parts.k_side, 16);
    p->warps = 8;
    if (a->form.norms)
        kvd_packed_turned_lay_out(p);
    else if (a->level)
        kvd_packed_levels_lay_out(p);
    else if (a->form.exponent)
        kvd_packed_floats_lay_out(p);
    p->stage_bytes = p->newest_at + (a->form.k_group ? 0 : 4 * p->width);
    p->warps = min((most - p->shared_bytes) / (2 * p->stage_bytes + p->scratch_bytes), p->warps);
    return p->warps > 0;
}

} // namespace

bool kvd_packed_decodes(const kvd_packed_args *a)
{
    packed_params p;
    return kernel_of(a) && lay_out(a, &p);
}

size_t kvd_packed_decode_bytes(int n_ctas)
{
    return (size_t)n_ctas * WARPS_MOST * 2 * HEADS * (2 + KVD_WIDTH_NARROW) * sizeof(float);
}

cudaError_t kvd_packed_decode_plan(const kvd_packed_args *a, const kvd_packed_decode_args *d,
                                   cudaStream_t stream)
{
    packed_params p;
    if (!kernel_of(a) || !lay_out(a, &p) || a->n < 1 || d->n_ctas < 1)
        return cudaErrorInvalidValue;
    plan_kernel<<<1, 1024, 0, stream>>>(a->kv_len, d->live, a->n, a->map.window, a->map.n_kv_heads,
                                        d->n_ctas * p.warps, d->pages_before);
    return cudaGetLastError();
}

cudaError_t kvd_packed_decode(const kvd_packed_args *a, const kvd_packed_decode_args *d,
                              cudaStream_t stream)
{
    packed_params p;
    const kvd_packed_decode_kernel run = kernel_of(a);
    if (!run || !lay_out(a, &p) || a->n < 1 || a->n > 65535 || d->n_ctas < 1 ||
        (a->form.sketch && !d->sketched))
        return cudaErrorInvalidValue;
    p.d = *d;
    const size_t bytes = (size_t)(p.shared_bytes + p.warps * (2 * p.stage_bytes + p.scratch_bytes));
    cudaError_t e =
        cudaFuncSetAttribute(run, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (e != cudaSuccess)
        return e;
    run<<<(unsigned)d->n_ctas, 32 * (unsigned)p.warps, bytes, stream>>>(p);
    e = cudaGetLastError();
    if (e != cudaSuccess)
        return e;
    const dim3 grid((unsigned)a->map.n_kv_heads, (unsigned)a->n, (unsigned)a->map.group);
    /*
     * With few query heads, the tokens of each head are split among many CTAs, so more warps merge
     * their results.
     */
    if (a->map.n_kv_heads * a->n * a->map.group <= 2 * d->n_ctas)
        merge_kernel<32><<<grid, 1024, 0, stream>>>(p);
    else
        merge_kernel<8><<<grid, 256, 0, stream>>>(p);
    return cudaGetLastError();
}
