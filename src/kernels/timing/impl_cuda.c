/* CUDA attention kernels of kvdim, as implementations for kvdim-attn. */
#ifdef KVD_CUDA

#include <stdio.h>
#include <stdlib.h>

#include "common/cuda/memory.h"
#include "common/device.h"
#include "kernels/cuda/decode.h"
#include "kernels/cuda/fill.h"
#include "kernels/cuda/prefill.h"
#include "kernels/cuda/prefill_plan.h"
#include "kernels/timing/impl.h"

/* Number of layers whose attention one launch divides among CTAs, about as many as a model has. */
enum { LAYERS = 32 };

typedef struct {
    const kvd_problem *p;
    bool mma;
    kvd_schedule schedule;
    kvd_attn_map map;
    kvd_attn_batch batch;
    kvd_device_memory memory;
    int32_t n_q8, *q_start;   /* Rows of blocked Q; host [batch]: each request's first row. */
    kvd_impl_output o;        /* [n_q8 (prefill) or batch (decode)][o_pitch] */
    unsigned long long *busy; /* device [n_ctas], busy time of each CTA in ns */
    unsigned long long *busy_host;
    double *busy_us;
    int n_ctas;
    kvd_prefill_args prefill;
    void *layers; /* plans of LAYERS layers, on the device */
    kvd_decode_args decode;
} state;

static int attribute(enum cudaDeviceAttr what)
{
    int device, value = 0;
    if (cudaGetDevice(&device) || cudaDeviceGetAttribute(&value, what, device))
        (void)cudaGetLastError();
    return value;
}

static int can(const kvd_impl *impl, const kvd_problem *p, kvd_err *why)
{
    const kvd_attn_heads heads = kvd_impl_heads(impl, p);
    kvd_attn_map map;
    const int major = attribute(cudaDevAttrComputeCapabilityMajor),
              minor = attribute(cudaDevAttrComputeCapabilityMinor);
    if (impl != &kvd_impl_cuda_mma && p->phase == KVD_PREFILL && (major != 9 || minor != 0))
        return kvd_fail(
            why, "its prefill needs compute capability 9.0, this card has %d.%d; see cuda-mma",
            major, minor);
    if (!kvd_cuda_has_code(major, minor))
        return kvd_fail(why, "needs compute capability 8.x or 9.0, this card has %d.%d", major,
                        minor);
    if (kvd_attn_map_make(&heads, &map))
        return kvd_fail(why, "widths must be multiples of %d from %d to %d", KVD_WIDTH_STEP,
                        KVD_WIDTH_STEP, KVD_WIDTH_MAX);
    return 0;
}

static void close_cuda(void *self)
{
    state *const s = self;
    if (!s)
        return;
    kvd_device_release(&s->memory);
    free(s->q_start);
    free(s->o.host);
    free(s->busy_host);
    free(s->busy_us);
    free(s);
}

static int make_inputs(state *s, kvd_fill_args *f, void **q, void **pool, void *stream,
                       kvd_err *err)
{
    const kvd_problem *const p = s->p;
    const size_t lengths = (size_t)p->batch * sizeof(int32_t);
    size_t n_pages;
    *f = (kvd_fill_args){.dtype = (int)p->dtype,
                         .sharp = p->sharp,
                         .seed = p->seed,
                         .map = s->map,
                         .batch = p->batch,
                         .n_q8 = s->n_q8};
    int32_t *const table = kvd_scattered_pages(p, &f->max_pages, &n_pages, err);
    if (!table)
        return -1;
    const size_t elements = p->phase == KVD_DECODE ? (size_t)p->batch * (size_t)s->map.q_pitch
                                                   : (size_t)s->n_q8 * (size_t)s->map.q_pitch;
    const size_t pool_bytes = n_pages * (size_t)s->map.page_elements * sizeof(uint16_t);
    f->q_len = kvd_device_from(&s->memory, p->q_len, lengths, "lengths", err);
    f->kv_len = kvd_device_from(&s->memory, p->kv_len, lengths, "lengths", err);
    if (s->q_start)
        f->q_start = kvd_device_from(&s->memory, s->q_start, lengths, "lengths", err);
    f->page_table =
        kvd_device_from(&s->memory, table, lengths * (size_t)f->max_pages, "a page table", err);
    free(table);
    *q = kvd_device_new(&s->memory, elements * sizeof(uint16_t), "Q", err);
    /* Parts of the page pool that hold no K or V stay NaN, which exposes kernels that read them. */
    *pool = kvd_device_filled(&s->memory, pool_bytes, 0xff, "K and V", err);
    f->longest = kvd_problem_longest(p, true);
    if (s->memory.status ||
        kvd_cuda_check((p->phase == KVD_DECODE ? kvd_fill_q_rows : kvd_fill_q)(f, *q, stream),
                       "making Q", err))
        return -1;
    f->longest = kvd_problem_longest(p, false);
    return kvd_status(kvd_cuda_check(kvd_fill_kv(f, *pool, stream), "making K and V", err) ||
                      kvd_cuda_check(cudaStreamSynchronize(stream), "making Q, K and V", err));
}

