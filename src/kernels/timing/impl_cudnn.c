/* cuDNN's fused attention as implementations for kvdim-attn. */
#ifdef KVD_CUDA

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cuda/memory.h"
#include "kernels/cuda/fill.h"
#include "kernels/rivals/cudnn.h"
#include "kernels/timing/impl.h"

static int can(const kvd_impl *impl, const kvd_problem *p, kvd_err *why)
{
    int version;
    (void)impl;
    (void)p;
    return kvd_cudnn_version(&version, why);
}

#ifdef KVD_HAVE_CUDNN

enum { STREAMS = 8 };

typedef struct {
    int n, head[KVD_HEADS_MAX]; /* KV heads of this launch */
    int d_qk, d_v;              /* dimensions of the launch's heads, after padding */
    kvd_cudnn_shape shape;
    kvd_cudnn_io io;
    kvd_cudnn_plan *plan;
    kvd_impl_output o; /* [batch][query heads][queries][d_v] */
} launch_group;

typedef struct {
    const kvd_problem *p;
    kvd_attn_heads heads; /* dimensions of the input data, without padding */
    kvd_device_memory memory;
    launch_group *group;
    int n_groups;
    cudaStream_t side[STREAMS];
    cudaEvent_t begun, done[STREAMS];
} state;

enum { REMEMBERED = 256 };
static struct {
    kvd_cudnn_shape shape;
    char name[160];
} best[REMEMBERED];
static int n_best;

static int choose_engine(launch_group *g, void *stream, kvd_err *err)
{
    for (int i = 0; i < n_best; i++)
        if (!memcmp(&best[i].shape, &g->shape, sizeof g->shape)) {
            for (int k = 0; k < kvd_cudnn_count(g->plan); k++)
                if (!strcmp(kvd_cudnn_candidate(g->plan, k, &(double){0}), best[i].name))
                    return kvd_cudnn_choose(g->plan, k, err);
        }
    if (kvd_cudnn_tune(g->plan, &g->io, stream, err))
        return -1;
    /* `full` consists of cuDNN's version, a space, and the name of the chosen cuDNN engine. */
    const char *const full = kvd_cudnn_name(g->plan), *const blank = strchr(full, ' '),
                      *const name = blank ? blank + 1 : full;
    if (n_best < REMEMBERED && strlen(name) < sizeof best[0].name) {
        best[n_best].shape = g->shape;
        snprintf(best[n_best].name, sizeof best[n_best].name, "%s", name);
        n_best++;
    }
    return 0;
}

static void close_cudnn(void *self)
{
    state *const s = self;
    if (!s)
        return;
    for (int i = 0; i < s->n_groups; i++) {
        kvd_cudnn_close(s->group[i].plan);
        free(s->group[i].o.host);
    }
    for (int i = 0; i < STREAMS; i++) {
        if (s->side[i])
            (void)cudaStreamDestroy(s->side[i]);
        if (s->done[i])
            (void)cudaEventDestroy(s->done[i]);
    }
    if (s->begun)
        (void)cudaEventDestroy(s->begun);
    kvd_device_release(&s->memory);
    free(s->group);
    free(s);
}

static int fill(state *s, const launch_group *g, kvd_operand tensor, const int32_t *len,
                const int32_t *kv_len, int32_t longest, void *to, void *stream, kvd_err *err)
{
    const int per_kv = s->heads.n_heads / s->heads.n_kv_heads,
              group = tensor == KVD_OPERAND_Q ? per_kv : 1;
    const kvd_cudnn_stride *const stride = tensor == KVD_OPERAND_Q   ? &g->shape.q
                                           : tensor == KVD_OPERAND_K ? &g->shape.k
                                                                     : &g->shape.v;
    kvd_fill_strided_args f = {.dtype = (int)s->p->dtype,
                               .sharp = s->p->sharp,
                               .seed = s->p->seed,
                               .tensor = (int)tensor,
                               .batch = s->p->batch,
                               .n_heads = g->n * group,
                               .padded = tensor == KVD_OPERAND_V ? g->d_v : g->d_qk,
                               .len = len,
                               .kv_len = kv_len,
                               .longest = longest,
                               .stride_batch = stride->batch,
                               .stride_head = stride->head,
                               .stride_token = stride->token};
    for (int j = 0; j < f.n_heads; j++) {
        const int kv = g->head[j / group];
        f.head[j] = kv * group + j % group;
        f.width[j] = tensor == KVD_OPERAND_V ? s->heads.d_v[kv] : s->heads.d_qk[kv];
    }
    return kvd_cuda_check(kvd_fill_strided(&f, to, stream), "making Q, K and V", err);
}

