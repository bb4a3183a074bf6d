#include <assert.h>
#include <cblas.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "methods/head.h"
#include "model/pass/blocks.h"
#include "model/pass/vector.h"

typedef struct {
    void **state;
    uint8_t **level;
    kvd_prompt_attention *prompt;
    kvd_step_attention *step;
} together;

static void part_done(kvd_head *h, kvd_stepwise_part part)
{
    const double at = kvd_clock_s();
    h->account->seconds[part] += at - h->last;
    h->last = at;
}

typedef struct {
    /* Arrays with one number for each of n0 prompt tokens:
     *
     * - mass: attention that the token received
     * - own: attention that the token gave itself
     * - log_denominator: log of its softmax denominator, averaged over query heads
     * - score_mass: attention received after noise is added to the logits (method keyformer)
     * - below: number of pairs (late query, query head) in which the token got less attention than
     *   the average token */
    double *mass, *own, *log_denominator, *score_mass, *below;
    /* [group][n0] For each query head: attention that each prompt token received from the last
     * `window` queries, summed over these queries. */
    double *recent;
    size_t window;
} statistics;

/* Replaces scores x [n] by their softmax. Returns the softmax denominator divided by exp(*top),
 * where *top is the largest score. */
KVD_CLONES static double exponentials(float *x, size_t n, const float *sink, float *top)
{
    float most = x[0];
    double sum = 0;
#pragma omp simd reduction(max : most)
    for (size_t i = 0; i < n; i++)
        most = x[i] > most ? x[i] : most;
#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < n; i++) {
        x[i] = kvd_expf(x[i] - most);
        sum += (double)x[i];
    }
    if (sink)
        sum += exp((double)*sink - (double)most);
#pragma omp simd
    for (size_t i = 0; i < n; i++)
        x[i] = (float)((double)x[i] / sum);
    *top = most;
    return sum;
}

static void softmax(float *x, size_t n, const float *sink, double *log_sum)
{
    float top;
    assert(n > 0);
    const double sum = exponentials(x, n, sink, &top);
    *log_sum = (double)top + log(sum);
}

static kvd_scores scores_of(const kvd_head *h, size_t j)
{
    return kvd_attention_scores(h->in, (size_t)h->g * h->group + j);
}

static const float *sink_of(const kvd_head *h, size_t j)
{
    return scores_of(h, j).sink;
}

/* Turns a query's scores into attention probabilities, and adds these to the statistics of the
 * prompt's tokens. */
static void add_row(kvd_head *h, const statistics *s, size_t j, size_t t, size_t from, float *score,
                    size_t n)
{
    const kvd_tokens_method *m = h->tokens;
    double log_sum;
    if (m && m->regularise) {
        float *const r = h->score;
        const int q_head = h->g * (int)h->group + (int)j;
        for (size_t i = 0; i < n; i++)
            r[i] = (float)m->regularise(&h->p->tokens_values, h->p->seed, h->in->layer, q_head,
                                        (uint32_t)(from + i), (double)score[i], 0);
        softmax(r, n, NULL, &log_sum);
        for (size_t i = 0; i < n; i++)
            s->score_mass[from + i] += (double)r[i];
    }
    softmax(score, n, sink_of(h, j), &log_sum);
    s->log_denominator[t] += log_sum / (double)h->group;
    for (size_t i = 0; i < n; i++)
        s->mass[from + i] += (double)score[i];
    s->own[t] += (double)score[n - 1];
    for (size_t i = 0; i < n && t + s->window >= h->n0; i++) {
        s->recent[j * h->n0 + from + i] += (double)score[i];
        s->below[from + i] += (double)score[i] * (double)n < 1;
    }
}

