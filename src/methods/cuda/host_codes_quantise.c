/* Quantises K and V of requests with all threads of the CPU (host_codes_parts.h). */
#include <stdlib.h>

#include "common/half.h"
#include "common/threads.h"
#include "methods/bits/bits.h"
#include "methods/cuda/host_codes_parts.h"

static const char what[] = KVD_HOST_CODES_WHAT;

/* Work of one thread: to quantise n tokens of a request in one layer and one part, such as K of one
 * KV head. bits: size of the resulting codes. */
typedef struct {
    const kvd_host_written *of;
    size_t place;   /* layer * n_parts + part */
    size_t from, n; /* position of the first token, and number of tokens */
    double bits;
} task;

/* Returns which tokens of a request must be quantised now in one layer and one part of a row, such
 * as K of one KV head. `place` is layer * n_parts + part. Tokens that have left the layer's sliding
 * window are skipped. */
static task task_of(const kvd_host_codes *k, const kvd_host_written *w, size_t place)
{
    const kvd_host_slot *const s = w->slot;
    const kvd_side side = k->part[place].side;
    const size_t held = kvd_host_codes_first_held(
                     k, kvd_host_codes_kind(k, place / k->rows.n_parts), s->n),
                 from = s->coded[side] > held ? s->coded[side] : held,
                 n = w->ready[side] > from ? w->ready[side] - from : 0;
    return (task){.of = w, .place = place, .from = from, .n = n};
}

/* Data for quantising n vectors. x [2 n][d]: the vectors, then the dequantised vectors. input
 * [n][rows.input]: the layer's inputs, if the method needs them. */
typedef struct {
    double *mass; /* [2 n] kvd_bits_block.mass, then `seen`; or NULL */
    float *x, *input;
    uint32_t *position; /* [n] */
    uint8_t *level;     /* [n] */
} task_rows;

static int code_blocks(const kvd_host_codes *k, task *t, const task_rows *r, kvd_err *err)
{
    const kvd_plan *const p = k->method->plan;
    const kvd_host_slot *const s = t->of->slot;
    const kvd_host_part *const part = &k->part[t->place];
    const int layer = (int)(t->place / k->rows.n_parts);
    const size_t n = t->n, d = part->d;
    size_t window = 0, block = 1;
    if (p->bits->window)
        p->bits->window(&p->bits_values, part->side, &window, &block);
    for (size_t at = 0, each = s->prompt ? n : block; at < n; at += each) {
        const kvd_bits_block b = {.side = part->side,
                                  .layer = layer,
                                  .kv_head = part->kv_head,
                                  .n = each,
                                  .d = d,
                                  .x = r->x + at * d,
                                  .input = k->rows.input ? r->input + at * k->rows.input : NULL,
                                  .level = r->level + at,
                                  .position = r->position + at,
                                  .mass = r->mass ? r->mass + at : NULL,
                                  .seen = r->mass ? r->mass + n + at : NULL,
                                  .state = s->state + t->place * k->states,
                                  .prompt = s->prompt};
        kvd_bits_count count = {0, 0};
        if (p->bits->code(p->bits_self, &b, r->x + (n + at) * d, &count, err))
            return kvd_in(err, "layer %d, KV head %d", layer, part->kv_head);
        t->bits += count.payload + count.side;
    }
    return 0;
}

/* Fills r->mass [2 n] for n tokens: attention that each token received, then number of queries that
 * could attend to each token. */
static int find_mass(const kvd_host_codes *k, const task *t, task_rows *r, kvd_err *err)
{
    const kvd_paged_cache *const c = k->method->cache;
    const kvd_host_slot *const s = t->of->slot;
    const size_t layer = t->place / k->rows.n_parts, heads = (size_t)c->config->n_kv_heads,
                 group = (size_t)c->config->n_heads / heads,
                 window = kvd_host_codes_kind(k, layer) == KVD_LAYERS_NEAR ? c->window : s->n;
    if (!(r->mass = malloc(2 * t->n * sizeof *r->mass)))
        return kvd_no_memory(err, what, 2 * t->n * sizeof *r->mass);
    for (size_t i = 0; i < t->n; i++) {
        const size_t at = t->from + i, queries = s->n - at;
        r->mass[i] = s->mass[layer][(at - s->first) * heads + (size_t)k->part[t->place].kv_head];
        r->mass[t->n + i] = (double)((queries < window ? queries : window) * group);
    }
    return 0;
}