static int open_group(state *s, launch_group *g, const int32_t *q_len, const int32_t *kv_len,
                      void *stream, kvd_err *err)
{
    const kvd_problem *const p = s->p;
    const int per_kv = s->heads.n_heads / s->heads.n_kv_heads;
    const int32_t longest_q = kvd_problem_longest(p, true),
                  longest_kv = kvd_problem_longest(p, false);
    memset(&g->shape, 0, sizeof g->shape);
    g->shape.dtype = (int)p->dtype;
    g->shape.batch = p->batch;
    g->shape.n_heads = g->n * per_kv;
    g->shape.n_kv_heads = g->n;
    g->shape.d_qk = g->d_qk;
    g->shape.d_v = g->d_v;
    g->shape.q_len = longest_q;
    g->shape.kv_len = longest_kv;
    g->shape.causal = p->phase == KVD_PREFILL;
    g->shape.ragged = kvd_problem_ragged(p);
    g->shape.scale = (float)(1 / sqrt((double)p->heads.d_head));
    kvd_cudnn_packed(&g->shape);
    if (kvd_cudnn_open(&g->shape, &g->plan, err))
        return -1;
    const size_t heads = (size_t)p->batch * (size_t)g->n,
                 queries = heads * (size_t)per_kv * (size_t)longest_q;
    const size_t keys = heads * (size_t)longest_kv, d_qk = (size_t)g->d_qk, d_v = (size_t)g->d_v;
    void *const q = kvd_device_new(&s->memory, queries * d_qk * 2, "Q", err);
    void *const k = kvd_device_new(&s->memory, keys * d_qk * 2, "K", err);
    void *const v = kvd_device_new(&s->memory, keys * d_v * 2, "V", err);
    g->o.bytes = queries * d_v * 2;
    g->o.data = kvd_device_new(&s->memory, g->o.bytes, "O", err);
    g->io =
        (kvd_cudnn_io){.q = q, .k = k, .v = v, .o = g->o.data, .q_len = q_len, .kv_len = kv_len};
    if (s->memory.status || fill(s, g, KVD_OPERAND_Q, q_len, kv_len, longest_q, q, stream, err) ||
        fill(s, g, KVD_OPERAND_K, kv_len, kv_len, longest_kv, k, stream, err) ||
        fill(s, g, KVD_OPERAND_V, kv_len, kv_len, longest_kv, v, stream, err) ||
        choose_engine(g, stream, err))
        return -1;
    const size_t bytes = kvd_cudnn_workspace(g->plan);
    if (bytes)
        g->io.workspace = kvd_device_new(&s->memory, bytes, "cuDNN's workspace", err);
    return s->memory.status;
}

/* Creates CUDA streams so that attention of several groups of heads can run at the same time. */
static int open_streams(state *s, kvd_err *err)
{
    cudaError_t e = cudaEventCreateWithFlags(&s->begun, cudaEventDisableTiming);
    for (int i = 0; !e && i < STREAMS && i < s->n_groups; i++) {
        e = cudaStreamCreateWithFlags(&s->side[i], cudaStreamNonBlocking);
        if (!e)
            e = cudaEventCreateWithFlags(&s->done[i], cudaEventDisableTiming);
    }
    return kvd_cuda_check(e, "streams", err);
}

static void collect_groups(state *s, bool by_width, int padded)
{
    for (int g = 0; g < s->heads.n_kv_heads; g++) {
        const int d_qk = by_width ? s->heads.d_qk[g] : padded,
                  d_v = by_width ? s->heads.d_v[g] : padded;
        int i = 0;
        while (i < s->n_groups && (s->group[i].d_qk != d_qk || s->group[i].d_v != d_v))
            i++;
        if (i == s->n_groups) {
            s->group[i].d_qk = d_qk;
            s->group[i].d_v = d_v;
            s->n_groups++;
        }
        s->group[i].head[s->group[i].n++] = g;
    }
}

