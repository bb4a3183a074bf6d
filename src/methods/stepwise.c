#include "methods/stepwise.h"

#include <assert.h>
#include <cblas.h>
#include <math.h>
#include <string.h>

#include "common/clock.h"
#include "methods/head.h"
#include "model/vector.h"

void kvd_stepwise_account_add(kvd_stepwise_account *sum, const kvd_stepwise_account *a)
{
    sum->rows += a->rows;
    sum->payload += a->payload;
    sum->side += a->side;
    sum->entries += a->entries;
    sum->dense += a->dense;
    sum->peak += a->peak; /* of heads side by side */
    sum->dropped += a->dropped;
    sum->lowered += a->lowered;
    sum->coded += a->coded;
    sum->merged += a->merged;
    sum->pruned += a->pruned;
    for (int i = 0; i < KVD_STEPWISE_PARTS; i++)
        sum->seconds[i] += a->seconds[i];
}

/* The time since the part before was this one's. */
static void part_done(kvd_head *h, kvd_stepwise_part part)
{
    const double at = kvd_clock_s();
    h->account->seconds[part] += at - h->last;
    h->last = at;
}

/* ---- the prompt --------------------------------------------------------------------------------- */

typedef struct {
    double *mass, *log_denominator, *score_mass, *below, *recent; /* recent [group][n0] */
    size_t window;
} statistics;

/* Probabilities of scores, and the logarithm of their denominator, of which *top is the largest score. */
KVD_CLONES static double exponentials(float *x, size_t n, float *top)
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
#pragma omp simd
    for (size_t i = 0; i < n; i++)
        x[i] = (float)((double)x[i] / sum);
    *top = most;
    return sum;
}

static void softmax(float *x, size_t n, double *log_sum)
{
    float top;
    assert(n > 0);
    const double sum = exponentials(x, n, &top);
    *log_sum = (double)top + log(sum);
}

/* Adds one row of scaled scores of keys from .. from+n-1, which become probabilities. */
static void add_row(kvd_head *h, const statistics *s, size_t j, size_t t, size_t from, float *score, size_t n)
{
    const kvd_tokens_method *m = h->p->tokens;
    double log_sum;
    if (m && m->regularise) {
        float *const r = h->score;
        const int q_head = h->g * (int)h->group + (int)j;
        for (size_t i = 0; i < n; i++)
            r[i] = (float)m->regularise(&h->p->tokens_values, h->p->seed, h->in->layer, q_head,
                                        (uint32_t)(from + i), (double)score[i], 0);
        softmax(r, n, &log_sum);
        for (size_t i = 0; i < n; i++)
            s->score_mass[from + i] += (double)r[i];
    }
    softmax(score, n, &log_sum);
    s->log_denominator[t] += log_sum / (double)h->group;
    for (size_t i = 0; i < n; i++)
        s->mass[from + i] += (double)score[i];
    for (size_t i = 0; i < n && t + s->window >= h->n0; i++) {
        s->recent[j * h->n0 + from + i] += (double)score[i];
        s->below[from + i] += (double)score[i] * (double)n < 1;
    }
}

/* Exact attention of the prompt's rows; statistics of it where the plan has use for them. */
static void attend_prompt(kvd_head *h, const statistics *s, float *out)
{
    const kvd_config *c = h->in->config;
    const size_t d = h->d, ldq = (size_t)c->n_heads * d, ldk = (size_t)c->n_kv_heads * d;
    for (size_t j = 0; j < h->group; j++)
        for (size_t first = 0; first < h->n0; first += KVD_ATTEND_ROWS) {
            const size_t rows = h->n0 - first < KVD_ATTEND_ROWS ? h->n0 - first : KVD_ATTEND_ROWS;
            const size_t from = kvd_head_seen_from(h, first), keys = first + rows - from;
            kvd_attend_rows(first, rows, h->in->window, d, d, kvd_head_query(h, j, first), ldq,
                            kvd_head_key(h, h->in->k, 0), ldk, kvd_head_key(h, h->in->v, 0), ldk, h->scale,
                            h->block, out + (h->first + first) * ldq + ((size_t)h->g * h->group + j) * d,
                            ldq);
            if (!s)
                continue;
            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (blasint)rows, (blasint)keys, (blasint)d,
                        h->scale, kvd_head_query(h, j, first), (blasint)ldq, kvd_head_key(h, h->in->k, from),
                        (blasint)ldk, 0.0f, h->block, (blasint)keys);
            for (size_t i = 0; i < rows; i++) {
                const size_t start = kvd_head_seen_from(h, first + i);
                add_row(h, s, j, first + i, start, h->block + i * keys + (start - from),
                        first + i + 1 - start);
            }
        }
}