static void attend_prompt(kvd_head *h, const statistics *s, float *out)
{
    const kvd_config *c = h->in->config;
    const float scale = h->scoring.softcap > 0 ? 1.0f : h->scoring.scale;
    const size_t d = h->d, ldq = (size_t)c->n_heads * d, ldk = (size_t)c->n_kv_heads * d;
    for (size_t j = 0; j < h->group; j++)
        for (size_t first = 0; first < h->n0; first += KVD_ATTEND_ROWS) {
            const size_t rows = h->n0 - first < KVD_ATTEND_ROWS ? h->n0 - first : KVD_ATTEND_ROWS;
            const size_t from = kvd_head_seen_from(h, first), keys = first + rows - from;
            kvd_attend_rows(first, rows, h->in->window, d, d, kvd_head_query(h, j, first), ldq,
                            kvd_head_key(h, h->in->k, 0), ldk, kvd_head_key(h, h->in->v, 0), ldk,
                            scores_of(h, j), h->block,
                            out + (h->first + first) * ldq + ((size_t)h->g * h->group + j) * d,
                            ldq);
            if (!s)
                continue;
            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (blasint)rows, (blasint)keys,
                        (blasint)d, scale, kvd_head_query(h, j, first), (blasint)ldq,
                        kvd_head_key(h, h->in->k, from), (blasint)ldk, 0.0f, h->block,
                        (blasint)keys);
            if (h->scoring.softcap > 0)
                kvd_softcap(h->block, rows * keys, h->scoring.scale, h->scoring.softcap);
            for (size_t i = 0; i < rows; i++) {
                const size_t start = kvd_head_seen_from(h, first + i);
                add_row(h, s, j, first + i, start, h->block + i * keys + (start - from),
                        first + i + 1 - start);
            }
        }
}

static statistics statistics_of(const kvd_head *h)
{
    const kvd_tokens_method *const m = h->tokens;
    return (statistics){.mass = h->statistics,
                        .log_denominator = h->statistics + h->n0,
                        .score_mass = h->statistics + 2 * h->n0,
                        .below = h->statistics + 3 * h->n0,
                        .own = h->statistics + 4 * h->n0,
                        .recent = h->statistics + 5 * h->n0,
                        .window = m && m->window ? m->window(&h->p->tokens_values) : 0};
}

/* Appends the prompt's tokens to the cache, except tokens outside the layer's sliding window. `s`
 * may be NULL. */
static void append_prompt(kvd_head *h, const statistics *s)
{
    const size_t seen = h->n0 ? kvd_head_seen_from(h, h->n0 - 1) : 0, window = h->in->window,
                 from = seen / h->leaving * h->leaving;
    for (size_t t = from; t < h->n0; t++)
        kvd_head_append(h, t);
    for (int side = 0; h->prompts && side < KVD_N_SIDES; side++)
        if (kvd_prompts_merged(h->prompts, (kvd_side)side, h->in->layer, h->sequence))
            h->account->merged += h->m;
    for (size_t i = 0; s && i < h->m; i++) {
        const size_t rows = h->n0 - from - i;
        h->mass[i] = s->mass[from + i];
        h->seen[i] = (double)((window && window < rows ? window : rows) * h->group);
    }
}

static kvd_prompt_attention attention_of_prompt(const kvd_head *h)
{
    const statistics s = statistics_of(h);
    return (kvd_prompt_attention){.layer = h->in->layer,
                                  .kv_head = h->g,
                                  .group = (int)h->group,
                                  .n = h->n0,
                                  .n_expected = h->n,
                                  .mass = s.mass,
                                  .own = s.own,
                                  .window = s.window,
                                  .recent = s.recent,
                                  .below = s.below,
                                  .log_denominator = s.log_denominator,
                                  .score_mass = s.score_mass,
                                  .d = h->d,
                                  .k = kvd_head_key(h, h->in->k, 0),
                                  .v = kvd_head_key(h, h->in->v, 0),
                                  .ld = (size_t)h->in->config->n_kv_heads * h->d,
                                  .q = kvd_head_query(h, 0, 0),
                                  .ldq = (size_t)h->in->config->n_heads * h->d,
                                  .ranked = h->ranked,
                                  .sinks =
                                      h->in->sinks ? h->in->sinks + (size_t)h->g * h->group : NULL};
}

static int decide_prompt(kvd_head *h, size_t n, const together *all, kvd_err *err)
{
    const kvd_tokens_method *const m = h->p->tokens;
    const void *const self = h->p->tokens_self;
    for (size_t i = 0; i < n; i++) {
        memset(h[i].decision, KVD_LEVEL_HIGH, h[i].n0);
        const kvd_prompt_attention a = attention_of_prompt(&h[i]);
        if (all && m->prompt_heads)
            all->prompt[i] = a;
        else if (m->prompt(self, h[i].state, &a, h[i].decision, err))
            return -1;
    }
    if (all && m->prompt_heads &&
        m->prompt_heads(self, all->state, all->prompt, n, all->level, err))
        return -1;
    for (size_t i = 0; i < n; i++) {
        for (size_t t = 0; h[i].p->levels && t < h[i].n0; t++)
            h[i].decision[t] =
                h[i].decision[t] < h[i].ranked[t] ? h[i].decision[t] : h[i].ranked[t];
        if (kvd_head_decide(&h[i], true, err))
            return -1;
    }
    return 0;
}

