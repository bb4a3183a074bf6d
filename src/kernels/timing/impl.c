#include "kernels/timing/impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/device.h"
#include "common/threads.h"
#include "kernels/attention_ref.h"
#include "kernels/cpu/attention_cpu.h"

/* State of the CPU implementations `ref` (float64 reference) and `cpu`. */
typedef struct {
    const kvd_problem *p;
    kvd_attn_batch batch;
    float *q, *k, *v;
    bool ref;
    kvd_impl_output o; /* of doubles if `ref`, else of floats */
} state;

static void close_cpu(void *self)
{
    state *const s = self;
    if (!s)
        return;
    free(s->q);
    free(s->k);
    free(s->v);
    free(s->o.data);
    free(s);
}

static int open_cpu(const kvd_impl *impl, const kvd_problem *p, kvd_scheduler scheduler,
                    void *stream, char engine[KVD_IMPL_ENGINE], void **self, kvd_err *err)
{
    const bool ref = impl == &kvd_impl_ref;
    state *const s = *self = calloc(1, sizeof *s);
    (void)scheduler;
    (void)stream;
    if (!s)
        return kvd_no_memory(err, "an implementation", sizeof *s);
    s->p = p;
    s->ref = ref;
    s->batch = kvd_problem_batch(p);
    const size_t group = (size_t)(p->heads.n_heads / p->heads.n_kv_heads);
    for (int g = 0; g < p->heads.n_kv_heads; g++)
        s->o.bytes += group * (size_t)p->heads.d_v[g];
    s->o.bytes *= kvd_problem_tokens(p, true) * (ref ? sizeof(double) : sizeof(float));
    s->q = kvd_problem_plain(p, KVD_OPERAND_Q, err);
    s->k = s->q ? kvd_problem_plain(p, KVD_OPERAND_K, err) : NULL;
    s->v = s->k ? kvd_problem_plain(p, KVD_OPERAND_V, err) : NULL;
    if (!s->v)
        goto fail;
    if (!(s->o.data = malloc(s->o.bytes))) {
        kvd_no_memory(err, "O", s->o.bytes);
        goto fail;
    }
    snprintf(engine, KVD_IMPL_ENGINE, "%s, %zu threads",
             ref ? "double" : kvd_cpu_isa_name(kvd_cpu_isa_best()), kvd_thread_count());
    return 0;
fail:
    close_cpu(s);
    *self = NULL;
    return -1;
}

static int launch_ref(void *self, void *stream, kvd_err *err)
{
    state *const s = self;
    (void)stream;
    return kvd_attention_ref(&s->p->heads, &s->batch, s->q, s->k, s->v, s->o.data, NULL, err);
}

static int launch_cpu(void *self, void *stream, kvd_err *err)
{
    state *const s = self;
    (void)stream;
    return kvd_attention_cpu(&s->p->heads, &s->batch, KVD_CPU_AUTO, s->q, s->k, s->v, s->o.data,
                             err);
}

static kvd_impl_output *output(void *self, int i)
{
    state *const s = self;
    return i ? NULL : &s->o;
}

static void row(const void *self, int request, int head, size_t t, int d_v, float *out)
{
    const state *const s = self;
    const int group = s->p->heads.n_heads / s->p->heads.n_kv_heads;
    size_t at = 0;
    for (int h = 0; h < head; h++)
        at += kvd_problem_tokens(s->p, true) * (size_t)s->p->heads.d_v[h / group];
    for (int b = 0; b < request; b++)
        at += (size_t)s->p->q_len[b] * (size_t)d_v;
    at += t * (size_t)d_v;
    for (int i = 0; i < d_v; i++)
        out[i] = s->ref ? (float)((const double *)s->o.data)[at + (size_t)i]
                        : ((const float *)s->o.data)[at + (size_t)i];
}

#define REST                                                                                       \
    .phases = 1u << KVD_PREFILL | 1u << KVD_DECODE, .dtypes = 1u << KVD_F32,                       \
    .schedulers = 1u << KVD_BY_ITSELF, .runs = KVD_WIDTH_USE_OWN, .open = open_cpu,                \
    .close = close_cpu, .output = output, .row = row

const kvd_impl kvd_impl_ref = {.name = "ref",
                               .summary = "the reference: plain C, double",
                               .windows = true,
                               .launch = launch_ref,
                               REST};

const kvd_impl kvd_impl_cpu = {.name = "cpu",
                               .summary = "CPU kernels: blocked, AVX2 or AVX-512, threads",
                               .launch = launch_cpu,
                               REST};

#ifdef KVD_CUDA
#include "common/cuda/memory.h"
#include "common/rng.h"
#include "kernels/cuda/prefill_plan.h"

_Static_assert((int)KVD_BY_NONE == (int)KVD_SCHEDULE_NONE &&
                   (int)KVD_BY_PAPERS == (int)KVD_SCHEDULE_PAPERS &&
                   (int)KVD_BY_OURS == (int)KVD_SCHEDULE_OURS,
               "the two enums are one");
#endif

const char *const kvd_scheduler_name[KVD_N_SCHEDULERS] = {"none", "papers", "ours", "-"};
const char *const kvd_width_use_name[KVD_N_RUNS] = {"own", "padded", "dense", "latent"};

static const kvd_impl *const all[] = {
    &kvd_impl_ref,          &kvd_impl_cpu,
#ifdef KVD_CUDA
    &kvd_impl_cuda,         &kvd_impl_cuda_mma,      &kvd_impl_cuda_dense, &kvd_impl_cudnn,
    &kvd_impl_cudnn_padded, &kvd_impl_cudnn_grouped, &kvd_impl_palu,
#endif
};
enum { N = sizeof all / sizeof *all };

int kvd_impl_count(void)
{
    return N;
}

