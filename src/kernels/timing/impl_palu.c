/* Runs Palu's decode attention for timing. A token's latent vectors have as many elements as its
 * compressed K and V in other methods. */
#ifdef KVD_CUDA

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/cuda/memory.h"
#include "kernels/cuda/fill.h"
#include "kernels/rivals/palu_decode.h"
#include "kernels/timing/impl.h"

enum { D = KVD_PALU_D_HEAD, HALF = D / 2, TENSOR_UP = 3 };

typedef struct {
    const kvd_problem *p;
    kvd_palu_shape shape;
    kvd_device_memory memory;
    kvd_palu_decode_args args;
    kvd_impl_output o; /* [batch][n_heads][rank_v] */
} state;

static int to_step(double rank)
{
    const int r = (int)(rank / KVD_PALU_RANK_STEP + 0.5) * KVD_PALU_RANK_STEP;
    return r < KVD_PALU_RANK_STEP ? KVD_PALU_RANK_STEP : r;
}

static kvd_palu_shape shape_of(const kvd_problem *p)
{
    const kvd_attn_heads *const h = &p->heads;
    const double d_qk = kvd_heads_mean(h->d_qk, h->n_kv_heads),
                 d_v = kvd_heads_mean(h->d_v, h->n_kv_heads);
    const int both = to_step(KVD_PALU_GROUP * (d_qk + d_v)), most = KVD_PALU_RANK_MAX;
    int k = to_step(KVD_PALU_GROUP * d_qk);
    k = k > most ? most : both - k > most ? both - most : k;
    return (kvd_palu_shape){h->n_heads, h->n_kv_heads, k,
                            both - k < KVD_PALU_RANK_STEP ? KVD_PALU_RANK_STEP : both - k};
}

static int can(const kvd_impl *impl, const kvd_problem *p, kvd_err *why)
{
    const kvd_palu_shape s = shape_of(p);
    (void)impl;
    if (p->heads.d_head != D)
        return kvd_fail(why, "d_head must be %d", D);
    if (s.rank_k > KVD_PALU_RANK_MAX || s.rank_v > KVD_PALU_RANK_MAX)
        return kvd_fail(why, "ranks of %d and %d per group of %d heads, at most %d", s.rank_k,
                        s.rank_v, KVD_PALU_GROUP, KVD_PALU_RANK_MAX);
    if (kvd_palu_shape_check(&s))
        return kvd_fail(why, "%d query and %d KV heads", s.n_heads, s.n_kv_heads);
    return kvd_palu_decode_clusters() < 1 ? kvd_fail(why, "needs a Hopper card") : 0;
}

static kvd_attn_heads stored(const kvd_problem *p)
{
    const kvd_palu_shape s = shape_of(p);
    kvd_attn_heads h = p->heads;
    for (int g = 0; g < h.n_kv_heads; g++) {
        h.d_qk[g] = s.rank_k / KVD_PALU_GROUP;
        h.d_v[g] = s.rank_v / KVD_PALU_GROUP;
    }
    return h;
}

static kvd_attn_heads answer(const kvd_problem *p)
{
    const kvd_palu_shape s = shape_of(p);
    kvd_attn_heads h = p->heads;
    for (int g = 0; g < h.n_kv_heads; g++) {
        h.d_qk[g] = D;
        h.d_v[g] = s.rank_v;
    }
    return h;
}

/* Counts the bytes, FLOP and exponentials that Palu's attention needs at least. K is rebuilt once
 * per KV head. */
static void count(const kvd_problem *p, kvd_floors *f)
{
    const kvd_palu_shape s = shape_of(p);
    const double keys = (double)kvd_problem_tokens(p, false),
                 groups = s.n_kv_heads / KVD_PALU_GROUP;
    f->bytes =
        (keys * groups * (s.rank_k + s.rank_v) + (double)p->batch * s.n_heads * (D + s.rank_v)) *
        (double)kvd_dtype_bytes(p->dtype);
    f->flop = 2 * keys * ((double)s.n_kv_heads * s.rank_k * D + (double)s.n_heads * (D + s.rank_v));
    f->exps = keys * s.n_heads;
}

/* Generates the projection [rank][128] of a KV head, scaled such that K is nearly standard
 * normal. */
static void up_rows(const kvd_problem *p, int head, int rank, float *up)
{
    const float scale = (float)(1 / sqrt((double)rank));
    uint16_t rounded[D];
    const uint64_t key = kvd_value_key(p->seed, TENSOR_UP, 0, (uint32_t)head);
    for (int r = 0; r < rank; r++) {
        float *const row = up + (size_t)r * D;
        for (int i = 0; i < D; i++)
            row[i] = scale * kvd_value(key, TENSOR_UP, 0, (uint32_t)r, (uint32_t)i);
        kvd_from_f32(p->dtype, row, rounded, D);
        kvd_to_f32(p->dtype, rounded, row, D);
    }
}