/* The prompt's tokens become entries, some are dropped or lowered, and what is old enough is coded. */
static int compress_prompt(kvd_head *h, const statistics *s, kvd_err *err)
{
    for (size_t t = 0; t < h->n0; t++)
        kvd_head_append(h, t);
    part_done(h, KVD_STEPWISE_APPEND);
    for (int side = 0; h->prompts && side < KVD_N_SIDES; side++)
        if (kvd_prompts_merged(h->prompts, (kvd_side)side, h->in->layer, h->sequence))
            h->account->merged += h->n0;
    for (size_t t = 0; s && t < h->n0; t++) {
        h->mass[t] = s->mass[t];
        h->seen[t] = (double)((h->n0 - t) * h->group);
    }
    if (h->p->tokens && h->n0) {
        const kvd_prompt_attention attention = {
            .layer = h->in->layer,
            .kv_head = h->g,
            .group = (int)h->group,
            .n = h->n0,
            .n_expected = h->n,
            .mass = s->mass,
            .window = s->window,
            .recent = s->recent,
            .below = s->below,
            .log_denominator = s->log_denominator,
            .score_mass = s->score_mass,
            .k = h->in->k + ((h->first * (size_t)h->in->config->n_kv_heads) + (size_t)h->g) * h->d,
            .ld = (size_t)h->in->config->n_kv_heads * h->d,
            .ranked = h->ranked,
            .v = h->in->v + ((h->first * (size_t)h->in->config->n_kv_heads) + (size_t)h->g) * h->d};
        memset(h->decision, KVD_LEVEL_HIGH, h->n0);
        if (h->p->tokens->prompt(h->p->tokens_self, h->state, &attention, h->decision, err))
            return -1;
        for (size_t t = 0; h->p->levels && t < h->n0; t++)
            h->decision[t] = h->decision[t] < h->ranked[t] ? h->decision[t] : h->ranked[t];
        if (kvd_head_decide(h, err))
            return -1;
    }
    if (h->p->channels && h->n0 && (h->p->channels->project ? kvd_head_cut(h, err) : kvd_head_prune(h, err)))
        return -1;
    const kvd_bits_method *const bits = h->p->bits;
    if (bits && bits->balances && bits->balances(&h->p->bits_values) && h->n0)
        kvd_head_balance(h);
    return kvd_head_code_ready(h, true, err);
}

/* ---- steps ---------------------------------------------------------------------------------------- */

static void attend_step(kvd_head *h, size_t t)
{
    const size_t w_k = h->read, w_v = h->width[KVD_VALUES], from = kvd_head_seen_from(h, t),
                 at = t - kvd_head_step_base(h);
    const float *const keys = h->turned ? h->k_read : h->x[KVD_KEYS];
    size_t unseen = 0;
    while (h->position[unseen] < from)
        unseen++;
    const size_t seen = h->m - unseen;
    for (size_t j = 0; j < h->group; j++) {
        float *const score = h->score + j * h->m, *const prob = h->prob + j * h->m;
        const float *q = h->q_cut + (j * h->step_room + at) * w_k;
        float *o = h->o_cut + (j * h->step_room + at) * w_v;
        double log_sum;
        for (size_t i = 0; i < unseen; i++) {
            score[i] = -INFINITY;
            prob[i] = 0;
        }
        cblas_sgemv(CblasRowMajor, CblasNoTrans, (blasint)seen, (blasint)w_k, h->scale, keys + unseen * w_k,
                    (blasint)w_k, q, 1, 0.0f, score + unseen, 1);
        memcpy(prob + unseen, score + unseen, seen * sizeof *prob);
        softmax(prob + unseen, seen, &log_sum);
        cblas_sgemv(CblasRowMajor, CblasTrans, (blasint)seen, (blasint)w_v, 1.0f,
                    h->x[KVD_VALUES] + unseen * w_v, (blasint)w_v, prob + unseen, 1, 0.0f, o, 1);
        for (size_t i = 0; i < h->m; i++)
            h->mass[i] += (double)prob[i];
        for (size_t i = unseen; i < h->m; i++)
            h->seen[i] += 1;
    }
}

