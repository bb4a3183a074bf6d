#include "methods/sequence_cache.h"

#include <stdlib.h>
#include <string.h>

#include "common/threads.h"
#include "methods/head.h"
#include "model/pass/blocks.h"

typedef struct {
    float *x[KVD_N_SIDES];
    /* [tokens of the sequence][d_model] Inputs of the layer, or NULL if no method needs them. */
    float *input;
} kept_rows;

struct kvd_sequence_cache_slot {
    kvd_pool pool;
    /* n: tokens processed so far. whole: tokens of the whole sequence, or 0 if the slot is free. */
    size_t n, whole;
    kvd_head *head;
    kept_rows *rows;
    /* RoPE tables [tokens of the sequence][d_head / 2]: one for full-attention layers, then one for
     * sliding-window layers. */
    float *cosine, *sine;
};

void kvd_sequence_cache_end(kvd_sequence_cache *r, size_t slot)
{
    kvd_sequence_cache_slot *const s = &r->slots[slot];
    const size_t heads = (size_t)r->config->n_layers * (size_t)r->config->n_kv_heads;
    for (size_t i = 0; s->head && i < heads; i++)
        kvd_head_release(&s->head[i]);
    kvd_pool_free(&s->pool);
    *s = (kvd_sequence_cache_slot){0};
}

double kvd_sequence_cache_bits(const kvd_sequence_cache *r, size_t slot)
{
    const kvd_sequence_cache_slot *const s = &r->slots[slot];
    const size_t n = (size_t)r->config->n_layers * (size_t)r->config->n_kv_heads;
    double sum = 0;
    for (size_t i = 0; s->head && i < n; i++)
        sum += s->head[i].p ? s->head[i].held_payload + s->head[i].held_side +
                                  kvd_head_entry_bits(&s->head[i])
                            : 0;
    return sum;
}

static int begin(kvd_sequence_cache *r, kvd_sequence_cache_slot *s, size_t whole, kvd_err *err)
{
    const kvd_config *const c = r->config;
    const size_t layers = (size_t)c->n_layers, half = (size_t)c->d_head / 2;
    const size_t tables = c->rope_local_theta > 0 ? 2 : 1;
    const size_t table =
        r->hook.wants_pre && c->positions == KVD_POSITIONS_ROPE ? tables * whole * half : 0;
    s->whole = whole;
    s->head = kvd_pool_new(&s->pool, layers * (size_t)c->n_kv_heads * sizeof *s->head);
    s->rows = kvd_pool_new(&s->pool, layers * sizeof *s->rows);
    s->cosine = kvd_pool_new(&s->pool, table * sizeof *s->cosine);
    s->sine = kvd_pool_new(&s->pool, table * sizeof *s->sine);
    if (kvd_pool_check(&s->pool, "a running sequence", err))
        return -1;
    for (size_t i = 0; table && i < tables; i++)
        kvd_rope_tables(c, i, whole, whole, s->cosine + i * whole * half,
                        s->sine + i * whole * half);
    return 0;
}