/* Copies the tile planner's arguments for LAYERS identical layers to the device. A benchmark then
 * times the planner. */
static int describe_prefill_plans(state *s, kvd_err *err)
{
    const size_t tiles = kvd_prefill_max_tiles(&s->map, &s->batch) * sizeof(kvd_prefill_tile);
    const size_t firsts = ((size_t)s->n_ctas + 1) * sizeof(int32_t);
    const size_t scratch = kvd_prefill_plan_bytes(&s->map, &s->batch, s->n_ctas),
                 bytes = kvd_prefill_plan_layer_bytes();
    char *const layers = malloc(LAYERS * bytes);
    int status = layers ? 0 : kvd_no_memory(err, "scheduling", LAYERS * bytes);
    for (size_t l = 0; !status && l < LAYERS; l++) {
        kvd_prefill_args args = s->prefill;
        void *const tile = kvd_device_new(&s->memory, tiles, "tiles", err);
        void *const first = kvd_device_new(&s->memory, firsts, "tiles", err);
        void *const next = kvd_device_new(&s->memory, sizeof(int32_t), "tiles", err);
        void *const work = kvd_device_new(&s->memory, scratch, "scheduling", err);
        status = !work ? -1
                       : kvd_cuda_check(kvd_prefill_plan_describe(
                                            &args, &s->batch, s->schedule,
                                            s->mma ? &kvd_prefill_cost_mma : &kvd_prefill_cost_sm90,
                                            tile, first, next, work, layers + l * bytes),
                                        "scheduling", err);
        if (!status && l == 0)
            s->prefill = args;
    }
    if (!status)
        s->layers = kvd_device_from(&s->memory, layers, LAYERS * bytes, "scheduling", err);
    free(layers);
    return kvd_status(!s->layers);
}

static int open_prefill(state *s, const kvd_fill_args *f, const void *q, const void *pool,
                        kvd_err *err)
{
    s->n_ctas = attribute(cudaDevAttrMultiProcessorCount);
    s->prefill = (kvd_prefill_args){.dtype = (int)s->p->dtype,
                                    .map = s->map,
                                    .batch = s->p->batch,
                                    .max_pages = f->max_pages,
                                    .n_q8 = s->n_q8,
                                    .q_start = f->q_start,
                                    .q_len = f->q_len,
                                    .kv_len = f->kv_len,
                                    .page_table = f->page_table,
                                    .q = q,
                                    .pool = pool,
                                    .o = s->o.data,
                                    .work = {.n_ctas = s->n_ctas}};
    return describe_prefill_plans(s, err);
}

static int describe_decode_plans(state *s, size_t workspace_bytes, kvd_err *err)
{
    const size_t bytes = kvd_decode_plan_layer_bytes();
    char *const layers = malloc(LAYERS * bytes);
    int status = layers ? 0 : kvd_no_memory(err, "scheduling", LAYERS * bytes);
    for (size_t l = 0; !status && l < LAYERS; l++) {
        kvd_decode_args args = s->decode;
        if (l &&
            !(args.workspace = kvd_device_new(&s->memory, workspace_bytes, "partial results", err)))
            status = -1;
        if (!status)
            status =
                kvd_cuda_check(kvd_decode_plan_describe(&args, s->schedule, layers + l * bytes),
                               "scheduling", err);
    }
    if (!status)
        s->layers = kvd_device_from(&s->memory, layers, LAYERS * bytes, "scheduling", err);
    free(layers);
    return kvd_status(!s->layers);
}

