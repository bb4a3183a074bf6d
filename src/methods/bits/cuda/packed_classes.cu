/* Method zipcache on the GPU: quantises tokens, with more bits for those that received much
 * attention, and decodes them. */
#include "methods/bits/cuda/packed_code.cuh"
#include "methods/tokens/cuda/evict_rank.cuh"
#include "methods/tokens/cuda/radix_select.cuh"

namespace
{

enum { CHOOSE = 512, RANGE = 128, CODE = 256, LANES = CODE / KVD_PAGE_TOKENS, RECEIVE = 128 };

/* KV head g of request b. The prompt is one block of tokens; `last` is the last page with quantised
 * tokens. */
struct head_of {
    const kvd_packed_args &a;
    int b, g, prompt, last;
    kvd_packed_class_page page;
};

__device__ __forceinline__ head_of make_head(const kvd_packed_args &a, int b, int g, int prompt,
                                             int coded)
{
    return {a,
            b,
            g,
            prompt,
            max(coded - 1, 0) / KVD_PAGE_TOKENS,
            kvd_packed_class_page_of(&a.classes.of, a.map.d_qk[g], a.map.d_v[g])};
}

__device__ __forceinline__ char *codes_of(const head_of &o, int p)
{
    return in_codes(o.a, page_number(o.a, o.b, p), o.g);
}

struct member {
    int salient, number;
};

__device__ __forceinline__ member member_of(const head_of &o, int t)
{
    const uint32_t *const word = as_words(codes_of(o, t / KVD_PAGE_TOKENS));
    const int i = t % KVD_PAGE_TOKENS;
    const uint32_t bits = word[i / 32];
    const int before = (int)word[2] + (i < 32 ? 0 : __popc(word[0])) +
                       __popc(bits & ((1u << i % 32) - 1)),
              salient = (int)(bits >> i % 32 & 1);
    return {salient, salient ? before : t - before};
}

/* Returns the address of the quantised K (side 0) or V (side 1) of a token. */
__device__ __forceinline__ uint32_t *record_of(const head_of &o, int side, const member &m)
{
    const unsigned room = (unsigned)o.a.classes.of.room[m.salient], number = (unsigned)m.number;
    return as_words(codes_of(o, (int)min(number / room, (unsigned)o.last)) +
                    o.page.codes[side][m.salient]) +
           number % room * (unsigned)o.page.words[side][m.salient];
}

__device__ __forceinline__ uint32_t *area_of(const head_of &o, int first)
{
    return as_words(codes_of(o, first / KVD_PAGE_TOKENS) +
                    kvd_packed_class_area(&o.a.classes.of, &o.page, first));
}

/* Returns the first token of that block of tokens which contains token t. */
__device__ __forceinline__ int block_of(const head_of &o, int t)
{
    return t < o.prompt ? 0 : t / o.a.k_block * o.a.k_block;
}

__device__ __forceinline__ float *received_of(const kvd_packed_args &a, int b, int g, int t)
{
    const int room = KVD_PAGE_TOKENS * a.ring_pages;
    return a.classes.received +
           ((size_t)a.slot[b] * (size_t)a.map.n_kv_heads + (size_t)g) * (size_t)room + t % room;
}

/* Stores in `score` how much attention each prompt token received, summed over the query heads of
 * KV head g. */
__device__ void sum_prompt(const kvd_packed_args &a, int b, int g, const coded_span &s,
                           float *score)
{
    const kvd_packed_class_codes &c = a.classes;
    for (int t = (int)threadIdx.x; t < s.m; t += CHOOSE) {
        float sum = 0;
        for (int h = g * a.map.group; h < (g + 1) * a.map.group; h++)
            sum += c.mass[(size_t)h * (size_t)c.n_q8 + (size_t)(c.q_start[b] + t)];
        score[t] = sum;
        if (t >= s.to)
            *received_of(a, b, g, t) = sum;
    }
    __syncthreads();
}

/* Chooses the tokens of a block that get more bits, and marks them in the page's bit mask. */
__global__ void __launch_bounds__(CHOOSE) choose_kernel(const __grid_constant__ kvd_packed_args a)
{
    __shared__ unsigned bin[KVD_SELECT_BINS];
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, lane = (int)threadIdx.x % 32;
    const coded_span s = coded_now(a, b);
    const head_of o = make_head(a, b, g, s.prompt, s.to);
    const kvd_packed_class_codes &c = a.classes;
    float *const score =
        a.q_len ? c.score + (size_t)g * (size_t)c.n_q8 + (size_t)c.q_start[b] : nullptr;
    if (a.q_len)
        sum_prompt(a, b, g, s, score);
    if (a.q_len && g == 0 && threadIdx.x == 0)
        a.prompt[a.slot[b]] = s.to;
    if (s.from >= s.to)
        return;
    const int n = s.to - s.from, k = kvd_packed_salient(&c.of, n);
    const auto key = [&](int i) {
        const int t = s.from + i;
        const float sum = a.q_len ? score[t] : *received_of(a, b, g, t);
        return key_of(sum / (float)((s.m - t) * a.map.group), i);
    };
    const bool all = k >= n;
    const unsigned long long least =
        all || k < 1 ? ~0ull : select_key<CHOOSE>(key, n, k, bin, (unsigned)n);
    int before = kvd_packed_salient_before(&c.of, s.from, s.prompt);
    for (int first = s.from / 32 * 32; first < s.to; first += CHOOSE) {
        const int t = first + (int)threadIdx.x;
        const bool there = t >= s.from && t < s.to,
                   salient = there && (all || (k > 0 && key(t - s.from) >= least));
        const uint32_t mask = __ballot_sync(~0u, there), bits = __ballot_sync(~0u, salient);
        int sum;
        const int mine = before + select_place<CHOOSE>(salient, &sum);
        before += sum;
        if (!mask)
            continue;
        uint32_t *const word = as_words(codes_of(o, (t - lane) / KVD_PAGE_TOKENS));
        if (lane == 0) {
            uint32_t *const at = word + t % KVD_PAGE_TOKENS / 32;
            *at = (*at & ~mask) | bits;
        }
        if (there && t % KVD_PAGE_TOKENS == 0)
            word[2] = (uint32_t)mine;
    }
}

/* Writes the step and zero point of 8 key channels, or the largest magnitudes of 8 value channels,
 * for a block of tokens. */
__global__ void __launch_bounds__(RANGE) range_kernel(const __grid_constant__ kvd_packed_args a)
{
    __shared__ float low[2][RANGE / 32][8], high[2][RANGE / 32][8];
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, units = a.map.d_qk[g] / 8,
              side = (int)blockIdx.z >= units, u = (int)blockIdx.z - side * units,
              me = (int)threadIdx.x;
    const coded_span s = coded_now(a, b);
    if (s.from >= s.to || (side && u >= a.map.d_v[g] / 8))
        return;
    const head_of o = make_head(a, b, g, s.prompt, s.to);
    float lo[2][8], hi[2][8];
#pragma unroll
    for (int k = 0; k < 2; k++)
#pragma unroll
        for (int e = 0; e < 8; e++) {
            lo[k][e] = INFINITY;
            hi[k][e] = -INFINITY;
        }
    for (int t = s.from + me; t < s.to; t += RANGE) {
        const uint4 x = eight_at(uncoded(a, b, g, side, t, 8 * u));
        if (!side && member_of(o, t).salient)
            widen_ranges(lo[1], hi[1], x);
        else
            widen_ranges(lo[0], hi[0], x);
    }
#pragma unroll
    for (int k = 0; k < 2; k++)
#pragma unroll
        for (int e = 0; e < 8; e++) {
            lo[k][e] = min_of_warp(lo[k][e]);
            hi[k][e] = -min_of_warp(-hi[k][e]);
            if (me % 32 == 0) {
                low[k][me / 32][e] = lo[k][e];
                high[k][me / 32][e] = hi[k][e];
            }
        }
    __syncthreads();
    if (me >= (side ? 8 : 16))
        return;
    const int k = me / 8, e = me % 8, d_qk = a.map.d_qk[g];
    float least = low[k][0][e], most = high[k][0][e];
    for (int w = 1; w < RANGE / 32; w++) {
        least = fminf(least, low[k][w][e]);
        most = fmaxf(most, high[k][w][e]);
    }
    uint32_t *const area = area_of(o, s.from);
    if (side)
        reinterpret_cast<uint16_t *>(area + 2 * d_qk)[8 * u + e] =
            (uint16_t)(bf16_pair(fmaxf(-least, most), 0) & 0xffff);
    else
        area[k * d_qk + 8 * u + e] =
            half_bits((most - least) / (float)((1 << a.classes.of.bits[k]) - 1)) | half_bits(least)
                                                                                       << 16;
}

/* Returns the number by which a channel of V is divided: the square root of its largest magnitude
 * `most`, or 1 if that is 0. */
__device__ __forceinline__ float channel_scale(float most)
{
    return most > 0 ? __fsqrt_rn(most) : 1;
}

__device__ __forceinline__ void put_codes(uint32_t *record, int bits, int u,
                                          const uint32_t (&code)[8])
{
    uint8_t *const at = reinterpret_cast<uint8_t *>(record + u / 4 * bits) + u % 4;
    for (int j = 0; j < bits; j++)
        at[4 * j] = (uint8_t)plane_of(code, j);
}

__device__ void code_key(const head_of &o, int t, const member &m, int lane)
{
    const kvd_packed_args &a = o.a;
    const int d = a.map.d_qk[o.g], bits = a.classes.of.bits[m.salient];
    const float top = (float)((1 << bits) - 1);
    const uint32_t *const scale = area_of(o, block_of(o, t)) + m.salient * d;
    uint32_t *const record = record_of(o, 0, m);
    for (int u = lane; u < d / 8; u += LANES) {
        const uint4 x = eight_at(uncoded(a, o.b, o.g, 0, t, 8 * u));
        uint32_t code[8];
#pragma unroll
        for (int e = 0; e < 8; e++) {
            const uint32_t of = scale[8 * u + e];
            code[e] = even_code(number_of(x, e), half_of(of, 1), half_of(of, 0), top);
        }
        put_codes(record, bits, u, code);
    }
}

struct eight {
    float y[8];
};

__device__ __forceinline__ eight scaled(const head_of &o, int t, int u, const uint16_t *most)
{
    const uint4 x = eight_at(uncoded(o.a, o.b, o.g, 1, t, 8 * u)), by = eight_at(most + 8 * u);
    eight r;
#pragma unroll
    for (int e = 0; e < 8; e++)
        r.y[e] = __fdiv_rn(number_of(x, e), channel_scale(number_of(by, e)));
    return r;
}

struct ranges {
    float lo[LANES][KVD_PAGE_TOKENS], hi[LANES][KVD_PAGE_TOKENS];
};

__device__ void find_range(const head_of &o, int t, const uint16_t *most, int lane, ranges &r)
{
    const int width = o.a.width[1][o.g];
    float lo = INFINITY, hi = -INFINITY;
    for (int u = lane; 8 * u < width; u += LANES) {
        const eight x = scaled(o, t, u, most);
#pragma unroll
        for (int e = 0; e < 8; e++)
            if (8 * u + e < width) {
                lo = fminf(lo, x.y[e]);
                hi = fmaxf(hi, x.y[e]);
            }
    }
    r.lo[lane][t % KVD_PAGE_TOKENS] = lo;
    r.hi[lane][t % KVD_PAGE_TOKENS] = hi;
}

__device__ void code_value(const head_of &o, int t, const member &m, const uint16_t *most, int lane,
                           const ranges &r)
{
    const kvd_packed_args &a = o.a;
    const int bits = a.classes.of.bits[m.salient], i = t % KVD_PAGE_TOKENS;
    const float top = (float)((1 << bits) - 1);
    float lo = r.lo[0][i], hi = r.hi[0][i];
    for (int k = 1; k < LANES; k++) {
        lo = fminf(lo, r.lo[k][i]);
        hi = fmaxf(hi, r.hi[k][i]);
    }
    const float step = as_half((hi - lo) / top), zero = as_half(lo);
    uint32_t *const record = record_of(o, 1, m);
    for (int u = lane; u < a.map.d_v[o.g] / 8; u += LANES) {
        const eight x = scaled(o, t, u, most);
        uint32_t code[8];
#pragma unroll
        for (int e = 0; e < 8; e++)
            code[e] = even_code(x.y[e], zero, step, top);
        put_codes(record, bits, u, code);
    }
    if (lane == 0)
        record[o.page.words[1][m.salient] - 1] = half_bits(step) | half_bits(zero) << 16;
}

/* Quantises the tokens of a block. LANES threads share a token. */
__global__ void __launch_bounds__(CODE) code_kernel(const __grid_constant__ kvd_packed_args a)
{
    __shared__ ranges r;
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, z = (int)blockIdx.z,
              lane = (int)threadIdx.x / KVD_PAGE_TOKENS;
    const coded_span s = coded_now(a, b);
    const head_of o = make_head(a, b, g, s.prompt, s.to);
    const int d_qk = a.map.d_qk[g];
    const uint16_t *const most =
        s.from < s.to ? reinterpret_cast<const uint16_t *>(area_of(o, s.from) + 2 * d_qk) : nullptr;
    for (int p = s.from / KVD_PAGE_TOKENS + z; KVD_PAGE_TOKENS * p < s.to; p += (int)gridDim.z) {
        const int t = KVD_PAGE_TOKENS * p + (int)threadIdx.x % KVD_PAGE_TOKENS;
        const bool there = t >= s.from && t < s.to;
        const member m = there ? member_of(o, t) : member{0, 0};
        if (there) {
            code_key(o, t, m, lane);
            find_range(o, t, most, lane, r);
        }
        __syncthreads();
        if (there)
            code_value(o, t, m, most, lane, r);
        __syncthreads();
    }
    if (a.q_len)
        keep_newest(a, b, g, s.to, s.m, z * (CODE / 32) + (int)threadIdx.x / 32,
                    (int)gridDim.z * (CODE / 32), (int)threadIdx.x % 32);
}

/* Scales of one block of tokens of method zipcache, in shared memory. */
struct block_scales {
    /* [normal, salient tokens][channel] Step and zero point of K. Salient tokens have more bits. */
    float2 key[2][KVD_WIDTH_MAX + 4];
    float value[KVD_WIDTH_MAX]; /* factor of each channel of values */
};

/* Loads the scales of the block of tokens that begins with token `first`. Begins and ends with a
 * barrier of the CTA. */
__device__ void load_scales(const head_of &o, int first, block_scales &s)
{
    const int d = o.a.map.d_qk[o.g];
    const uint32_t *const area = area_of(o, first);
    const uint16_t *const most = reinterpret_cast<const uint16_t *>(area + 2 * d);
    __syncthreads();
    for (int i = (int)threadIdx.x; i < 2 * d; i += CODE)
        s.key[i / d][i % d] = make_float2(half_of(area[i], 0), half_of(area[i], 1));
    for (int i = (int)threadIdx.x; i < o.a.map.d_v[o.g]; i += CODE)
        s.value[i] = channel_scale(bf16_of(most[i], 0));
    __syncthreads();
}

/* Returns channels 8 u .. 8 u + 7 of K (SIDE 0) or V (SIDE 1) of a token in bf16. */
template <int SIDE>
__device__ __forceinline__ uint4 restored(const block_scales &s, const uint32_t (&word)[8],
                                          int bits, int salient, uint32_t of_token, int u)
{
    uint32_t code[2];
    float y[8];
    codes_of_planes(word, bits, u % 4, code);
#pragma unroll
    for (int e = 0; e < 8; e++) {
        const float x = raised_byte(code[e / 4], e % 4) - RAISED;
        if (SIDE) {
            y[e] = __fmul_rn(decoded(of_token, x), s.value[8 * u + e]);
        } else {
            const float2 scale = s.key[salient][8 * u + e];
            y[e] = __fadd_rn(__fmul_rn(scale.x, x), scale.y);
        }
    }
    return make_uint4(bf16_pair(y[0], y[1]), bf16_pair(y[2], y[3]), bf16_pair(y[4], y[5]),
                      bf16_pair(y[6], y[7]));
}

/* Decodes K (SIDE 0) or V (SIDE 1) of token t of page p with the scales s. LANES threads share a
 * token. */
template <int SIDE>
__device__ void restore_side(const head_of &o, const block_scales &s, uint16_t *rows, int p, int t)
{
    const member m = member_of(o, KVD_PAGE_TOKENS * p + t);
    const int bits = o.a.classes.of.bits[m.salient],
              units = (SIDE ? o.a.map.d_v[o.g] : o.a.map.d_qk[o.g]) / 8;
    const uint32_t *const record = record_of(o, SIDE, m);
    const uint32_t of_token = SIDE ? record[o.page.words[1][m.salient] - 1] : 0;
    for (int q = (int)threadIdx.x / KVD_PAGE_TOKENS; 4 * q < units; q += LANES) {
        uint32_t word[8];
#pragma unroll
        for (int j = 0; j < 8; j++)
            word[j] = j < bits ? record[q * bits + j] : 0;
#pragma unroll
        for (int u = 4 * q; u < 4 * q + 4; u++)
            if (u < units)
                *reinterpret_cast<uint4 *>(rows + place_in_page(o.a, o.g, SIDE, t, 8 * u)) =
                    restored<SIDE>(s, word, bits, m.salient, of_token, u);
    }
}

/* Copies tokens done .. left - 1 of page p from the ring buffer to the bf16 page `rows`. Fills up
 * the last group of 8 tokens with zeros. */
__device__ void copy_newest(const head_of &o, uint16_t *rows, int p, int done, int left)
{
    const int t = (int)threadIdx.x % KVD_PAGE_TOKENS, keys = o.a.map.d_qk[o.g] / 8,
              units = keys + o.a.map.d_v[o.g] / 8;
    const uint16_t *const ring = in_ring(o.a, o.b, p, o.g);
    for (int u = (int)threadIdx.x / KVD_PAGE_TOKENS;
         t >= done && t < (left + 7) / 8 * 8 && u < units; u += LANES) {
        const int side = u >= keys, place = place_in_page(o.a, o.g, side, t, 8 * (u - side * keys));
        *reinterpret_cast<uint4 *>(rows + place) =
            t < left ? eight_at(ring + place) : make_uint4(0, 0, 0, 0);
    }
}

__global__ void __launch_bounds__(CODE) restore_kernel(const __grid_constant__ kvd_packed_args a)
{
    __shared__ block_scales s;
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, m = a.kv_len[b],
              t = (int)threadIdx.x % KVD_PAGE_TOKENS, coded = keys_coded(a, m - 1);
    const head_of o = make_head(a, b, g, min(a.prompt[a.slot[b]], coded), coded);
    int loaded = -1; /* block in `s` */
    for (int p = (int)blockIdx.z; KVD_PAGE_TOKENS * p < m; p += (int)gridDim.z) {
        uint16_t *const rows = in_rows(a, page_number(a, b, p), g);
        const int left = min(m - KVD_PAGE_TOKENS * p, (int)KVD_PAGE_TOKENS),
                  done = min(max(coded - KVD_PAGE_TOKENS * p, 0), (int)KVD_PAGE_TOKENS);
        for (int from = 0, to; from < done; from = to) {
            const int block = block_of(o, KVD_PAGE_TOKENS * p + from),
                      end = block < o.prompt ? o.prompt : block + a.k_block;
            to = min(done, end - KVD_PAGE_TOKENS * p);
            if (block != loaded)
                load_scales(o, block, s);
            loaded = block;
            if (t < from || t >= to)
                continue;
            restore_side<0>(o, s, rows, p, t);
            restore_side<1>(o, s, rows, p, t);
        }
        copy_newest(o, rows, p, done, left);
    }
}

/* Adds the attention that tokens receive in a decode step to a->received, for tokens that are not
 * quantised yet. */
__global__ void __launch_bounds__(RECEIVE)
    receive_kernel(const __grid_constant__ kvd_packed_args a, const uint16_t *all, const float *lse)
{
    extern __shared__ float query[];
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, m = a.kv_len[b], d = a.map.d_qk[g],
              group = a.map.group, head = g * group;
    for (int i = (int)threadIdx.x; i < group * d; i += RECEIVE)
        query[i] = bf16_of(all[(size_t)b * (size_t)a.map.q_pitch +
                               (size_t)a.map.q_offset[head + i / d] + (size_t)(i % d)],
                           0);
    __syncthreads();
    for (int t = keys_coded(a, m - 1) + (int)threadIdx.x; t < m; t += RECEIVE) {
        float product[KVD_GROUP_MAX] = {}, sum = 0;
        for (int u = 0; u < d / 8; u++) {
            const uint4 x = eight_at(uncoded(a, b, g, 0, t, 8 * u));
#pragma unroll
            for (int j = 0; j < KVD_GROUP_MAX; j++)
                if (j < group)
#pragma unroll
                    for (int e = 0; e < 8; e++)
                        product[j] = fmaf(number_of(x, e), query[j * d + 8 * u + e], product[j]);
        }
#pragma unroll
        for (int j = 0; j < KVD_GROUP_MAX; j++)
            if (j < group)
                sum += expf(product[j] * a.map.scale -
                            lse[(size_t)b * (size_t)a.map.n_heads + (size_t)(head + j)]);
        float *const to = received_of(a, b, g, t);
        *to = t < m - 1 ? *to + sum : sum;
    }
}

} // namespace