static int begin_layer(kvd_sequence_cache *r, kvd_sequence_cache_slot *s,
                       const kvd_attention_in *in, size_t sequence, kvd_err *err)
{
    const kvd_plan *const p = kvd_plan_of_layer(r->plan, in->layer);
    const size_t n_kv = (size_t)in->config->n_kv_heads, wide = n_kv * (size_t)in->config->d_head;
    const size_t tables = r->hook.wants_pre && kvd_rope_local(in->config, in->layer)
                              ? s->whole * (size_t)in->config->d_head / 2
                              : 0;
    kept_rows *const rows = &s->rows[in->layer];
    for (int side = 0; p->bits && p->bits->all_heads && side < KVD_N_SIDES; side++)
        rows->x[side] = kvd_pool_new(&s->pool, s->whole * wide * sizeof(float));
    if (in->input)
        rows->input =
            kvd_pool_new(&s->pool, s->whole * (size_t)in->config->d_model * sizeof *rows->input);
    if (kvd_pool_check(&s->pool, "rows of a layer", err))
        return -1;
    for (size_t g = 0; g < n_kv; g++) {
        kvd_head *const h = &s->head[(size_t)in->layer * n_kv + g];
        const size_t prompt = in->offset[sequence + 1] - in->offset[sequence];
        *h = (kvd_head){.p = p,
                        .prompts = p->layers ? r->prompts : NULL,
                        .ranked = kvd_plan_ranker(p, NULL)
                                      ? kvd_prompts_levels(r->prompts, in->layer, (int)g, sequence)
                                      : NULL,
                        .sequence = sequence,
                        .n = s->whole,
                        .n0 = prompt,
                        .g = (int)g,
                        .room = prompt,
                        .step_room = 1,
                        .all_heads = {rows->x[KVD_KEYS], rows->x[KVD_VALUES]},
                        .input = rows->input,
                        .cosine = s->cosine + tables,
                        .sine = s->sine + tables};
        kvd_head_describe(h, in);
        if (kvd_head_allocate(h, err))
            return -1;
    }
    return 0;
}

static void keep_rows(kvd_sequence_cache_slot *s, const kvd_attention_in *in, size_t sequence)
{
    const size_t wide = (size_t)in->config->n_kv_heads * (size_t)in->config->d_head;
    const size_t first = in->offset[sequence], n = in->offset[sequence + 1] - first;
    const bool before_rope =
        s->head[(size_t)in->layer * (size_t)in->config->n_kv_heads].before_rope;
    const float *const from[KVD_N_SIDES] = {before_rope ? in->k_pre : in->k, in->v};
    for (int side = 0; side < KVD_N_SIDES; side++)
        if (s->rows[in->layer].x[side])
            memcpy(s->rows[in->layer].x[side] + in->start[sequence] * wide,
                   from[side] + first * wide, n * wide * sizeof(float));
    const size_t d_model = (size_t)in->config->d_model;
    float *const input = s->rows[in->layer].input;
    if (input)
        memcpy(input + in->start[sequence] * d_model, in->input + first * d_model,
               n * d_model * sizeof *input);
}

static kvd_sequence_cache_slot *slot_of(const kvd_sequence_cache *r, size_t sequence)
{
    return &r->slots[r->slot ? r->slot[sequence] : sequence];
}

/* If the new tokens begin at position 0, starts a sequence in the slot. Otherwise fails unless they
 * continue the slot's sequence. */
static int check(kvd_sequence_cache *r, const kvd_attention_in *in, size_t sequence, kvd_err *err)
{
    kvd_sequence_cache_slot *const s = slot_of(r, sequence);
    const size_t start = in->start[sequence], n = in->offset[sequence + 1] - in->offset[sequence];
    if (s->whole && start == 0 && in->layer == 0)
        return kvd_fail(err, "sequence %zu begins in a slot that another sequence uses",
                        in->first_sequence + sequence);
    if (in->layer == 0 && start != s->n)
        return kvd_fail(err, "sequence %zu continues at position %zu, the cache holds %zu rows",
                        in->first_sequence + sequence, start, s->n);
    if (n == 0 || start + n > in->whole[sequence] || (start == 0 && n == in->whole[sequence]))
        return kvd_fail(
            err,
            "sequence %zu: %zu rows from position %zu on do not fit its %zu rows, of which a "
            "prompt must leave one",
            in->first_sequence + sequence, n, start, in->whole[sequence]);
    if (start == 0 && in->layer == 0 && begin(r, s, in->whole[sequence], err))
        return -1;
    if (start == 0 && begin_layer(r, s, in, sequence, err))
        return -1;
    keep_rows(s, in, sequence);
    return 0;
}

/* Appends new tokens to KV heads g .. g + n - 1, and computes the attention of these heads.
 * account[i]: counters of head g + i. */
