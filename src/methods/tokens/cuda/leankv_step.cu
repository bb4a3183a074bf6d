/* Method leankv after a decode step: per KV head, at most one token gets low precision and at most
 * one is dropped. */
#include "methods/tokens/cuda/leankv.cuh"

namespace
{

enum { WARPS = 32, THREADS = 32 * WARPS, HEADS = 8, AT_ONCE = 2 };

/* The least significant token among a KV head's cached tokens of one precision (high or low). The
 * newest tokens are excluded. */
struct least {
    /* Sort key: bit pattern of the significance (a float) in the upper 32 bits, position of the
     * token in the lower 32 bits. */
    unsigned long long key;
    int at;
};

struct found {
    least level[KVD_LEANKV_LEVELS];
    /* Index of the high-precision token that leaves the window of newest tokens in this step, or -1
     * if none does. */
    int leaving;
    float leaving_significance;
};

/* Tokens of a KV head that change their precision or their index in this decode step. An index of
 * -1 means that there is no such token. */
struct decision {
    /* Token that gets low precision. lowered: its index among the high-precision tokens. low_to:
     * its new index among the low-precision tokens. */
    int lowered, low_to;
    /* Index that the new token gets among the high-precision tokens. */
    int fresh_to;
    int n[KVD_LEANKV_LEVELS];
};

__device__ __forceinline__ float significance_of(unsigned long long key)
{
    return __uint_as_float((uint32_t)(key >> 32));
}

/* Returns the attention probability that a token gets in this decode step, averaged over the query
 * heads of a KV head. */
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

/* Adds up *sum over all threads. For each precision level l, finds the x[l] with the smallest sort
 * key in any thread. Only thread 0 gets the results. */
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
                lesser(&x[l], least{__shfl_xor_sync(~0u, x[l].key, step),
                                    __shfl_xor_sync(~0u, x[l].at, step)});
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

/* Decides which tokens of a KV head get low precision or are dropped in this decode step.
 *
 * - sum: attention received by the tokens that are older than the window of newest tokens
 * - body: number of these older tokens */
__device__ decision decide(const kvd_leankv_head &h, const found &f, double sum, int body)
{
    decision d = {-1, -1, h.n[KVD_LEANKV_HIGH], {h.n[KVD_LEANKV_HIGH], h.n[KVD_LEANKV_LOW]}};
    const double mean = sum / body, not_low = (double)h.cut[KVD_LEANKV_LOW] * mean,
                 not_high = (double)h.cut[KVD_LEANKV_HIGH] * mean,
                 now = (double)f.leaving_significance;
    if (f.leaving >= 0 && now < not_low) {
        d.fresh_to = f.leaving;
    } else if (f.leaving >= 0 && now < not_high) {
        const least &v = f.level[KVD_LEANKV_LOW];
        d.fresh_to = d.lowered = f.leaving;
        d.low_to =
            v.at >= 0 && (double)significance_of(v.key) < not_low ? v.at : d.n[KVD_LEANKV_LOW]++;
    } else if (f.leaving >= 0) {
        const least &v = f.level[KVD_LEANKV_HIGH];
        const double its = (double)significance_of(v.key);
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

struct pages {
    const kvd_leankv_pool *pool;
    const int32_t *table;
};

__device__ __forceinline__ leankv::entry entry_of(const pages &p, int level, int i)
{
    return leankv::entry_of(*p.pool, p.table, level, i);
}

/* Decodes the quantised key or value of a token to numbers rounded to bf16. */
template <int F>
__device__ void read_vector(const kvd_leankv_layout &y, const kvd_leankv_precision &l,
                            const leankv::entry &e, bool keys, int lane, float (&x)[F / 32])
{
    const uint32_t *const tile = keys ? leankv::keys_of(y, l, e) : leankv::values_of(y, l, e);
    const float2 scale =
        __half22float2(keys ? *leankv::key_meta_of(l, e) : *leankv::value_meta_of(l, e));
    const int bits = keys ? l.k_bits : l.v_bits, r = e.at % KVD_LEANKV_TILE;
    for (int i = 0; i < F / 32; i++) {
        const kvd_leankv_place at = keys ? kvd_leankv_key_place(F, bits, r, lane + 32 * i)
                                         : kvd_leankv_value_place(F, bits, r, lane + 32 * i);
        const float q = (float)(tile[at.word] >> at.shift & ((1u << bits) - 1));
        x[i] = __bfloat162float(__float2bfloat16_rn(__fadd_rn(__fmul_rn(scale.x, q), scale.y)));
    }
}

template <int F> struct coded {
    uint8_t code[1][F];
    __half2 scale;
};

template <int F>
__device__ void code_vector(const float (&x)[F / 32], int bits, int lane, coded<F> *to)
{
    const __half2 scale = leankv::scale_of<F / 32>(x, bits);
    for (int i = 0; i < F / 32; i++)
        to->code[0][lane + 32 * i] = (uint8_t)leankv::code_of(x[i], scale, bits);
    if (lane == 0)
        to->scale = scale;
    __syncwarp();
}

template <int F>
__device__ void put_vector(const kvd_leankv_layout &y, const kvd_leankv_precision &l,
                           const leankv::entry &e, bool keys, int lane, const coded<F> &from)
{
    if (keys)
        leankv::put_key<F>(leankv::keys_of(y, l, e), from.code, l.k_bits, e.at % KVD_LEANKV_TILE,
                           lane);
    else
        leankv::put_value<F>(leankv::values_of(y, l, e), from.code, l.v_bits,
                             e.at % KVD_LEANKV_TILE, lane);
    if (lane == 0)
        *(keys ? leankv::key_meta_of(l, e) : leankv::value_meta_of(l, e)) = from.scale;
}

/* Stores the new token at high precision. Also requantises the token that moves to low precision,
 * if any. */
template <int F>
__device__ void move_vectors(const pages &p, const decision &d, int warp, int lane, coded<F> *mine)
{
    const kvd_leankv_layout &y = p.pool->layout;
    const kvd_leankv_precision &high = y.level[KVD_LEANKV_HIGH], &low = y.level[KVD_LEANKV_LOW];
    const bool keys = warp % 2 == 0;
    float x[F / 32];
    if (warp < 2 && d.lowered >= 0)
        read_vector<F>(y, high, entry_of(p, KVD_LEANKV_HIGH, d.lowered), keys, lane, x);
    asm volatile("bar.sync 1, 128;" ::: "memory");
    if (warp >= 2) {
        put_vector<F>(y, high, entry_of(p, KVD_LEANKV_HIGH, d.fresh_to), keys, lane, *mine);
    } else if (d.lowered >= 0) {
        code_vector<F>(x, keys ? low.k_bits : low.v_bits, lane, mine);
        put_vector<F>(y, low, entry_of(p, KVD_LEANKV_LOW, d.low_to), keys, lane, *mine);
    }
}

__device__ void move_scores(const pages &p, const decision &d, int position)
{
    const kvd_leankv_precision &high = p.pool->layout.level[KVD_LEANKV_HIGH],
                               &low = p.pool->layout.level[KVD_LEANKV_LOW];
    if (d.lowered >= 0) {
        const leankv::entry from = entry_of(p, KVD_LEANKV_HIGH, d.lowered),
                            to = entry_of(p, KVD_LEANKV_LOW, d.low_to);
        *leankv::score_of(low, to) = *leankv::score_of(high, from);
        *leankv::position_of(low, to) = *leankv::position_of(high, from);
    }
    const leankv::entry e = entry_of(p, KVD_LEANKV_HIGH, d.fresh_to);
    *leankv::score_of(high, e) = 0;
    *leankv::position_of(high, e) = position;
}

struct held {
    float *score;
    float total, given[HEADS];
    int position, level, at;
};

__device__ __forceinline__ held load_entry(const kvd_leankv_steps &s, const kvd_leankv_head &h,
                                           const pages &p, const float *scores, int columns, int i)
{
    held x;
    x.level = i < h.n[KVD_LEANKV_HIGH] ? KVD_LEANKV_HIGH : KVD_LEANKV_LOW;
    x.at = x.level == KVD_LEANKV_HIGH ? i : i - h.n[KVD_LEANKV_HIGH];
    const kvd_leankv_precision &l = s.pool.layout.level[x.level];
    const leankv::entry e = entry_of(p, x.level, x.at);
    x.score = leankv::score_of(l, e);
    x.total = *x.score;
    x.position = *leankv::position_of(l, e);
    load_scores(scores + (size_t)(x.level == KVD_LEANKV_HIGH ? x.at : s.room - 1 - x.at) * columns,
                s.group, x.given);
    return x;
}

/* Adds this decode step's attention to the tokens' scores. Thread 0 also gets the sum of mean
 * scores and the lowest mean score per precision, excluding the newest s.window tokens. */
__device__ void take_received(const kvd_leankv_steps &s, const kvd_leankv_head &h, const pages &p,
                              const float *scores, int now, const float *lse2, double *sum,
                              least (&mine)[KVD_LEANKV_LEVELS], found *out)
{
    const int columns = (s.group + 1) / 2 * 2, n = h.n[KVD_LEANKV_HIGH] + h.n[KVD_LEANKV_LOW];
    for (int first = (int)threadIdx.x; first < n; first += AT_ONCE * THREADS) {
        held x[AT_ONCE];
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++)
            if (first + u * THREADS < n)
                x[u] = load_entry(s, h, p, scores, columns, first + u * THREADS);
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            if (first + u * THREADS >= n)
                break;
            const float total = x[u].total + received(x[u].given, lse2, s.group);
            const int position = x[u].position;
            *x[u].score = total;
            if (position + s.window > now)
                continue;
            const float mean = total / (float)(now - position);
            const least is = {(unsigned long long)__float_as_uint(mean) << 32 | (uint32_t)position,
                              x[u].at};
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
    extern __shared__ int32_t table[];
    __shared__ coded<F> vector[4];
    __shared__ found f;
    __shared__ decision d;
    __shared__ float lse2[HEADS];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, g = (int)blockIdx.x,
              row = (int)blockIdx.y, now = (int)s.at[row];
    const int head = leankv::head_of(s.pool, s.slot[row], s.layer, g);
#if __CUDA_ARCH__ >= 900
    /* The next kernel in the stream may start now, to prefetch weights. */
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
    if (head < 0)
        return;
    const kvd_leankv_head h = s.pool.head[head];
    const pages p = {&s.pool, table};
    const size_t at = (size_t)(row * s.pool.n_kv_heads + g);
    for (int l = 0; l < KVD_LEANKV_LEVELS; l++)
        if (h.n[l] >= h.pages[l] * s.pool.layout.level[l].tokens)
            return; /* no page is free, which kvd_leankv_state tells the host */
    if (threadIdx.x < HEADS)
        lse2[threadIdx.x] = s.lse2[at * HEADS + threadIdx.x];
    if (threadIdx.x == 0)
        f.leaving = -1;
    for (int i = (int)threadIdx.x; i < s.pool.table_length; i += THREADS)
        table[i] = s.pool.table[(size_t)head * s.pool.table_length + i];
    float fresh[F / 32];
    if (warp / 2 == 1)
        leankv::load_row<F / 32>(
            static_cast<const __nv_bfloat16 *>(s.fresh) +
                ((size_t)s.page_table[(size_t)row * s.max_pages] * s.pool.n_kv_heads + g) *
                    (64 * 2 * F) +
                warp % 2 * 64 * F,
            0, lane, fresh);
    __syncthreads();
    double sum = 0;
    least mine[KVD_LEANKV_LEVELS] = {{~0ULL, -1}, {~0ULL, -1}};
    const int columns = (s.group + 1) / 2 * 2, n = h.n[KVD_LEANKV_HIGH] + h.n[KVD_LEANKV_LOW];
    take_received(s, h, p, s.score + at * (size_t)s.room * columns, now, lse2, &sum, mine, &f);
    const kvd_leankv_precision &high = s.pool.layout.level[KVD_LEANKV_HIGH];
    if (warp / 2 == 1)
        code_vector<F>(fresh, warp == 2 ? high.k_bits : high.v_bits, lane, &vector[warp]);
    if (threadIdx.x == 0) {
        f.level[KVD_LEANKV_HIGH] = mine[KVD_LEANKV_HIGH];
        f.level[KVD_LEANKV_LOW] = mine[KVD_LEANKV_LOW];
        d = decide(h, f, sum, max(n + 1 - s.window, 1));
    }
    __syncthreads();
    if (warp < 4)
        move_vectors<F>(p, d, warp, lane, &vector[warp]);
    if (threadIdx.x != 128)
        return;
    move_scores(p, d, now);
    for (int l = 0; l < KVD_LEANKV_LEVELS; l++)
        if (d.n[l] != h.n[l]) {
            s.pool.head[head].n[l] = d.n[l];
            atomicAdd((unsigned long long *)&s.pool.state->entries[l],
                      (unsigned long long)(d.n[l] - h.n[l]));
        }
}

template <int F> cudaError_t launch(const kvd_leankv_steps *s, cudaStream_t stream)
{
    update_kernel<F><<<dim3(s->pool.n_kv_heads, s->n), THREADS,
                       (size_t)s->pool.table_length * sizeof(int32_t), stream>>>(*s);
    return cudaGetLastError();
}

} // namespace

extern "C" cudaError_t kvd_leankv_update(const kvd_leankv_steps *s, cudaStream_t stream)
{
    return leankv::with_width(
        s->pool.layout.d, [&](auto width) { return launch<decltype(width)::value>(s, stream); });
}