static int step(kvd_head *h, size_t t, kvd_err *err)
{
    const kvd_tokens_method *tokens = h->p->tokens;
    kvd_head_append(h, t);
    part_done(h, KVD_STEPWISE_APPEND);
    attend_step(h, t);
    part_done(h, KVD_STEPWISE_ATTEND);
    const double peak = h->held_payload + h->held_side;
    if (tokens && tokens->step) {
        const kvd_step_attention a = {.layer = h->in->layer,
                                      .kv_head = h->g,
                                      .group = (int)h->group,
                                      .n = h->m,
                                      .position = h->position,
                                      .prob = h->prob,
                                      .score = h->score,
                                      .now = t,
                                      .prompt = h->n0,
                                      .n_expected = h->n};
        memcpy(h->decision, h->level, h->m);
        if (tokens->step(h->p->tokens_self, h->state, &a, h->decision, err) || kvd_head_decide(h, err))
            return -1;
    }
    if (kvd_head_code_ready(h, false, err))
        return -1;
    part_done(h, KVD_STEPWISE_COMPRESS);
    kvd_stepwise_account *const a = h->account;
    a->rows++;
    a->payload += h->held_payload;
    a->side += h->held_side;
    a->entries += (double)h->m * kvd_plan_entry_bits(h->p);
    a->dense += (double)(t + 1) * 2 * (double)h->d * 8 * (double)kvd_dtype_bytes(h->p->type);
    a->peak = peak > a->peak ? peak : a->peak;
    return 0;
}

static void write_steps(kvd_head *h, float *out)
{
    const size_t from = kvd_head_step_base(h), steps = h->end > from ? h->end - from : 0;
    const size_t w = h->width[KVD_VALUES], ld = (size_t)h->in->config->n_heads * h->d;
    const float *const b_v = h->dims ? h->dims->b_v : NULL;
    for (size_t j = 0; steps && j < h->group; j++) {
        const float *const o = h->o_cut + j * h->step_room * w;
        float *const to = out + (h->first + from - h->base) * ld + ((size_t)h->g * h->group + j) * h->d;
        if (b_v)
            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (blasint)steps, (blasint)h->d, (blasint)w,
                        1.0f, o, (blasint)w, b_v, (blasint)h->d, 0.0f, to, (blasint)ld);
        else
            for (size_t i = 0; i < steps; i++)
                memcpy(to + i * ld, o + i * w, h->d * sizeof *to);
    }
}

static int take_prompt(kvd_head *h, float *out, kvd_err *err)
{
    const kvd_plan *const p = h->p;
    const bool wanted = p->tokens || (p->bits && p->bits->needs & KVD_NEEDS_PROBABILITIES);
    const statistics s = {.mass = h->statistics,
                          .log_denominator = h->statistics + h->n0,
                          .score_mass = h->statistics + 2 * h->n0,
                          .below = h->statistics + 3 * h->n0,
                          .recent = h->statistics + 4 * h->n0,
                          .window =
                              p->tokens && p->tokens->window ? p->tokens->window(&p->tokens_values) : 0};
    attend_prompt(h, wanted ? &s : NULL, out);
    part_done(h, KVD_STEPWISE_ATTEND);
    return compress_prompt(h, wanted ? &s : NULL, err);
}

int kvd_head_take(kvd_head *h, float *out, kvd_err *err)
{
    assert(h->base || h->end >= h->n0);
    h->last = kvd_clock_s();
    kvd_head_project_rows(h);
    part_done(h, KVD_STEPWISE_PROJECT);
    int status = h->base ? 0 : take_prompt(h, out, err);
    part_done(h, KVD_STEPWISE_COMPRESS);
    for (size_t t = kvd_head_step_base(h); !status && t < h->end; t++)
        status = step(h, t, err);
    if (!status)
        write_steps(h, out);
    part_done(h, KVD_STEPWISE_PROJECT);
    return status;
}

int kvd_stepwise_head(const kvd_plan *p, const kvd_prompts *prompts, const kvd_attention_in *in,
                      size_t sequence, int g, const float *cosine, const float *sine, float *out,
                      kvd_stepwise_account *account, kvd_err *err)
{
    const size_t first = in->offset[sequence], n = in->offset[sequence + 1] - first,
                 n0 = p->prompt < n ? p->prompt : n - 1;
    const size_t wide = (size_t)in->config->n_kv_heads * (size_t)in->config->d_head;
    kvd_stepwise_account mine = {0};
    const void *self;
    kvd_head h = {.p = p,
                  .prompts = p->layers ? prompts : NULL,
                  .ranked =
                      kvd_plan_ranker(p, &self) ? kvd_prompts_levels(prompts, in->layer, sequence) : NULL,
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
                  .account = &mine};
    assert(!in->start);
    kvd_head_describe(&h, in->config, in->layer);
    h.all_heads[KVD_KEYS] = (h.turned ? in->k_pre : in->k) + first * wide;
    h.all_heads[KVD_VALUES] = in->v + first * wide;
    const int status = kvd_head_allocate(&h, err) || kvd_head_take(&h, out, err);
    if (!status)
        kvd_stepwise_account_add(account, &mine);
    kvd_head_release(&h);
    return status ? kvd_in(err, "layer %d, KV head %d, sequence %zu", in->layer, g,
                           in->first_sequence + sequence)
                  : 0;
}