static int take(kvd_sequence_cache *r, const kvd_attention_in *in, size_t sequence, size_t g,
                size_t n, float *out, kvd_stepwise_account *account, kvd_err *err)
{
    kvd_head *const h =
        &slot_of(r, sequence)->head[(size_t)in->layer * (size_t)in->config->n_kv_heads + g];
    const size_t first = in->offset[sequence], start = in->start[sequence],
                 end = start + in->offset[sequence + 1] - first;
    int status = 0;
    for (size_t base = start; !status && base < end;) {
        const size_t to = base ? base + 1 : end;
        for (size_t i = 0; i < n; i++) {
            h[i].in = in;
            h[i].account = &account[i];
            h[i].base = base;
            h[i].first = first + base - start;
            h[i].end = to;
        }
        status = kvd_heads_take(h, n, out, err);
        base = to;
    }
    for (size_t i = 0; !start && i < n; i++)
        kvd_head_end_prompt(&h[i]);
    return status ? kvd_in(err, "layer %d, KV head %zu, sequence %zu", in->layer, g,
                           in->first_sequence + sequence)
                  : 0;
}

static int run(kvd_attention *self, const kvd_attention_in *in, float *out, kvd_err *err)
{
    kvd_sequence_cache *const r = (kvd_sequence_cache *)(void *)self;
    const size_t n_kv = (size_t)in->config->n_kv_heads;
    if (!in->start || !in->whole)
        return kvd_fail(err, "running sequences need `start` and `whole` of the batch");
    for (size_t s = 0; s < in->n_sequences; s++)
        if (check(r, in, s, err))
            return -1;
    const size_t heads = kvd_plan_heads_together(kvd_plan_of_layer(r->plan, in->layer)) ? n_kv : 1;
    kvd_stepwise_account *const account = calloc(in->n_sequences * n_kv, sizeof *account);
    if (!account)
        return kvd_no_memory(err, "accounts of heads", in->n_sequences * n_kv * sizeof *account);
    int status = 0;
    const int saved = kvd_blas_serial();
#pragma omp parallel for schedule(dynamic) collapse(2)
    for (size_t s = 0; s < in->n_sequences; s++)
        for (size_t g = 0; g < n_kv; g += heads) {
            kvd_err mine;
            if (!take(r, in, s, g, heads, out, &account[s * n_kv + g], &mine))
                continue;
#pragma omp critical(kvd_sequence_cache_step)
            {
                *err = mine;
                status = -1;
            }
        }
    for (size_t i = 0; i < in->n_sequences * n_kv; i++)
        kvd_stepwise_account_add(&r->account, &account[i]);
    free(account);
    kvd_blas_restore(saved);
    for (size_t s = 0; s < in->n_sequences && in->layer == in->config->n_layers - 1; s++)
        slot_of(r, s)->n = in->start[s] + in->offset[s + 1] - in->offset[s];
    return status ? -1 : 0;
}

int kvd_sequence_cache_init(kvd_sequence_cache *r, const kvd_config *config, const kvd_plan *plan,
                            size_t n_slots, kvd_err *err)
{
    *r =
        (kvd_sequence_cache){.hook = {.run = run,
                                      .wants_pre = (kvd_plan_needs(plan) & KVD_NEEDS_PRE_ROPE) != 0,
                                      .wants_input = (kvd_plan_needs(plan) & KVD_NEEDS_INPUT) != 0},
                             .plan = plan,
                             .config = config,
                             .n_slots = n_slots};
    if (plan->dims && kvd_dims_fits(plan->dims, config, err))
        return -1;
    if (!(r->slots = calloc(n_slots ? n_slots : 1, sizeof *r->slots)))
        return kvd_no_memory(err, "running sequences", n_slots * sizeof *r->slots);
    return 0;
}

void kvd_sequence_cache_release(kvd_sequence_cache *r)
{
    for (size_t s = 0; r->slots && s < r->n_slots; s++)
        kvd_sequence_cache_end(r, s);
    free(r->slots);
    *r = (kvd_sequence_cache){0};
}
