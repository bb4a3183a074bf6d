#include "serving/cpu/slots.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/threads.h"
#include "model/attention.h"

size_t kvd_cpu_token_elements(const kvd_cpu_weights *w)
{
    const size_t heads = (size_t)w->config->n_kv_heads;
    size_t n = 0;
    for (int l = 0; l < w->config->n_layers; l++)
        n += w->layer[l].cut.at_qk[heads] + w->layer[l].cut.at_v[heads];
    return n;
}

int kvd_cpu_slots_init(kvd_cpu_slots *s, const kvd_cpu_weights *w, kvd_dtype type, size_t n, size_t tokens,
                       kvd_err *err)
{
    *s = (kvd_cpu_slots){.model = w, .type = type, .n = n, .tokens = tokens};
    s->elements = tokens * kvd_cpu_token_elements(w);
    const size_t bytes = n * s->elements * kvd_dtype_bytes(type),
                 scores = kvd_thread_count() * KVD_ATTEND_ROWS * tokens;
    void *const store =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    s->store = store == MAP_FAILED ? NULL : store;
    s->decoded_at = calloc(n, sizeof *s->decoded_at);
    s->scores = malloc(scores * sizeof *s->scores);
    return s->store && s->decoded_at && s->scores
               ? 0
               : kvd_no_memory(err, "the cache of the engine", bytes + scores * sizeof *s->scores);
}

void kvd_cpu_slots_release(kvd_cpu_slots *s)
{
    if (s->store)
        munmap(s->store, s->n * s->elements * kvd_dtype_bytes(s->type));
    free(s->decoded);
    free(s->decoded_at);
    free(s->scores);
    memset(s, 0, sizeof *s);
}

/* K' of one head of one layer of a slot; V' stands tokens * d_qk elements behind. */
static char *head_of(const kvd_cpu_slots *s, size_t slot, int layer, size_t g)
{
    const size_t heads = (size_t)s->model->config->n_kv_heads;
    size_t at = slot * s->elements;
    for (int l = 0; l < layer; l++)
        at += s->tokens * (s->model->layer[l].cut.at_qk[heads] + s->model->layer[l].cut.at_v[heads]);
    const kvd_cpu_widths *const u = &s->model->layer[layer].cut;
    return s->store + (at + s->tokens * (u->at_qk[g] + u->at_v[g])) * kvd_dtype_bytes(s->type);
}

/* Rows of one head, m wide and ld apart, to rows m apart in the type of the store. */
static void put_rows(const kvd_cpu_slots *s, size_t n, size_t m, const float *x, size_t ld, char *to)
{
    for (size_t i = 0; i < n; i++)
        kvd_from_f32(s->type, x + i * ld, to + i * m * kvd_dtype_bytes(s->type), m);
}

void kvd_cpu_slots_append(kvd_cpu_slots *s, int layer, const kvd_iteration *it, const float *k,
                          const float *v)
{
    const size_t heads = (size_t)s->model->config->n_kv_heads, element = kvd_dtype_bytes(s->type);
    const kvd_cpu_widths *const u = &s->model->layer[layer].cut;
    for (size_t i = 0, row = 0; i < it->n_slices; row += it->slice[i++].n)
#pragma omp parallel for schedule(static) if (it->slice[i].n > 64)
        for (size_t g = 0; g < heads; g++) {
            const kvd_slice *const x = &it->slice[i];
            char *const to = head_of(s, x->slot, layer, g);
            put_rows(s, x->n, u->d_qk[g], k + row * u->at_qk[heads] + u->at_qk[g], u->at_qk[heads],
                     to + x->before * u->d_qk[g] * element);
            put_rows(s, x->n, u->d_v[g], v + row * u->at_v[heads] + u->at_v[g], u->at_v[heads],
                     to + (s->tokens * u->d_qk[g] + x->before * u->d_v[g]) * element);
        }
}

static size_t tokens_of(const kvd_slice *x)
{
    return (size_t)x->before + x->n;
}