static int shorten_prompt(kvd_head *h, kvd_err *err)
{
    if (h->p->channels && h->n0 &&
        (h->p->channels->prune ? kvd_head_prune(h, err) : kvd_head_cut(h, err)))
        return -1;
    const kvd_bits_method *const bits = h->p->bits;
    /* False if this layer's sliding window turns off the compression method that chooses important
     * tokens. */
    const bool lowers = h->tokens || !h->p->tokens;
    if (bits && bits->balances && bits->balances(&h->p->bits_values) && h->n0 && lowers)
        kvd_head_balance(h);
    return kvd_head_code_ready(h, true, err);
}

static int take_prompt(kvd_head *h, size_t n, const together *all, float *out, kvd_err *err)
{
    const kvd_plan *const p = h->p;
    const bool wanted =
        ((h->tokens ? h->tokens->info.needs : 0) | (p->bits ? p->bits->info.needs : 0)) &
        KVD_NEEDS_PROBABILITIES;
    for (size_t i = 0; i < n; i++) {
        const statistics s = statistics_of(&h[i]);
        attend_prompt(&h[i], wanted ? &s : NULL, out);
        part_done(h, KVD_STEPWISE_ATTEND);
        append_prompt(&h[i], wanted ? &s : NULL);
        part_done(h, KVD_STEPWISE_APPEND);
    }
    if (h->tokens && (h->tokens->prompt || h->tokens->prompt_heads) && h->n0 &&
        decide_prompt(h, n, all, err))
        return -1;
    for (size_t i = 0; i < n; i++)
        if ((h[i].tokens && h[i].tokens->rebuild && h[i].n0 && kvd_head_rebuild(&h[i], err)) ||
            shorten_prompt(&h[i], err))
            return -1;
    return 0;
}

/* Chooses the cached tokens that the query at position t reads. The first `unseen` cached tokens
 * are outside its attention window. */
static int choose_read(kvd_head *h, size_t t, size_t unseen, kvd_err *err)
{
    const kvd_tokens_method *const m = h->tokens;
    uint8_t *const read = h->decision;
    memset(read, 0, unseen);
    memset(read + unseen, 1, h->m - unseen);
    if (m && m->select) {
        const float *const keys = h->before_rope ? h->k_read : h->x[KVD_KEYS];
        const kvd_read_choice c = {.layer = h->in->layer,
                                   .kv_head = h->g,
                                   .group = (int)h->group,
                                   .n = h->m - unseen,
                                   .d = h->read,
                                   .position = h->position + unseen,
                                   .k = keys + unseen * h->read,
                                   .q = h->q_cut + (t - kvd_head_step_base(h)) * h->read,
                                   .ldq = h->step_room * h->read,
                                   .type = h->p->type};
        if (m->select(h->p->tokens_self, h->state, &c, read + unseen, err))
            return -1;
    }
    h->account->read += h->held_payload + h->held_side + kvd_head_entry_bits(h);
    for (size_t i = 0; i < h->m; i++) {
        if (read[i])
            continue;
        h->account->unread += i >= unseen;
        for (int side = 0; side < KVD_N_SIDES; side++)
            h->account->read -= h->payload[side][i] + h->side[side][i];
    }
    return 0;
}

static int attend_step(kvd_head *h, size_t t, kvd_err *err)
{
    const size_t w_k = h->read, w_v = h->width[KVD_VALUES], from = kvd_head_seen_from(h, t),
                 at = t - kvd_head_step_base(h);
    const float *const keys = h->before_rope ? h->k_read : h->x[KVD_KEYS];
    size_t unseen = 0;
    while (h->position[unseen] < from)
        unseen++;
    const size_t seen = h->m - unseen;
    if (choose_read(h, t, unseen, err))
        return -1;
    for (size_t j = 0; j < h->group; j++) {
        float *const score = h->score + j * h->m, *const prob = h->prob + j * h->m;
        const float *q = h->q_cut + (j * h->step_room + at) * w_k;
        float *o = h->o_cut + (j * h->step_room + at) * w_v;
        double log_sum;
        for (size_t i = 0; i < unseen; i++) {
            score[i] = -INFINITY;
            prob[i] = 0;
        }
        cblas_sgemv(CblasRowMajor, CblasNoTrans, (blasint)seen, (blasint)w_k,
                    h->scoring.softcap > 0 ? 1.0f : h->scoring.scale, keys + unseen * w_k,
                    (blasint)w_k, q, 1, 0.0f, score + unseen, 1);
        if (h->scoring.softcap > 0)
            kvd_softcap(score + unseen, seen, h->scoring.scale, h->scoring.softcap);
        for (size_t i = unseen; i < h->m; i++)
            prob[i] = score[i] = h->decision[i] ? score[i] : -INFINITY;
        softmax(prob + unseen, seen, sink_of(h, j), &log_sum);
        cblas_sgemv(CblasRowMajor, CblasTrans, (blasint)seen, (blasint)w_v, 1.0f,
                    h->x[KVD_VALUES] + unseen * w_v, (blasint)w_v, prob + unseen, 1, 0.0f, o, 1);
        for (size_t i = 0; i < h->m; i++)
            h->mass[i] += (double)prob[i];
        for (size_t i = unseen; i < h->m; i++)
            h->seen[i] += 1;
    }
    return 0;
}