static int shortest(const kvd_problem *p)
{
    int n = p->kv_len[0];
    for (int b = 1; b < p->batch; b++)
        n = p->kv_len[b] < n ? p->kv_len[b] : n;
    return n;
}

static int open_decode(state *s, const kvd_fill_args *f, const void *q, const void *pool,
                       kvd_err *err)
{
    s->n_ctas = kvd_decode_ctas(&s->map);
    if (s->n_ctas < 1)
        return kvd_fail(err, "cannot ask the device how many CTAs it holds");
    const size_t bytes = kvd_decode_workspace_bytes(&s->map, s->p->batch,
                                                    kvd_problem_longest(s->p, false), s->n_ctas);
    void *const workspace = kvd_device_new(&s->memory, bytes, "partial results", err);
    if (!workspace)
        return -1;
    s->decode = (kvd_decode_args){.dtype = (int)s->p->dtype,
                                  .map = s->map,
                                  .batch = s->p->batch,
                                  .max_pages = f->max_pages,
                                  .kv_len = f->kv_len,
                                  .page_table = f->page_table,
                                  .q = q,
                                  .pool = pool,
                                  .o = s->o.data,
                                  .n_ctas = s->n_ctas,
                                  .workspace = workspace};
    if (s->schedule == KVD_SCHEDULE_OURS)
        s->decode.ctas_per_task = kvd_decode_ctas_per_task(&s->decode, shortest(s->p));
    return describe_decode_plans(s, bytes, err);
}

static int open_cuda(const kvd_impl *impl, const kvd_problem *p, kvd_scheduler scheduler,
                     void *stream, char engine[KVD_IMPL_ENGINE], void **self, kvd_err *err)
{
    const kvd_attn_heads heads = kvd_impl_heads(impl, p);
    kvd_fill_args fill;
    void *q = NULL, *pool = NULL;
    state *const s = *self = calloc(1, sizeof *s);
    if (!s)
        return kvd_no_memory(err, "an implementation", sizeof *s);
    s->p = p;
    s->mma = impl == &kvd_impl_cuda_mma;
    s->schedule = (kvd_schedule)scheduler;
    s->batch = kvd_problem_batch(p);
    if (kvd_attn_map_make(&heads, &s->map)) {
        kvd_fail(err, "widths that kernels do not take");
        goto fail;
    }
    size_t rows = (size_t)p->batch;
    if (p->phase == KVD_PREFILL) {
        s->q_start = kvd_new(rows, sizeof *s->q_start, "lengths", err);
        if (!s->q_start)
            goto fail;
        rows = kvd_blocked_rows(&s->batch, s->q_start);
        s->n_q8 = (int32_t)rows;
    }
    s->o.bytes = rows * (size_t)s->map.o_pitch * sizeof *s->o.host;
    if (!(s->o.data = kvd_device_new(&s->memory, s->o.bytes, "O", err)) ||
        make_inputs(s, &fill, &q, &pool, stream, err) ||
        (p->phase == KVD_PREFILL ? open_prefill : open_decode)(s, &fill, q, pool, err))
        goto fail;
    const size_t n = (size_t)s->n_ctas;
    s->busy = kvd_device_new(&s->memory, n * sizeof *s->busy, "busy times", err);
    s->busy_host = malloc(n * sizeof *s->busy_host);
    s->busy_us = malloc(n * sizeof *s->busy_us);
    if (!s->busy || !s->busy_host || !s->busy_us) {
        if (s->busy)
            kvd_no_memory(err, "busy times", n * 2 * sizeof *s->busy_us);
        goto fail;
    }
    snprintf(engine, KVD_IMPL_ENGINE, "%s, %d CTAs",
             p->phase == KVD_DECODE ? "kvd_decode"
             : s->mma || (p->dtype == KVD_F16 && kvd_attn_widest(&s->map) > KVD_WIDTH_NARROW)
                 ? "kvd_prefill_mma"
                 : "kvd_prefill_sm90",
             s->n_ctas);
    if (s->decode.ctas_per_task)
        snprintf(engine, KVD_IMPL_ENGINE, "kvd_decode, %d CTAs per KV head, no plan",
                 s->decode.ctas_per_task);
    return 0;
fail:
    close_cuda(s);
    *self = NULL;
    return -1;
}