/* Returns the RoPE angle of dimensions i and i + 64 at position t, with theta 10000. */
static double angle(size_t t, int i)
{
    return (double)t * pow(10000, -2.0 * i / D);
}

static void make_rows(const kvd_problem *p, kvd_operand tensor, int request, int head, size_t first,
                      size_t n, int d, float *rows)
{
    const kvd_palu_shape s = shape_of(p);
    if (tensor == KVD_OPERAND_Q) {
        kvd_problem_rows(p, tensor, request, head, first, n, d, rows);
        return;
    }
    if (tensor == KVD_OPERAND_V) {
        kvd_problem_rows(p, tensor, request, head / KVD_PALU_GROUP, first, n, d, rows);
        return;
    }
    static _Thread_local float up[KVD_PALU_RANK_MAX * D];
    double turn[HALF];
    up_rows(p, head, s.rank_k, up);
    for (int i = 0; i < HALF; i++)
        turn[i] = angle(1, i);
    for (size_t t = 0; t < n; t++) {
        float latent[KVD_PALU_RANK_MAX], k[D] = {0};
        kvd_problem_rows(p, tensor, request, head / KVD_PALU_GROUP, first + t, 1, s.rank_k, latent);
        for (int r = 0; r < s.rank_k; r++)
            for (int i = 0; i < D; i++)
                k[i] += latent[r] * up[r * D + i];
        for (int i = 0; i < HALF; i++) {
            const double a = (double)(first + t) * turn[i];
            const float c = (float)cos(a), z = (float)sin(a);
            rows[t * D + (size_t)i] = k[i] * c - k[i + HALF] * z;
            rows[t * D + (size_t)i + HALF] = k[i + HALF] * c + k[i] * z;
        }
    }
}

static void close_palu(void *self)
{
    state *const s = self;
    if (!s)
        return;
    kvd_device_release(&s->memory);
    free(s->o.host);
    free(s);
}

static int make_up(state *s, kvd_err *err)
{
    const size_t n = kvd_palu_up_elements(&s->shape), per_head = (size_t)s->shape.rank_k * D;
    float *const up = malloc(n * sizeof *up);
    uint16_t *const packed = malloc(n * sizeof *packed);
    int status = up && packed ? 0 : kvd_no_memory(err, "U", n * sizeof *up);
    if (!status) {
        for (int g = 0; g < s->shape.n_kv_heads; g++)
            up_rows(s->p, g, s->shape.rank_k, up + (size_t)g * per_head);
        kvd_palu_pack_up(&s->shape, (int)s->p->dtype, up, packed);
        s->args.up = kvd_device_from(&s->memory, packed, n * sizeof *packed, "U", err);
        status = s->memory.status;
    }
    free(up);
    free(packed);
    return status;
}

static int make_rope(state *s, kvd_err *err)
{
    const size_t longest = (size_t)kvd_problem_longest(s->p, false),
                 rows = longest < 64 ? 64 : longest;
    const size_t bytes = rows * HALF * sizeof(float);
    float *const c = malloc(bytes), *const z = malloc(bytes);
    int status = c && z ? 0 : kvd_no_memory(err, "RoPE", 2 * bytes);
    for (size_t t = 0; !status && t < rows; t++)
        for (int i = 0; i < HALF; i++) {
            c[t * HALF + (size_t)i] = (float)cos(angle(t, i));
            z[t * HALF + (size_t)i] = (float)sin(angle(t, i));
        }
    if (!status) {
        s->args.rope_cos = kvd_device_from(&s->memory, c, bytes, "RoPE", err);
        s->args.rope_sin = kvd_device_from(&s->memory, z, bytes, "RoPE", err);
        status = s->memory.status;
    }
    free(c);
    free(z);
    return status;
}