/* Quantises one part (such as K of one head) of a request's tokens. Stores the decoded numbers. */
static int code_part(const kvd_host_codes *k, task *t, kvd_err *err)
{
    const kvd_host_slot *const s = t->of->slot;
    const kvd_host_part *const part = &k->part[t->place];
    const size_t from = t->from, n = t->n, d = part->d, input = k->rows.input,
                 bytes = n * ((2 * d + input) * sizeof(float) + sizeof(uint32_t) + 1);
    if (!n)
        return 0;
    task_rows r = {.x = malloc(bytes)};
    if (!r.x)
        return kvd_no_memory(err, what, bytes);
    r.input = r.x + 2 * n * d;
    r.position = (uint32_t *)(void *)(r.input + n * input);
    r.level = (uint8_t *)(r.position + n);
    uint16_t *const row = s->row[t->place / k->rows.n_parts] + (from - s->first) * k->pitch;
    for (size_t i = 0; i < n; i++) {
        kvd_to_f32(KVD_BF16, row + i * k->pitch + part->at, r.x + i * d, d);
        kvd_to_f32(KVD_BF16, row + i * k->pitch + k->rows.width, r.input + i * input, input);
        r.position[i] = (uint32_t)(from + i);
        r.level[i] = KVD_LEVEL_HIGH;
    }
    const int status = (s->mass && find_mass(k, t, &r, err)) || code_blocks(k, t, &r, err);
    for (size_t i = 0; !status && i < n; i++)
        kvd_from_f32(KVD_BF16, r.x + (n + i) * d, row + i * k->pitch + part->at, d);
    free(r.x);
    free(r.mass);
    return kvd_status(status);
}

/* Divides the number of bits of newly quantised K and V (w->near) equally among the tokens, and
 * adds the quotient to each token's number of bits (s->near). Counts only layers with a sliding
 * window. */
static void count_near(const kvd_host_codes *k, const kvd_host_written *w)
{
    kvd_host_slot *const s = w->slot;
    const size_t held = kvd_host_codes_first_held(k, KVD_LAYERS_NEAR, s->n);
    for (int side = 0; side < KVD_N_SIDES; side++) {
        const size_t from = s->coded[side] > held ? s->coded[side] : held, end = w->ready[side];
        for (size_t i = from; i < end; i++)
            s->near[i] += w->near[side] / (double)(end - from);
    }
}

int kvd_host_codes_quantise(const kvd_host_codes *k, kvd_host_written *w, size_t n, kvd_err *err)
{
    const size_t each = k->layers * k->rows.n_parts, tasks = n * each;
    task *const all = calloc(tasks, sizeof *all);
    int status = 0;
    if (!all)
        return kvd_no_memory(err, what, tasks * sizeof *all);
    const int saved = kvd_blas_serial();
#pragma omp parallel for schedule(dynamic)
    for (size_t i = 0; i < tasks; i++) {
        kvd_err mine;
        all[i] = task_of(k, &w[i / each], i % each);
        if (!code_part(k, &all[i], &mine))
            continue;
#pragma omp critical(kvd_host_codes)
        {
            *err = mine;
            status = -1;
        }
    }
    kvd_blas_restore(saved);
    for (size_t i = 0; i < tasks; i++) {
        kvd_host_written *const of = &w[i / each];
        *(kvd_host_codes_kind(k, i % each / k->rows.n_parts) == KVD_LAYERS_NEAR
              ? &of->near[k->part[i % each].side]
              : &of->slot->bits) += all[i].bits;
    }
    for (size_t i = 0; k->method->cache->window && i < n; i++)
        count_near(k, &w[i]);
    free(all);
    return status;
}