static int plan(void *self, void *stream, kvd_err *err)
{
    state *const s = self;
    const cudaError_t e =
        s->p->phase == KVD_DECODE
            ? kvd_decode_plan_layers(&s->decode, s->schedule, s->layers, LAYERS, stream)
            : kvd_prefill_plan_layers(s->layers, LAYERS, stream);
    return kvd_cuda_check(e, "scheduling", err);
}

/* Resets the counter by which CTAs take tiles of query rows. */
static int prepare(void *self, void *stream, kvd_err *err)
{
    state *const s = self;
    const kvd_prefill_work *const w = &s->prefill.work;
    return s->p->phase == KVD_DECODE || w->first
               ? 0
               : kvd_cuda_check(cudaMemsetAsync(w->next, 0, sizeof *w->next, stream), "tiles", err);
}

static int launch(void *self, void *stream, kvd_err *err)
{
    state *const s = self;
    if (s->p->phase == KVD_DECODE)
        return kvd_cuda_check(kvd_decode(&s->decode, stream), "decode", err);
    return kvd_cuda_check((s->mma ? kvd_prefill_mma : kvd_prefill_sm90)(&s->prefill, stream),
                          "prefill", err);
}

static kvd_impl_output *output(void *self, int i)
{
    state *const s = self;
    return i ? NULL : &s->o;
}

static void row(const void *self, int request, int head, size_t t, int d_v, float *out)
{
    const state *const s = self;
    const size_t at = s->p->phase == KVD_DECODE ? (size_t)request : (size_t)s->q_start[request] + t;
    kvd_to_f32(s->p->dtype, s->o.host + at * (size_t)s->map.o_pitch + (size_t)s->map.o_offset[head],
               out, (size_t)d_v);
}

static int busy(void *self, void *stream, kvd_busy *out, kvd_err *err)
{
    state *const s = self;
    const size_t n = (size_t)s->n_ctas;
    s->prefill.busy = s->decode.busy = s->busy;
    const int failed = kvd_cuda_check(cudaMemsetAsync(s->busy, 0, n * sizeof *s->busy, stream),
                                      "busy times", err) ||
                       prepare(self, stream, err) || launch(self, stream, err);
    s->prefill.busy = s->decode.busy = NULL;
    if (failed ||
        kvd_queue_get(s->busy_host, s->busy, n * sizeof *s->busy, stream, "busy times", err) ||
        kvd_cuda_check(cudaStreamSynchronize(stream), "busy times", err))
        return -1;
    for (size_t i = 0; i < n; i++)
        s->busy_us[i] = (double)s->busy_host[i] * 1e-3;
    *out = (kvd_busy){s->busy_us, n};
    return 0;
}

enum { BOTH = 1 << KVD_PREFILL | 1 << KVD_DECODE };

#define REST                                                                                       \
    .cuda = true, .windows = true, .dtypes = 1 << KVD_F16 | 1 << KVD_BF16,                         \
    .schedulers = 1 << KVD_BY_NONE | 1 << KVD_BY_PAPERS | 1 << KVD_BY_OURS, .can = can,            \
    .open = open_cuda, .close = close_cuda, .plan = plan, .plan_layers = {LAYERS, LAYERS},         \
    .prepare = prepare, .launch = launch, .output = output, .row = row, .busy = busy

const kvd_impl kvd_impl_cuda = {.name = "cuda",
                                .summary = "our kernels: prefill for Hopper, decode",
                                .phases = BOTH,
                                .runs = KVD_WIDTH_USE_OWN,
                                REST};

const kvd_impl kvd_impl_cuda_mma = {.name = "cuda-mma",
                                    .summary = "our prefill for compute capability 8.x and 9.0",
                                    .phases = 1 << KVD_PREFILL,
                                    .runs = KVD_WIDTH_USE_OWN,
                                    REST};

const kvd_impl kvd_impl_cuda_dense = {.name = "cuda-dense",
                                      .summary = "as cuda, with every head at d_head",
                                      .phases = BOTH,
                                      .runs = KVD_WIDTH_USE_DENSE,
                                      REST};

#else
typedef int kvd_no_impl_cuda; /* ISO C requires at least one declaration per file */
#endif
