/*
 * LeanKV behind the attention of a step (Algorithm 1), a CTA per KV head of every row. It goes over all entries once: adds what they received,
 * means significance over those outside the window, finds the least significant of each level and the token that leaves the window. Then at
 * most one vector goes from the high to the low section, at most one is dropped, and the new token takes the place that is free or the next.
 *
 * Bound by latency in small batches, by 12 + 4 group bytes an entry in large ones.
 */
#include "serving/cuda/leankv.cuh"

namespace
{

enum {
    WARPS = 32,
    THREADS = 32 * WARPS,
    HEADS = 8,
    AT_ONCE = 2 /* entries of a thread that are loaded together */
};

/* Of entries of a level outside the window: the least significant, of equals the oldest. */
struct least {
    unsigned long long key; /* bits of its significance, then its position */
    int at;
};

struct found {
    least level[KVD_LEANKV_LEVELS];
    int leaving; /* among the high ones; -1: no token leaves */
    float leaving_significance;
};

/* What is done. Indices into sections; -1: nothing. */
struct decision {
    int lowered, low_to; /* high entry that becomes a low one, and where  */
    int fresh_to;        /* of the new token                               */
    int n[KVD_LEANKV_LEVELS];
};

__device__ __forceinline__ float significance_of(unsigned long long key)
{
    return __uint_as_float((uint32_t)(key >> 32));
}

/* Mean over the group of a token's probabilities. */
__device__ __forceinline__ float received(const float (&score)[HEADS], const float *lse2, int group)
{
    float sum = 0;
#pragma unroll
    for (int j = 0; j < HEADS; j++)
        sum += j < group ? exp2f(score[j] - lse2[j]) : 0.0f;
    return sum / (float)group;
}

__device__ __forceinline__ void load_scores(const float *from, int group, float (&score)[HEADS])
{
#pragma unroll
    for (int j = 0; j < HEADS; j++)
        score[j] = j < group ? from[j] : 0.0f;
}

__device__ __forceinline__ void lesser(least *x, const least &y)
{
    if (y.key < x->key)
        *x = y;
}

/* Sum and least of the CTA, in thread 0. */
__device__ void reduce(double *sum, least (&x)[KVD_LEANKV_LEVELS])
{
    __shared__ least part[WARPS][KVD_LEANKV_LEVELS];
    __shared__ double sums[WARPS];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    for (int round = 0; round < 2; round++) {
#pragma unroll
        for (int step = 16; step; step /= 2) {
            *sum += __shfl_xor_sync(~0u, *sum, step);
#pragma unroll
            for (int l = 0; l < KVD_LEANKV_LEVELS; l++)
                lesser(&x[l],
                       least{__shfl_xor_sync(~0u, x[l].key, step), __shfl_xor_sync(~0u, x[l].at, step)});
        }
        if (round)
            return;
        if (lane == 0) {
            sums[warp] = *sum;
            part[warp][KVD_LEANKV_HIGH] = x[KVD_LEANKV_HIGH];
            part[warp][KVD_LEANKV_LOW] = x[KVD_LEANKV_LOW];
        }
        __syncthreads();
        if (warp)
            return;
        *sum = sums[lane];
        x[KVD_LEANKV_HIGH] = part[lane][KVD_LEANKV_HIGH];
        x[KVD_LEANKV_LOW] = part[lane][KVD_LEANKV_LOW];
    }
}

__device__ decision decide(const kvd_leankv_head &h, const found &f, double mean)
{
    decision d = {-1, -1, h.n[KVD_LEANKV_HIGH], {h.n[KVD_LEANKV_HIGH], h.n[KVD_LEANKV_LOW]}};
    const double not_low = (double)h.cut[KVD_LEANKV_LOW], not_high = (double)h.cut[KVD_LEANKV_HIGH];
    const double now = (double)f.leaving_significance / mean;
    if (f.leaving >= 0 && now < not_low) {
        d.fresh_to = f.leaving;
    } else if (f.leaving >= 0 && now < not_high) {
        const least &v = f.level[KVD_LEANKV_LOW];
        d.fresh_to = d.lowered = f.leaving;
        d.low_to =
            v.at >= 0 && (double)significance_of(v.key) / mean < not_low ? v.at : d.n[KVD_LEANKV_LOW]++;
    } else if (f.leaving >= 0) {
        const least &v = f.level[KVD_LEANKV_HIGH];
        const double its = (double)significance_of(v.key) / mean;
        if (its < not_high)
            d.fresh_to = v.at;
        if (its >= not_low && its < not_high) {
            d.lowered = v.at;
            d.low_to = d.n[KVD_LEANKV_LOW]++;
        }
    }
    if (d.fresh_to == h.n[KVD_LEANKV_HIGH])
        d.n[KVD_LEANKV_HIGH]++;
    return d;
}

/* ---- vectors, one warp each ----------------------------------------------------------------------------------- */

/* What an entry's key or value stands for, as a cache in bf16 holds it. */
template <int F>
__device__ void read_vector(const kvd_leankv_layout &y, const kvd_leankv_precision &l, const leankv::entry &e,
                            bool keys, int lane, float (&x)[F / 32])
{
    const uint32_t *const tile = keys ? leankv::keys_of(y, l, e) : leankv::values_of(y, l, e);
    const float2 scale = __half22float2(keys ? *leankv::key_meta_of(l, e) : *leankv::value_meta_of(l, e));
    const int bits = keys ? l.k_bits : l.v_bits, r = e.at % KVD_LEANKV_TILE;
    for (int i = 0; i < F / 32; i++) {
        const kvd_leankv_place at = keys ? kvd_leankv_key_place(F, bits, r, lane + 32 * i)
                                         : kvd_leankv_value_place(F, bits, r, lane + 32 * i);
        const float q = (float)(tile[at.word] >> at.shift & ((1u << bits) - 1));
        x[i] = __bfloat162float(__float2bfloat16_rn(__fadd_rn(__fmul_rn(scale.x, q), scale.y)));
    }
}

template <int F>
__device__ void write_vector(const kvd_leankv_layout &y, const kvd_leankv_precision &l,
                             const leankv::entry &e, bool keys, int lane, const float (&x)[F / 32],
                             uint8_t (*code)[F])
{
    const int bits = keys ? l.k_bits : l.v_bits;
    const __half2 scale = leankv::scale_of<F / 32>(x, bits);
    __syncwarp(); /* codes of the vector before have been read */
    for (int i = 0; i < F / 32; i++)
        code[0][lane + 32 * i] = (uint8_t)leankv::code_of(x[i], scale, bits);
    __syncwarp();
    if (keys)
        leankv::put_key<F>(leankv::keys_of(y, l, e), code, bits, e.at % KVD_LEANKV_TILE, lane);
    else
        leankv::put_value<F>(leankv::values_of(y, l, e), code, bits, e.at % KVD_LEANKV_TILE, lane);
    if (lane == 0)
        *(keys ? leankv::key_meta_of(l, e) : leankv::value_meta_of(l, e)) = scale;
}

/* Warps 0 and 1: keys and values of what is lowered, then of the new token, which may stand in its place. */
template <int F>
__device__ void move_vectors(const kvd_leankv_steps &s, int row, int g, int head, const decision &d,
                             bool keys, int lane, uint8_t (*code)[F])
{
    const kvd_leankv_pool &p = s.pool;
    const kvd_leankv_precision &high = p.layout.level[KVD_LEANKV_HIGH], &low = p.layout.level[KVD_LEANKV_LOW];
    float x[F / 32];
    if (d.lowered >= 0) {
        const leankv::entry from = leankv::entry_of(p, head, KVD_LEANKV_HIGH, d.lowered),
                            to = leankv::entry_of(p, head, KVD_LEANKV_LOW, d.low_to);
        read_vector<F>(p.layout, high, from, keys, lane, x);
        write_vector<F>(p.layout, low, to, keys, lane, x, code);
    }
    const __nv_bfloat16 *const k =
        static_cast<const __nv_bfloat16 *>(s.fresh) +
        ((size_t)s.page_table[(size_t)row * (size_t)s.max_pages] * (size_t)p.n_kv_heads + (size_t)g) *
            (64 * 2 * F);
    leankv::load_row<F / 32>(keys ? k : k + 64 * F, 0, lane, x);
    __syncwarp();
    write_vector<F>(p.layout, high, leankv::entry_of(p, head, KVD_LEANKV_HIGH, d.fresh_to), keys, lane, x,
                    code);
}

/* Scores and positions of the same. */
__device__ void move_scores(const kvd_leankv_pool &p, int head, const decision &d, float score, int position)
{
    const kvd_leankv_precision &high = p.layout.level[KVD_LEANKV_HIGH], &low = p.layout.level[KVD_LEANKV_LOW];
    if (d.lowered >= 0) {
        const leankv::entry from = leankv::entry_of(p, head, KVD_LEANKV_HIGH, d.lowered),
                            to = leankv::entry_of(p, head, KVD_LEANKV_LOW, d.low_to);
        *leankv::score_of(low, to) = *leankv::score_of(high, from);
        *leankv::position_of(low, to) = *leankv::position_of(high, from);
    }
    const leankv::entry e = leankv::entry_of(p, head, KVD_LEANKV_HIGH, d.fresh_to);
    *leankv::score_of(high, e) = score;
    *leankv::position_of(high, e) = position;
}

/* ---- a head --------------------------------------------------------------------------------------------------- */

/* What a thread has of an entry. */
struct held {
    float *score;
    float total, given[HEADS];
    int position, level, at;
};

/* Entry i of a head whose pages are table's. */
__device__ __forceinline__ held load_entry(const kvd_leankv_steps &s, const kvd_leankv_head &h,
                                           const int32_t *table, const float *scores, int columns, int i)
{
    held x;
    x.level = i < h.n[KVD_LEANKV_HIGH] ? KVD_LEANKV_HIGH : KVD_LEANKV_LOW;
    x.at = x.level == KVD_LEANKV_HIGH ? i : i - h.n[KVD_LEANKV_HIGH];
    const kvd_leankv_precision &l = s.pool.layout.level[x.level];
    const int k = x.at / l.tokens;
    char *const page =
        s.pool.page + (size_t)table[x.level == KVD_LEANKV_HIGH ? k : s.pool.table_length - 1 - k] *
                          (size_t)s.pool.layout.page_bytes;
    const leankv::entry e = {page, x.at - k * l.tokens};
    x.score = leankv::score_of(l, e);
    x.total = *x.score;
    x.position = *leankv::position_of(l, e);
    load_scores(scores + (size_t)(x.level == KVD_LEANKV_HIGH ? x.at : s.room - 1 - x.at) * (size_t)columns,
                s.group, x.given);
    return x;
}

/* Adds what every entry received. What was found, and the sum of significances outside the window, are complete in thread 0 behind reduce. */
__device__ void take_received(const kvd_leankv_steps &s, const kvd_leankv_head &h, const int32_t *table,
                              const float *scores, int now, const float *lse2, double *sum,
                              least (&mine)[KVD_LEANKV_LEVELS], found *out)
{
    const int columns = (s.group + 1) / 2 * 2, n = h.n[KVD_LEANKV_HIGH] + h.n[KVD_LEANKV_LOW];
    for (int first = (int)threadIdx.x; first < n; first += AT_ONCE * THREADS) {
        held x[AT_ONCE];
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++)
            if (first + u * THREADS < n)
                x[u] = load_entry(s, h, table, scores, columns, first + u * THREADS);
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            if (first + u * THREADS >= n)
                break;
            const float total = x[u].total + received(x[u].given, lse2, s.group);
            const int position = x[u].position;
            *x[u].score = total;
            if (position + s.window > now)
                continue;
            const float mean = total / (float)(now + 1 - position);
            const least is = {(unsigned long long)__float_as_uint(mean) << 32 | (uint32_t)position, x[u].at};
            *sum += (double)mean;
            if (x[u].level == KVD_LEANKV_HIGH)
                lesser(&mine[KVD_LEANKV_HIGH], is);
            else
                lesser(&mine[KVD_LEANKV_LOW], is);
            if (position + s.window == now) {
                out->leaving = x[u].at;
                out->leaving_significance = mean;
            }
        }
    }
    reduce(sum, mine);
}