int kvd_cpu_slots_decode(kvd_cpu_slots *s, int layer, const kvd_iteration *it, kvd_err *err)
{
    const size_t heads = (size_t)s->model->config->n_kv_heads, element = kvd_dtype_bytes(s->type);
    const kvd_cpu_widths *const u = &s->model->layer[layer].cut;
    size_t n = 0;
    if (s->type == KVD_F32)
        return 0;
    for (size_t i = 0; i < it->n_slices; i++) {
        s->decoded_at[i] = n;
        n += tokens_of(&it->slice[i]) * (u->at_qk[heads] + u->at_v[heads]);
    }
    if (n > s->decoded_n) {
        free(s->decoded);
        s->decoded = malloc(n * sizeof *s->decoded);
        s->decoded_n = s->decoded ? n : 0;
        if (!s->decoded)
            return kvd_no_memory(err, "a decoded layer", (unsigned long long)n * sizeof *s->decoded);
    }
#pragma omp parallel for schedule(dynamic) collapse(2)
    for (size_t i = 0; i < it->n_slices; i++)
        for (size_t g = 0; g < heads; g++) {
            const size_t m = tokens_of(&it->slice[i]);
            const char *const from = head_of(s, it->slice[i].slot, layer, g);
            float *const to = s->decoded + s->decoded_at[i] + m * (u->at_qk[g] + u->at_v[g]);
            kvd_to_f32(s->type, from, to, m * u->d_qk[g]);
            kvd_to_f32(s->type, from + s->tokens * u->d_qk[g] * element, to + m * u->d_qk[g], m * u->d_v[g]);
        }
    return 0;
}

/* K' and V' of a head of a slice as float32. */
static const float *read_head(const kvd_cpu_slots *s, int layer, const kvd_iteration *it, size_t i, size_t g,
                              const float **v)
{
    const kvd_cpu_widths *const u = &s->model->layer[layer].cut;
    if (s->type == KVD_F32) {
        const float *const k = (const float *)(const void *)head_of(s, it->slice[i].slot, layer, g);
        *v = k + s->tokens * u->d_qk[g];
        return k;
    }
    const size_t m = tokens_of(&it->slice[i]);
    const float *const k = s->decoded + s->decoded_at[i] + m * (u->at_qk[g] + u->at_v[g]);
    *v = k + m * u->d_qk[g];
    return k;
}

/* Rows at .. of slice i, which begins at `row` of q and o, through query head h. */
static void attend_block(kvd_cpu_slots *s, int layer, const kvd_iteration *it, size_t i, size_t row,
                         size_t at, size_t h, const float *q, float *o)
{
    const kvd_cpu_weights *const w = s->model;
    const kvd_cpu_widths *const u = &w->layer[layer].cut;
    const kvd_slice *const x = &it->slice[i];
    const size_t kv = (size_t)w->config->n_kv_heads, g = h / w->group;
    const size_t ldq = w->group * u->at_qk[kv], ldo = w->group * u->at_v[kv];
    const size_t rows = x->n - at < KVD_ATTEND_ROWS ? x->n - at : KVD_ATTEND_ROWS;
    const float scale = 1.0f / sqrtf((float)w->config->d_head); /* of the uncut head */
    const float *v, *const k = read_head(s, layer, it, i, g, &v);
    kvd_attend_rows(x->before + at, rows, kvd_config_window(w->config, layer), u->d_qk[g], u->d_v[g],
                    q + (row + at) * ldq + kvd_cpu_query_at(w, u->at_qk, h), ldq, k, u->d_qk[g], v, u->d_v[g],
                    scale, s->scores + kvd_thread_index() * KVD_ATTEND_ROWS * s->tokens,
                    o + (row + at) * ldo + kvd_cpu_query_at(w, u->at_v, h), ldo);
}

void kvd_cpu_slots_step(kvd_cpu_slots *s, int layer, const kvd_iteration *it, const float *q, float *o)
{
    const size_t heads = (size_t)s->model->config->n_heads;
    const int saved = kvd_blas_serial();
#pragma omp parallel for schedule(dynamic) collapse(2)
    for (size_t i = 0; i < it->n_steps; i++)
        for (size_t h = 0; h < heads; h++)
            attend_block(s, layer, it, i, i, 0, h, q, o);
    kvd_blas_restore(saved);
}

void kvd_cpu_slots_prefill(kvd_cpu_slots *s, int layer, const kvd_iteration *it, const float *q, float *o)
{
    const size_t heads = (size_t)s->model->config->n_heads;
    const int saved = kvd_blas_serial();
    for (size_t i = it->n_steps, row = it->n_steps; i < it->n_slices; row += it->slice[i++].n) {
        const size_t blocks = (it->slice[i].n + KVD_ATTEND_ROWS - 1) / KVD_ATTEND_ROWS;
#pragma omp parallel for schedule(dynamic) collapse(2)
        for (size_t b = 0; b < blocks; b++) /* long ones first */
            for (size_t h = 0; h < heads; h++)
                attend_block(s, layer, it, i, row, (blocks - 1 - b) * KVD_ATTEND_ROWS, h, q, o);
    }
    kvd_blas_restore(saved);
}