static int decide_step(kvd_head *h, size_t n, const together *all, size_t t, kvd_err *err)
{
    const kvd_tokens_method *const m = h->p->tokens;
    const void *const self = h->p->tokens_self;
    for (size_t i = 0; i < n; i++) {
        const kvd_step_attention a = {.layer = h[i].in->layer,
                                      .kv_head = h[i].g,
                                      .group = (int)h[i].group,
                                      .n = h[i].m,
                                      .position = h[i].position,
                                      .prob = h[i].prob,
                                      .score = h[i].score,
                                      .now = t,
                                      .prompt = h[i].n0,
                                      .n_expected = h[i].n};
        memcpy(h[i].decision, h[i].level, h[i].m);
        if (m->step_heads)
            all->step[i] = a;
        else if (m->step(self, h[i].state, &a, h[i].decision, err))
            return -1;
    }
    if (m->step_heads && m->step_heads(self, all->state, all->step, n, all->level, err))
        return -1;
    for (size_t i = 0; i < n; i++)
        if (kvd_head_decide(&h[i], m->merges_steps, err))
            return -1;
    return 0;
}

static void count_step(kvd_head *h, size_t t)
{
    kvd_stepwise_account *const a = h->account;
    a->rows++;
    a->payload += h->held_payload;
    a->side += h->held_side;
    a->entries += kvd_head_entry_bits(h);
    const kvd_config *const c = h->in->config;
    a->dense += (double)(t + 1 - kvd_head_seen_from(h, t)) * (double)kvd_config_cached(c) /
                c->n_kv_heads * 8 * (double)kvd_dtype_bytes(h->p->type);
}

static int step(kvd_head *h, size_t n, const together *all, size_t t, kvd_err *err)
{
    const kvd_tokens_method *const tokens = h->tokens;
    for (size_t i = 0; i < n; i++) {
        kvd_head_append(&h[i], t);
        kvd_head_leave(&h[i], t);
        part_done(h, KVD_STEPWISE_APPEND);
        if (attend_step(&h[i], t, err))
            return -1;
        part_done(h, KVD_STEPWISE_ATTEND);
        const double held = h[i].held_payload + h[i].held_side;
        h[i].account->peak = held > h[i].account->peak ? held : h[i].account->peak;
    }
    if (tokens && (tokens->step || tokens->step_heads) && decide_step(h, n, all, t, err))
        return -1;
    for (size_t i = 0; i < n; i++) {
        if (kvd_head_code_ready(&h[i], false, err))
            return -1;
        count_step(&h[i], t);
    }
    part_done(h, KVD_STEPWISE_COMPRESS);
    return 0;
}

static void write_steps(kvd_head *h, float *out)
{
    const size_t from = kvd_head_step_base(h), steps = h->end > from ? h->end - from : 0;
    const size_t w = h->width[KVD_VALUES], ld = (size_t)h->in->config->n_heads * h->d;
    const float *const b_v = h->dims ? h->dims->b_v : NULL;
    for (size_t j = 0; steps && j < h->group; j++) {
        const float *const o = h->o_cut + j * h->step_room * w;
        float *const to =
            out + (h->first + from - h->base) * ld + ((size_t)h->g * h->group + j) * h->d;
        if (b_v)
            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (blasint)steps, (blasint)h->d,
                        (blasint)w, 1.0f, o, (blasint)w, b_v, (blasint)h->d, 0.0f, to, (blasint)ld);
        else
            for (size_t i = 0; i < steps; i++)
                memcpy(to + i * ld, o + i * w, h->d * sizeof *to);
    }
}