template <int F> __global__ void __launch_bounds__(THREADS) update_kernel(const kvd_leankv_steps s)
{
    __shared__ uint8_t code[2][1][F];
    __shared__ found f;
    __shared__ decision d;
    __shared__ float lse2[HEADS];
    extern __shared__ int32_t table[];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, g = (int)blockIdx.x,
              row = (int)blockIdx.y, now = (int)s.at[row];
    const kvd_leankv_pool &p = s.pool;
    const int head = leankv::head_of(p, s.slot[row], s.layer, g);
    if (head < 0)
        return;
    const kvd_leankv_head h = p.head[head];
    const size_t at = (size_t)(row * p.n_kv_heads + g);
    for (int l = 0; l < KVD_LEANKV_LEVELS; l++)
        if (h.n[l] >= h.pages[l] * p.layout.level[l].tokens)
            return; /* pages were short: the host will say so */
    if (threadIdx.x < HEADS)
        lse2[threadIdx.x] = s.lse2[at * HEADS + threadIdx.x];
    if (threadIdx.x == 0)
        f.leaving = -1;
    for (int i = (int)threadIdx.x; i < p.table_length; i += THREADS)
        table[i] = p.table[(size_t)head * (size_t)p.table_length + (size_t)i];
    __syncthreads();
    double sum = 0;
    least mine[KVD_LEANKV_LEVELS] = {{~0ULL, -1}, {~0ULL, -1}};
    const int columns = (s.group + 1) / 2 * 2, n = h.n[KVD_LEANKV_HIGH] + h.n[KVD_LEANKV_LOW];
    take_received(s, h, table, s.score + at * (size_t)s.room * (size_t)columns, now, lse2, &sum, mine, &f);
    if (threadIdx.x == 0) {
        f.level[KVD_LEANKV_HIGH] = mine[KVD_LEANKV_HIGH];
        f.level[KVD_LEANKV_LOW] = mine[KVD_LEANKV_LOW];
        d = decide(h, f, sum / (double)max(n + 1 - s.window, 1));
    }
    __syncthreads();
    if (warp < 2)
        move_vectors<F>(s, row, g, head, d, warp == 0, lane, code[warp]);
    if (threadIdx.x != 64)
        return;
    float given[HEADS];
    load_scores(s.fresh_score + at * HEADS, s.group, given);
    move_scores(p, head, d, received(given, lse2, s.group), now);
    for (int l = 0; l < KVD_LEANKV_LEVELS; l++)
        if (d.n[l] != h.n[l]) {
            p.head[head].n[l] = d.n[l];
            atomicAdd((unsigned long long *)&p.state->entries[l], (unsigned long long)(d.n[l] - h.n[l]));
        }
}

template <int F> cudaError_t launch(const kvd_leankv_steps *s, cudaStream_t stream)
{
    update_kernel<F><<<dim3((unsigned)s->pool.n_kv_heads, (unsigned)s->n), THREADS,
                       (size_t)s->pool.table_length * sizeof(int32_t), stream>>>(*s);
    return cudaGetLastError();
}

} // namespace

extern "C" cudaError_t kvd_leankv_update(const kvd_leankv_steps *s, cudaStream_t stream)
{
    switch (s->pool.layout.d) {
    case 32:
        return launch<32>(s, stream);
    case 64:
        return launch<64>(s, stream);
    case 128:
        return launch<128>(s, stream);
    default:
        return cudaErrorInvalidValue;
    }
}