const kvd_impl *kvd_impl_at(int i)
{
    return all[i];
}

const kvd_impl *kvd_impl_find(const char *name, kvd_err *err)
{
    char names[512] = "";
    for (int i = 0; i < N; i++) {
        const size_t used = strlen(names);
        if (!strcmp(all[i]->name, name))
            return all[i];
        snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", all[i]->name);
    }
#ifndef KVD_CUDA
    if (!strncmp(name, "cuda", 4) || !strncmp(name, "cudnn", 5) || !strncmp(name, "palu", 4)) {
        kvd_fail(err, "--impl: '%s' needs CUDA, which " KVD_LEFT_OUT "; there are %s", name, names);
        return NULL;
    }
#endif
    kvd_fail(err, "--impl: '%s' is none of %s", name, names);
    return NULL;
}

int kvd_impl_takes(const kvd_impl *impl, const kvd_problem *p, kvd_err *why)
{
    if (!(impl->phases & 1u << p->phase))
        return kvd_fail(why, "no %s", kvd_attn_phase_name[p->phase]);
    if (!(impl->dtypes & 1u << p->dtype))
        return kvd_fail(why, "does not take %s", kvd_dtype_name(p->dtype));
    if (p->heads.window && !impl->windows)
        return kvd_fail(why, "computes no sliding window");
    return impl->can ? impl->can(impl, p, why) : 0;
}

kvd_attn_heads kvd_impl_heads(const kvd_impl *impl, const kvd_problem *p)
{
    return impl->stored                        ? impl->stored(p)
           : impl->runs == KVD_WIDTH_USE_DENSE ? kvd_heads_dense(&p->heads)
                                               : p->heads;
}

void kvd_impl_count_work(const kvd_impl *impl, const kvd_problem *p, kvd_floors *f)
{
    const kvd_attn_heads heads = kvd_impl_heads(impl, p);
    if (impl->count)
        impl->count(p, f);
    else
        kvd_floors_count(p, &heads, f);
}

int kvd_impl_check_make(const kvd_impl *impl, const kvd_problem *p, kvd_check_mode mode,
                        kvd_row_check *check, kvd_err *err)
{
    const kvd_attn_heads heads = impl->answer ? impl->answer(p) : kvd_impl_heads(impl, p);
    return kvd_row_check_make(check, p, &heads,
                              impl->make_rows ? impl->make_rows : kvd_problem_rows, mode, err);
}

int kvd_impl_poison(const kvd_impl *impl, void *self, void *stream, kvd_err *err)
{
    kvd_impl_output *o;
    for (int i = 0; (o = impl->output(self, i)); i++) {
        if (!impl->cuda)
            memset(o->data, 0xff, o->bytes);
#ifdef KVD_CUDA
        else if (kvd_cuda_check(cudaMemsetAsync(o->data, 0xff, o->bytes, stream), "O", err))
            return -1;
#endif
    }
    (void)stream;
    (void)err;
    return 0;
}

int kvd_impl_fetch(const kvd_impl *impl, void *self, kvd_err *err)
{
#ifdef KVD_CUDA
    kvd_impl_output *o;
    for (int i = 0; impl->cuda && (o = impl->output(self, i)); i++) {
        if (!o->host && !(o->host = malloc(o->bytes)))
            return kvd_no_memory(err, "O", o->bytes);
        if (kvd_cuda_check(cudaMemcpy(o->host, o->data, o->bytes, cudaMemcpyDeviceToHost), "O",
                           err))
            return -1;
    }
#endif
    (void)impl;
    (void)self;
    (void)err;
    return 0;
}

#ifdef KVD_CUDA

int32_t kvd_problem_longest(const kvd_problem *p, bool queries)
{
    int32_t longest = 0;
    for (int b = 0; b < p->batch; b++) {
        const int32_t n = (queries ? p->q_len : p->kv_len)[b];
        longest = n > longest ? n : longest;
    }
    return longest;
}

bool kvd_problem_ragged(const kvd_problem *p)
{
    for (int b = 1; b < p->batch; b++)
        if (p->kv_len[b] != p->kv_len[0])
            return true;
    return false;
}

int32_t *kvd_scattered_pages(const kvd_problem *p, int *max_pages, size_t *n_pages, kvd_err *err)
{
    kvd_rng rng;
    size_t n = 0, next = 0;
    const int most = (kvd_problem_longest(p, false) + KVD_PAGE_TOKENS - 1) / KVD_PAGE_TOKENS;
    for (int b = 0; b < p->batch; b++)
        n += ((size_t)p->kv_len[b] + KVD_PAGE_TOKENS - 1) / KVD_PAGE_TOKENS;
    const size_t size = (size_t)p->batch * (size_t)most;
    int32_t *const table = malloc(size * sizeof *table), *const order = malloc(n * sizeof *order);
    if (!table || !order) {
        free(table);
        free(order);
        kvd_no_memory(err, "a page table", (size + n) * sizeof *table);
        return NULL;
    }
    kvd_rng_seed(&rng, p->seed, 2);
    for (size_t i = 0; i < n; i++) {
        const size_t j = (size_t)kvd_rng_below(&rng, i + 1);
        order[i] = order[j];
        order[j] = (int32_t)i;
    }
    /* Page table entries after a request's last page are -1, because kernels must not read them. */
    memset(table, 0xff, size * sizeof *table);
    for (int b = 0; b < p->batch; b++)
        for (int j = 0; j < (p->kv_len[b] + KVD_PAGE_TOKENS - 1) / KVD_PAGE_TOKENS; j++)
            table[(size_t)b * (size_t)most + (size_t)j] = order[next++];
    free(order);
    *max_pages = most;
    *n_pages = n;
    return table;
}
#endif