static int make_cache(state *s, void *stream, kvd_err *err)
{
    const kvd_problem *const p = s->p;
    const size_t lengths = (size_t)p->batch * sizeof(int32_t);
    kvd_attn_heads dense = kvd_heads_dense(&p->heads);
    kvd_fill_args f = {
        .dtype = (int)p->dtype, .sharp = p->sharp, .seed = p->seed, .batch = p->batch};
    size_t n_pages;
    int32_t *const table = kvd_scattered_pages(p, &f.max_pages, &n_pages, err);
    if (!table)
        return -1;
    const size_t pool_bytes = n_pages * kvd_palu_page_elements(&s->shape) * sizeof(uint16_t);
    const size_t q_bytes = (size_t)p->batch * (size_t)s->shape.n_heads * D * sizeof(uint16_t);
    void *const pool = kvd_device_new(&s->memory, pool_bytes, "latents", err);
    void *const q = kvd_device_new(&s->memory, q_bytes, "Q", err);
    f.q_len = kvd_device_from(&s->memory, p->q_len, lengths, "lengths", err);
    f.kv_len = kvd_device_from(&s->memory, p->kv_len, lengths, "lengths", err);
    f.page_table =
        kvd_device_from(&s->memory, table, lengths * (size_t)f.max_pages, "a page table", err);
    free(table);
    f.longest = 1;
    if (s->memory.status || kvd_attn_map_make(&dense, &f.map) ||
        kvd_cuda_check(kvd_fill_q_rows(&f, q, stream), "making Q", err))
        return -1;
    f.longest = kvd_problem_longest(p, false);
    if (kvd_cuda_check(kvd_fill_latents(&f, &s->shape, pool, stream), "making latents", err))
        return -1;
    s->args.kv_len = f.kv_len;
    s->args.page_table = f.page_table;
    s->args.max_pages = f.max_pages;
    s->args.q = q;
    s->args.pool = pool;
    return kvd_cuda_check(cudaStreamSynchronize(stream), "making latents", err);
}

static int open_palu(const kvd_impl *impl, const kvd_problem *p, kvd_scheduler scheduler,
                     void *stream, char engine[KVD_IMPL_ENGINE], void **self, kvd_err *err)
{
    state *const s = *self = calloc(1, sizeof *s);
    (void)impl;
    (void)scheduler;
    if (!s)
        return kvd_no_memory(err, "an implementation", sizeof *s);
    s->p = p;
    s->shape = s->args.shape = shape_of(p);
    s->args.dtype = (int)p->dtype;
    s->args.batch = p->batch;
    s->args.n_clusters = kvd_palu_decode_clusters();
    s->o.bytes =
        (size_t)p->batch * (size_t)s->shape.n_heads * (size_t)s->shape.rank_v * sizeof *s->o.host;
    const size_t workspace =
        kvd_palu_decode_workspace_bytes(&s->shape, p->batch, s->args.n_clusters);
    s->args.o = s->o.data = kvd_device_new(&s->memory, s->o.bytes, "O", err);
    s->args.workspace = kvd_device_new(&s->memory, workspace, "partial results", err);
    if (make_cache(s, stream, err) || make_up(s, err) || make_rope(s, err)) {
        close_palu(s);
        *self = NULL;
        return -1;
    }
    snprintf(engine, KVD_IMPL_ENGINE, "kvd_palu_decode, ranks %d and %d, %d clusters",
             s->shape.rank_k, s->shape.rank_v, (int)s->args.n_clusters);
    return 0;
}

static int plan(void *self, void *stream, kvd_err *err)
{
    return kvd_cuda_check(kvd_palu_decode_plan(&((state *)self)->args, stream), "scheduling", err);
}

static int launch(void *self, void *stream, kvd_err *err)
{
    return kvd_cuda_check(kvd_palu_decode(&((state *)self)->args, stream), "decode", err);
}

static kvd_impl_output *output(void *self, int i)
{
    state *const s = self;
    return i ? NULL : &s->o;
}

static void row(const void *self, int request, int head, size_t t, int d_v, float *out)
{
    const state *const s = self;
    (void)t;
    kvd_to_f32(s->p->dtype,
               s->o.host +
                   ((size_t)request * (size_t)s->shape.n_heads + (size_t)head) * (size_t)d_v,
               out, (size_t)d_v);
}

const kvd_impl kvd_impl_palu = {.name = "palu",
                                .summary =
                                    "Palu's decode: K rebuilt from latents at every step, fused",
                                .cuda = true,
                                .phases = 1 << KVD_DECODE,
                                .dtypes = 1 << KVD_F16 | 1 << KVD_BF16,
                                .schedulers = 1 << KVD_BY_ITSELF,
                                .runs = KVD_WIDTH_USE_LATENT,
                                .stored = stored,
                                .answer = answer,
                                .make_rows = make_rows,
                                .count = count,
                                .can = can,
                                .open = open_palu,
                                .close = close_palu,
                                .plan = plan,
                                .launch = launch,
                                .output = output,
                                .row = row};

#else
typedef int kvd_no_impl_palu; /* ISO C requires at least one declaration per file */
#endif