cudaError_t kvd_packed_receive(const kvd_packed_args *a, const void *q, const float *lse,
                               cudaStream_t stream)
{
    if (a->q_len || a->map.group > KVD_GROUP_MAX)
        return cudaErrorInvalidValue;
    const size_t bytes = (size_t)(a->map.group * a->d_head) * sizeof(float);
    receive_kernel<<<dim3((unsigned)a->map.n_kv_heads, (unsigned)a->n), RECEIVE, bytes, stream>>>(
        *a, static_cast<const uint16_t *>(q), lse);
    return cudaGetLastError();
}

cudaError_t kvd_packed_code_classes(const kvd_packed_args *a, cudaStream_t stream)
{
    const unsigned heads = (unsigned)a->map.n_kv_heads, n = (unsigned)a->n;
    int units = 0;
    if (a->q_len && (!a->classes.mass || !a->classes.score || !a->classes.q_start))
        return cudaErrorInvalidValue;
    for (int g = 0; g < a->map.n_kv_heads; g++)
        units = max(units, (a->map.d_qk[g] + a->map.d_v[g]) / 8);
    choose_kernel<<<dim3(heads, n), CHOOSE, 0, stream>>>(*a);
    range_kernel<<<dim3(heads, n, (unsigned)units), RANGE, 0, stream>>>(*a);
    code_kernel<<<grid_of(a), CODE, 0, stream>>>(*a);
    return cudaGetLastError();
}

cudaError_t kvd_packed_restore_classes(const kvd_packed_args *a, cudaStream_t stream)
{
    restore_kernel<<<grid_of(a), CODE, 0, stream>>>(*a);
    return cudaGetLastError();
}