static int open_cudnn(const kvd_impl *impl, const kvd_problem *p, kvd_scheduler scheduler,
                      void *stream, char engine[KVD_IMPL_ENGINE], void **self, kvd_err *err)
{
    state *const s = *self = calloc(1, sizeof *s);
    (void)scheduler;
    if (!s)
        return kvd_no_memory(err, "an implementation", sizeof *s);
    const size_t lengths = (size_t)p->batch * sizeof(int32_t);
    s->p = p;
    s->heads = kvd_impl_heads(impl, p);
    s->group = kvd_new((size_t)s->heads.n_kv_heads, sizeof *s->group, "an implementation", err);
    if (!s->group)
        goto fail;
    collect_groups(s, impl->runs == KVD_WIDTH_USE_OWN, kvd_heads_widest(&s->heads));
    const int32_t *const q_len = kvd_device_from(&s->memory, p->q_len, lengths, "lengths", err),
                         *const kv_len =
                             kvd_device_from(&s->memory, p->kv_len, lengths, "lengths", err);
    if (s->memory.status || (s->n_groups > 1 && open_streams(s, err)))
        goto fail;
    for (int i = 0; i < s->n_groups; i++)
        if (open_group(s, &s->group[i], q_len, kv_len, stream, err)) {
            kvd_in(err, "d_qk %d, d_v %d", s->group[i].d_qk, s->group[i].d_v);
            goto fail;
        }
    snprintf(engine, KVD_IMPL_ENGINE, "cuDNN %s%s", kvd_cudnn_name(s->group[0].plan),
             s->n_groups > 1 ? ", and others" : "");
    if (!kvd_cuda_check(cudaStreamSynchronize(stream), "making Q, K and V", err))
        return 0;
fail:
    close_cudnn(s);
    *self = NULL;
    return -1;
}

static int launch(void *self, void *stream, kvd_err *err)
{
    state *const s = self;
    if (s->n_groups == 1)
        return kvd_cudnn_run(s->group[0].plan, &s->group[0].io, stream, err);
    const int streams = s->n_groups < STREAMS ? s->n_groups : STREAMS;
    cudaError_t e = cudaEventRecord(s->begun, stream);
    for (int i = 0; !e && i < streams; i++)
        e = cudaStreamWaitEvent(s->side[i], s->begun, 0);
    for (int i = 0; !e && i < s->n_groups; i++)
        if (kvd_cudnn_run(s->group[i].plan, &s->group[i].io, s->side[i % streams], err))
            return -1;
    for (int i = 0; !e && i < streams; i++) {
        e = cudaEventRecord(s->done[i], s->side[i]);
        if (!e)
            e = cudaStreamWaitEvent(stream, s->done[i], 0);
    }
    return kvd_cuda_check(e, "side streams", err);
}

static kvd_impl_output *output(void *self, int i)
{
    state *const s = self;
    return i < s->n_groups ? &s->group[i].o : NULL;
}

static void row(const void *self, int request, int head, size_t t, int d_v, float *out)
{
    const state *const s = self;
    const int per_kv = s->heads.n_heads / s->heads.n_kv_heads, kv = head / per_kv;
    for (int i = 0; i < s->n_groups; i++) {
        const launch_group *const g = &s->group[i];
        for (int j = 0; j < g->n; j++)
            if (g->head[j] == kv) {
                const int64_t at = request * g->shape.o.batch +
                                   (j * per_kv + head % per_kv) * g->shape.o.head +
                                   (int64_t)t * g->shape.o.token;
                kvd_to_f32(s->p->dtype, g->o.host + at, out, (size_t)d_v);
            }
    }
}

#define RUNS                                                                                       \
    .open = open_cudnn, .close = close_cudnn, .launch = launch, .output = output, .row = row

#else
#define RUNS .open = NULL /* `can` refuses */
#endif

#define ALL                                                                                        \
    .cuda = true, .phases = 1 << KVD_PREFILL | 1 << KVD_DECODE,                                    \
    .dtypes = 1 << KVD_F16 | 1 << KVD_BF16, .schedulers = 1 << KVD_BY_ITSELF, .can = can, RUNS

const kvd_impl kvd_impl_cudnn = {.name = "cudnn",
                                 .summary = "cuDNN, every head at d_head: the baseline",
                                 .runs = KVD_WIDTH_USE_DENSE,
                                 ALL};

const kvd_impl kvd_impl_cudnn_padded = {.name = "cudnn-padded",
                                        .summary = "cuDNN, every head at the widest",
                                        .runs = KVD_WIDTH_USE_PADDED,
                                        ALL};

const kvd_impl kvd_impl_cudnn_grouped = {.name = "cudnn-grouped",
                                         .summary = "cuDNN, a launch per distinct (d_qk, d_v)",
                                         .runs = KVD_WIDTH_USE_OWN,
                                         ALL};

#else
typedef int kvd_no_impl_cudnn; /* ISO C requires at least one declaration per file */
#endif
