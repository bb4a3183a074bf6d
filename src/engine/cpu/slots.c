#include "engine/cpu/slots.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/threads.h"
#include "model/pass/attention.h"

static size_t held_by(const kvd_cpu_weights *w, int layer, size_t n)
{
    const size_t window = kvd_config_window(w->config, layer);
    return window && window < n ? window : n;
}

static size_t elements_of(const kvd_cpu_weights *w, int layer)
{
    const size_t heads = (size_t)w->config->n_kv_heads;
    return w->layer[layer].cut.at_qk[heads] + w->layer[layer].cut.at_v[heads];
}

size_t kvd_cpu_slot_elements(const kvd_cpu_weights *w, size_t n)
{
    size_t sum = 0;
    for (int l = 0; l < w->config->n_layers; l++)
        sum += held_by(w, l, n) * elements_of(w, l);
    return sum;
}

int kvd_cpu_slots_init(kvd_cpu_slots *s, const kvd_cpu_weights *w, kvd_dtype type, size_t n,
                       size_t tokens, kvd_err *err)
{
    *s = (kvd_cpu_slots){.model = w, .type = type, .n = n, .tokens = tokens};
    s->elements = kvd_cpu_slot_elements(w, tokens);
    const size_t bytes = n * s->elements * kvd_dtype_bytes(type),
                 scores = kvd_thread_count() * KVD_ATTEND_ROWS * tokens;
    void *const store = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
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

static size_t rows_of(const kvd_cpu_slots *s, int layer)
{
    return held_by(s->model, layer, s->tokens);
}

/* Returns the keys [tokens][d_qk] that the cache holds of KV head g. The head's values follow
 * them. */
static char *head_of(const kvd_cpu_slots *s, size_t slot, int layer, size_t g)
{
    size_t at = slot * s->elements;
    for (int l = 0; l < layer; l++)
        at += rows_of(s, l) * elements_of(s->model, l);
    const kvd_cpu_widths *const u = &s->model->layer[layer].cut;
    return s->store +
           (at + rows_of(s, layer) * (u->at_qk[g] + u->at_v[g])) * kvd_dtype_bytes(s->type);
}

/* Tokens to which a request's new tokens attend: tokens in the cache, then the new tokens. */
typedef struct {
    size_t n;
    /* number of tokens in the cache to which the new tokens attend, and so the index of the first
     * new token */
    size_t first;
    /* length of the layer's sliding window in tokens; 0 if it has none */
    size_t window;
    /* true if kvd_cpu_slots.decoded already contains K and V of all tokens to which new tokens
     * attend */
    bool gathered;
} seen_rows;

static seen_rows seen_by(const kvd_cpu_slots *s, int layer, const kvd_slice *x)
{
    const size_t window = kvd_config_window(s->model->config, layer), rows = rows_of(s, layer),
                 before = x->before, all = before + x->n;
    if (rows == s->tokens)
        return (seen_rows){all, before, window, false};
    /* A single new token attends to all tokens that the cache of this layer holds, so it needs no
     * mask for the sliding window. */
    if (x->n == 1) {
        const size_t n = all < rows ? all : rows;
        return (seen_rows){n, n - 1, 0, false};
    }
    const size_t old = before < rows - 1 ? before : rows - 1;
    return (seen_rows){old + x->n, old, window, true};
}

static bool is_decoded(const kvd_cpu_slots *s, const seen_rows *r)
{
    return r->gathered || s->type != KVD_F32;
}

/* Rounds n numbers x to the number type of the cache, and stores them as float32 in `to`. */
static void round_numbers(const kvd_cpu_slots *s, size_t n, const float *x, float *to)
{
    char rounded[4096];
    for (size_t at = 0; at < n; at += 1024) {
        const size_t some = n - at < 1024 ? n - at : 1024;
        kvd_from_f32(s->type, x + at, rounded, some);
        kvd_to_f32(s->type, rounded, to + at, some);
    }
}

/* Copies the K or the V of a head to float32: first the cached tokens from `store`, then the new
 * tokens x. */
static void gather_side(const kvd_cpu_slots *s, int layer, const kvd_slice *slice,
                        const seen_rows *r, const char *store, size_t m, const float *x, size_t ld,
                        float *to)
{
    const size_t rows = rows_of(s, layer), element = kvd_dtype_bytes(s->type);
    for (size_t i = 0; i < r->first; i++)
        kvd_to_f32(s->type, store + (slice->before - r->first + i) % rows * m * element, to + i * m,
                   m);
    for (size_t i = 0; i < slice->n; i++)
        round_numbers(s, m, x + i * ld, to + (r->first + i) * m);
}

/* Stores x, the K or V of a head's new tokens, in the cache `store`. If `store` is too small for
 * all new tokens, stores only the newest. */
static void put_side(const kvd_cpu_slots *s, int layer, const kvd_slice *slice, size_t m,
                     const float *x, size_t ld, char *store)
{
    const size_t rows = rows_of(s, layer), element = kvd_dtype_bytes(s->type);
    for (size_t i = slice->n > rows ? slice->n - rows : 0; i < slice->n; i++)
        kvd_from_f32(s->type, x + i * ld, store + (slice->before + i) % rows * m * element, m);
}

static int reserve(kvd_cpu_slots *s, int layer, const kvd_iteration *it, kvd_err *err)
{
    size_t n = 0;
    for (size_t i = 0; i < it->n_slices; i++) {
        const seen_rows r = seen_by(s, layer, &it->slice[i]);
        s->decoded_at[i] = n;
        n += is_decoded(s, &r) ? r.n * elements_of(s->model, layer) : 0;
    }
    if (n <= s->decoded_n)
        return 0;
    free(s->decoded);
    s->decoded = malloc(n * sizeof *s->decoded);
    s->decoded_n = s->decoded ? n : 0;
    return s->decoded ? 0 : kvd_no_memory(err, "a decoded layer", n * sizeof *s->decoded);
}

/* Returns the keys [r->n][d_qk] of KV head g in float32. The head's values follow them. */
static float *decoded_of(const kvd_cpu_slots *s, int layer, size_t i, const seen_rows *r, size_t g)
{
    const kvd_cpu_widths *const u = &s->model->layer[layer].cut;
    return s->decoded + s->decoded_at[i] + r->n * (u->at_qk[g] + u->at_v[g]);
}

int kvd_cpu_slots_append(kvd_cpu_slots *s, int layer, const kvd_iteration *it, const float *k,
                         const float *v, kvd_err *err)
{
    const size_t heads = (size_t)s->model->config->n_kv_heads, element = kvd_dtype_bytes(s->type);
    const kvd_cpu_widths *const u = &s->model->layer[layer].cut;
    if (reserve(s, layer, it, err))
        return -1;
    for (size_t i = 0, row = 0; i < it->n_slices; row += it->slice[i++].n)
#pragma omp parallel for schedule(static) if (it->slice[i].n > 64)
        for (size_t g = 0; g < heads; g++) {
            const kvd_slice *const x = &it->slice[i];
            const seen_rows r = seen_by(s, layer, x);
            char *const store_k = head_of(s, x->slot, layer, g);
            char *const store_v = store_k + rows_of(s, layer) * u->d_qk[g] * element;
            const float *const new_k = k + row * u->at_qk[heads] + u->at_qk[g],
                               *const new_v = v + row * u->at_v[heads] + u->at_v[g];
            if (r.gathered) {
                float *const to = decoded_of(s, layer, i, &r, g);
                gather_side(s, layer, x, &r, store_k, u->d_qk[g], new_k, u->at_qk[heads], to);
                gather_side(s, layer, x, &r, store_v, u->d_v[g], new_v, u->at_v[heads],
                            to + r.n * u->d_qk[g]);
            }
            put_side(s, layer, x, u->d_qk[g], new_k, u->at_qk[heads], store_k);
            put_side(s, layer, x, u->d_v[g], new_v, u->at_v[heads], store_v);
        }
    return 0;
}

void kvd_cpu_slots_decode(kvd_cpu_slots *s, int layer, const kvd_iteration *it)
{
    const size_t heads = (size_t)s->model->config->n_kv_heads, element = kvd_dtype_bytes(s->type);
    const kvd_cpu_widths *const u = &s->model->layer[layer].cut;
    if (s->type == KVD_F32)
        return;
#pragma omp parallel for schedule(dynamic) collapse(2)
    for (size_t i = 0; i < it->n_slices; i++)
        for (size_t g = 0; g < heads; g++) {
            const seen_rows r = seen_by(s, layer, &it->slice[i]);
            if (r.gathered)
                continue;
            const char *const from = head_of(s, it->slice[i].slot, layer, g);
            float *const to = decoded_of(s, layer, i, &r, g);
            kvd_to_f32(s->type, from, to, r.n * u->d_qk[g]);
            kvd_to_f32(s->type, from + rows_of(s, layer) * u->d_qk[g] * element,
                       to + r.n * u->d_qk[g], r.n * u->d_v[g]);
        }
}

static const float *read_head(const kvd_cpu_slots *s, int layer, const kvd_iteration *it, size_t i,
                              const seen_rows *r, size_t g, const float **v)
{
    const size_t d_qk = s->model->layer[layer].cut.d_qk[g];
    const float *const k =
        is_decoded(s, r) ? decoded_of(s, layer, i, r, g)
                         : (const float *)(const void *)head_of(s, it->slice[i].slot, layer, g);
    *v = k + (is_decoded(s, r) ? r->n : rows_of(s, layer)) * d_qk;
    return k;
}

/* Computes attention of query head h for new tokens of a request: those from index `at` on, at most
 * KVD_ATTEND_ROWS. */
static void attend_block(kvd_cpu_slots *s, int layer, const kvd_iteration *it, size_t i, size_t row,
                         size_t at, size_t h, const float *q, float *o)
{
    const kvd_cpu_weights *const w = s->model;
    const kvd_cpu_widths *const u = &w->layer[layer].cut;
    const kvd_slice *const x = &it->slice[i];
    const size_t kv = (size_t)w->config->n_kv_heads, g = h / w->group;
    const size_t ldq = w->group * u->at_qk[kv], ldo = w->group * u->at_v[kv];
    const size_t rows = x->n - at < KVD_ATTEND_ROWS ? x->n - at : KVD_ATTEND_ROWS;
    const seen_rows r = seen_by(s, layer, x);
    const float *v, *const k = read_head(s, layer, it, i, &r, g, &v);
    kvd_attend_rows(r.first + at, rows, r.window, u->d_qk[g], u->d_v[g],
                    q + (row + at) * ldq + kvd_cpu_query_at(w, u->at_qk, h), ldq, k, u->d_qk[g], v,
                    u->d_v[g], kvd_config_scores(w->config),
                    s->scores + kvd_thread_index() * KVD_ATTEND_ROWS * s->tokens,
                    o + (row + at) * ldo + kvd_cpu_query_at(w, u->at_v, h), ldo);
}

void kvd_cpu_slots_step(kvd_cpu_slots *s, int layer, const kvd_iteration *it, const float *q,
                        float *o)
{
    const size_t heads = (size_t)s->model->config->n_heads;
    const int saved = kvd_blas_serial();
#pragma omp parallel for schedule(dynamic) collapse(2)
    for (size_t i = 0; i < it->n_steps; i++)
        for (size_t h = 0; h < heads; h++)
            attend_block(s, layer, it, i, i, 0, h, q, o);
    kvd_blas_restore(saved);
}

void kvd_cpu_slots_prefill(kvd_cpu_slots *s, int layer, const kvd_iteration *it, const float *q,
                           float *o)
{
    const size_t heads = (size_t)s->model->config->n_heads;
    const int saved = kvd_blas_serial();
    for (size_t i = it->n_steps, row = it->n_steps; i < it->n_slices; row += it->slice[i++].n) {
        const size_t blocks = (it->slice[i].n + KVD_ATTEND_ROWS - 1) / KVD_ATTEND_ROWS;
#pragma omp parallel for schedule(dynamic) collapse(2)
        /* Later blocks of tokens attend to more tokens. They run first, to balance the threads. */
        for (size_t b = 0; b < blocks; b++)
            for (size_t h = 0; h < heads; h++)
                attend_block(s, layer, it, i, row, (blocks - 1 - b) * KVD_ATTEND_ROWS, h, q, o);
    }
    kvd_blas_restore(saved);
}