static int take(kvd_head *h, size_t n, const together *all, float *out, kvd_err *err)
{
    h->last = kvd_clock_s();
    for (size_t i = 0; i < n; i++) {
        assert(h[i].base || h[i].end >= h[i].n0);
        kvd_head_project_rows(&h[i]);
    }
    part_done(h, KVD_STEPWISE_PROJECT);
    int status = h->base ? 0 : take_prompt(h, n, all, out, err);
    part_done(h, KVD_STEPWISE_COMPRESS);
    for (size_t t = kvd_head_step_base(h); !status && t < h->end; t++)
        status = step(h, n, all, t, err);
    for (size_t i = 0; !status && i < n; i++)
        write_steps(&h[i], out);
    part_done(h, KVD_STEPWISE_PROJECT);
    return status;
}

int kvd_heads_take(kvd_head *h, size_t n, float *out, kvd_err *err)
{
    if (!kvd_plan_heads_together(h->p))
        return take(h, n, NULL, out, err);
    kvd_pool pool = {0};
    const together all = {.state = kvd_pool_new(&pool, n * sizeof *all.state),
                          .level = kvd_pool_new(&pool, n * sizeof *all.level),
                          .prompt = kvd_pool_new(&pool, n * sizeof *all.prompt),
                          .step = kvd_pool_new(&pool, n * sizeof *all.step)};
    int status = kvd_pool_check(&pool, "heads of a layer", err);
    for (size_t i = 0; !status && i < n; i++) {
        all.state[i] = h[i].state;
        all.level[i] = h[i].decision;
    }
    status = status || take(h, n, &all, out, err);
    kvd_pool_free(&pool);
    return status ? -1 : 0;
}

static int begin_head(kvd_head *h, const kvd_plan *p, const kvd_prompts *prompts,
                      const kvd_attention_in *in, size_t sequence, int g, const float *cosine,
                      const float *sine, kvd_stepwise_account *account, kvd_err *err)
{
    const size_t first = in->offset[sequence], n = in->offset[sequence + 1] - first,
                 n0 = p->prompt < n ? p->prompt : n - 1;
    const size_t wide = (size_t)in->config->n_kv_heads * (size_t)in->config->d_head;
    *h = (kvd_head){.p = p,
                    .prompts = p->layers ? prompts : NULL,
                    .ranked = kvd_plan_ranker(p, NULL)
                                  ? kvd_prompts_levels(prompts, in->layer, g, sequence)
                                  : NULL,
                    .sequence = sequence,
                    .n = n,
                    .n0 = n0,
                    .g = g,
                    .in = in,
                    .first = first,
                    .end = n,
                    .room = n,
                    .step_room = n - n0,
                    .cosine = cosine,
                    .sine = sine,
                    .account = account};
    kvd_head_describe(h, in);
    h->all_heads[KVD_KEYS] = (h->before_rope ? in->k_pre : in->k) + first * wide;
    h->all_heads[KVD_VALUES] = in->v + first * wide;
    h->input = in->input ? in->input + first * (size_t)in->config->d_model : NULL;
    return kvd_head_allocate(h, err);
}

int kvd_stepwise_heads(const kvd_plan *p, const kvd_prompts *prompts, const kvd_attention_in *in,
                       size_t sequence, int g, size_t n, const float *cosine, const float *sine,
                       float *out, kvd_stepwise_account *account, kvd_err *err)
{
    kvd_head *const h = calloc(n, sizeof *h);
    kvd_stepwise_account *const mine = calloc(n, sizeof *mine);
    int status = h && mine ? 0 : kvd_no_memory(err, "KV heads", n * sizeof *h);
    assert(!in->start);
    for (size_t i = 0; !status && i < n; i++)
        status =
            begin_head(&h[i], p, prompts, in, sequence, g + (int)i, cosine, sine, &mine[i], err);
    status = status || kvd_heads_take(h, n, out, err);
    for (size_t i = 0; !status && i < n; i++)
        kvd_stepwise_account_add(account, &mine[i]);
    for (size_t i = 0; h && i < n; i++)
        kvd_head_release(&h[i]);
    free(mine);
    free(h);
    return status ? kvd_in(err,
                           n > 1 ? "layer %d, KV heads from %d, sequence %zu"
                                 : "layer %d, KV head %d, sequence %zu",
                           in->layer, g, in->first_sequence + sequence)
                  : 0;
}
