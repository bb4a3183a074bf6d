#include "methods/prompts.h"

#include <cblas.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/threads.h"
#include "model/pass/blocks.h"

static size_t width_of(const kvd_prompts *p)
{
    return (size_t)p->config->n_kv_heads * (size_t)p->config->d_head;
}

static float *rows_of(const kvd_prompts *p, int side, int layer, size_t sequence)
{
    return p->x[side] +
           ((size_t)layer * p->offset[p->n_sequences] + p->offset[sequence]) * width_of(p);
}

/* Returns true unless the layer has a sliding window shorter than the sequence. */
static bool chooses(const kvd_prompts *p, int layer, size_t sequence)
{
    const size_t window = kvd_config_window(p->config, layer);
    return !window || window >= p->whole[sequence];
}

/* Returns how many of the layers 0 .. layer - 1 have no sliding window shorter than the
 * sequence. */
static int chosen_before(const kvd_prompts *p, int layer, size_t sequence)
{
    int n = 0;
    for (int l = 0; l < layer; l++)
        n += chooses(p, l, sequence);
    return n;
}

static double log_add(double a, double b)
{
    const double top = a > b ? a : b;
    return isinf(top) ? top : top + log1p(exp((a > b ? b : a) - top));
}

static double log_sum(const float *score, size_t n)
{
    double top = (double)score[0];
    for (size_t i = 1; i < n; i++)
        top = (double)score[i] > top ? (double)score[i] : top;
    double sum = exp((double)score[0] - top);
    for (size_t i = 1; i < n; i++)
        sum += exp((double)score[i] - top);
    return top + log(sum);
}

/* Adds the softmax denominators of `rows` queries of one head to sum [rows]; the elements of `sum`
 * are logs. The prompt begins at token `at` of the batch. */
static void add_denominators(const kvd_attention_in *in, size_t at, size_t first, size_t rows,
                             size_t head, float *block, double *sum)
{
    const kvd_config *const c = in->config;
    const size_t d = (size_t)c->d_head, ldq = (size_t)c->n_heads * d,
                 ldk = (size_t)c->n_kv_heads * d;
    const size_t g = head / (size_t)(c->n_heads / c->n_kv_heads), keys = first + rows;
    const kvd_scores score = kvd_attention_scores(in, head);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (blasint)rows, (blasint)keys, (blasint)d,
                score.softcap > 0 ? 1.0f : score.scale, in->q + (at + first) * ldq + head * d,
                (blasint)ldq, in->k + at * ldk + g * d, (blasint)ldk, 0.0f, block, (blasint)keys);
    if (score.softcap > 0)
        kvd_softcap(block, rows * keys, score.scale, score.softcap);
    for (size_t i = 0; i < rows; i++) {
        const size_t t = first + i,
                     from = in->window && t + 1 > in->window ? t + 1 - in->window : 0;
        sum[i] = log_add(sum[i], log_sum(block + i * keys + from, t + 1 - from));
        if (score.sink)
            sum[i] = log_add(sum[i], (double)*score.sink);
    }
}

static int record_denominators(kvd_prompts *p, const kvd_attention_in *in, kvd_err *err)
{
    const size_t n_heads = (size_t)in->config->n_heads;
    size_t longest = 0;
    for (size_t s = 0; s < p->n_sequences; s++)
        longest =
            p->offset[s + 1] - p->offset[s] > longest ? p->offset[s + 1] - p->offset[s] : longest;
    float *const blocks =
        malloc((kvd_thread_count() * KVD_ATTEND_ROWS * longest + 1) * sizeof *blocks);
    if (!blocks)
        return kvd_no_memory(err, "scores of prompts", KVD_ATTEND_ROWS * longest * sizeof *blocks);
    const int saved = kvd_blas_serial();
    for (size_t s = 0; s < p->n_sequences; s++) {
        const size_t at = p->offset[s], n = p->offset[s + 1] - at,
                     index = (size_t)chosen_before(p, in->layer, s);
        double *const sum = p->log_denominator + (size_t)p->config->n_layers * at + index * n;
        if (!chooses(p, in->layer, s))
            continue;
#pragma omp parallel for schedule(dynamic)
        for (size_t first = 0; first < n; first += KVD_ATTEND_ROWS) {
            const size_t rows = n - first < KVD_ATTEND_ROWS ? n - first : KVD_ATTEND_ROWS;
            for (size_t i = 0; i < rows; i++)
                sum[first + i] = -INFINITY;
            for (size_t head = 0; head < n_heads; head++)
                add_denominators(in, at, first, rows, head,
                                 blocks + kvd_thread_index() * KVD_ATTEND_ROWS * longest,
                                 sum + first);
        }
    }
    kvd_blas_restore(saved);
    free(blocks);
    return 0;
}

bool kvd_prompts_repeated(const kvd_prompts *p)
{
    return kvd_plan_copies(p->plan) > 1;
}

static int observe(kvd_prompts *p, const kvd_attention_in *in, kvd_err *err)
{
    const void *self;
    const kvd_tokens_method *const m = kvd_plan_ranker(p->plan, &self);
    const size_t wide_q = (size_t)p->config->n_heads * (size_t)p->config->d_head,
                 times = kvd_plan_copies(p->plan);
    int status = 0;
    const int saved = kvd_blas_serial();
#pragma omp parallel for schedule(dynamic)
    for (size_t s = 0; s < p->n_sequences; s++) {
        const size_t n = p->offset[s + 1] - p->offset[s];
        const kvd_observed_prompt rows = {.layer = chosen_before(p, in->layer, s),
                                          .n = n,
                                          .q = in->q + times * p->offset[s] * wide_q,
                                          .k = in->k + times * p->offset[s] * width_of(p),
                                          .window = in->window,
                                          .sinks = in->sinks};
        kvd_err mine;
        if (!n || !chooses(p, in->layer, s) ||
            !m->observe(self, &rows,
                        p->observed + p->observed_at[s] + (size_t)rows.layer * m->observed(self, n),
                        &mine))
            continue;
#pragma omp critical(kvd_prompts_observe)
        {
            *err = mine;
            status = -1;
        }
    }
    kvd_blas_restore(saved);
    return status;
}

static int record(kvd_attention *self, const kvd_attention_in *in, float *out, kvd_err *err)
{
    kvd_prompts *const p = (kvd_prompts *)(void *)self;
    const size_t n = in->n_tokens * width_of(p) * sizeof(float);
    const size_t rows = p->offset[p->n_sequences] * (kvd_prompts_repeated(p) ? 2 : 1);
    if (in->n_tokens != rows)
        return kvd_fail(err, "prompts of %zu rows, made for %zu", in->n_tokens, rows);
    if (p->plan->layers) {
        memcpy(rows_of(p, KVD_KEYS, in->layer, 0),
               p->plan->layers->keys_before_rope ? in->k_pre : in->k, n);
        memcpy(rows_of(p, KVD_VALUES, in->layer, 0), in->v, n);
    }
    if ((p->log_denominator && record_denominators(p, in, err)) ||
        (p->observed && observe(p, in, err)))
        return -1;
    return p->dense.hook.run(&p->dense.hook, in, out, err);
}

static int init_ranks(kvd_prompts *p, kvd_err *err)
{
    const void *self;
    const kvd_tokens_method *const m = kvd_plan_ranker(p->plan, &self);
    const size_t layers = (size_t)p->config->n_layers;
    size_t rows = layers * p->offset[p->n_sequences] + 1;
    if (m && m->observe) {
        p->observed_at = kvd_pool_new(&p->pool, (p->n_sequences + 1) * sizeof *p->observed_at);
        if (kvd_pool_check(&p->pool, "prompts", err))
            return -1;
        for (size_t s = 0; s < p->n_sequences; s++)
            p->observed_at[s + 1] =
                p->observed_at[s] + layers * m->observed(self, p->offset[s + 1] - p->offset[s]);
        p->observed = kvd_pool_new(&p->pool, p->observed_at[p->n_sequences] * sizeof *p->observed);
        rows *= (size_t)p->config->n_kv_heads;
    } else if (m) {
        p->log_denominator = kvd_pool_new(&p->pool, rows * sizeof *p->log_denominator);
    }
    if (m)
        p->level = kvd_pool_new(&p->pool, rows);
    return kvd_pool_check(&p->pool, "scores of prompts", err);
}

int kvd_prompts_init(kvd_prompts *p, const kvd_config *c, const kvd_plan *plan,
                     const size_t *length, const size_t *whole, size_t n_sequences, kvd_err *err)
{
    memset(p, 0, sizeof *p);
    p->hook.run = record;
    p->hook.wants_pre = plan->layers && plan->layers->keys_before_rope;
    kvd_dense_attention_init(&p->dense);
    p->config = c;
    p->plan = plan;
    p->n_sequences = n_sequences;
    p->offset = kvd_pool_new(&p->pool, (n_sequences + 1) * sizeof *p->offset);
    p->whole = kvd_pool_new(&p->pool, n_sequences * sizeof *p->whole);
    if (kvd_pool_check(&p->pool, "prompts", err))
        return -1;
    for (size_t s = 0; s < n_sequences; s++) {
        p->offset[s + 1] = p->offset[s] + length[s];
        p->whole[s] = whole[s];
    }
    const size_t shares = (size_t)c->n_layers * n_sequences;
    const size_t n = (size_t)c->n_layers * p->offset[n_sequences] * width_of(p);
    if (init_ranks(p, err))
        return -1;
    for (int side = 0; plan->layers && side < KVD_N_SIDES; side++) {
        p->x[side] = kvd_pool_new(&p->pool, n * sizeof *p->x[side]);
        p->share[side] = kvd_pool_new(&p->pool, shares * sizeof *p->share[side]);
        if (kvd_pool_check(&p->pool, "keys and values of prompts", err))
            return -1;
        for (size_t i = 0; i < shares; i++)
            p->share[side][i] = NAN;
    }
    return 0;
}

void kvd_prompts_release(kvd_prompts *p)
{
    kvd_pool_free(&p->pool);
    kvd_dense_attention_release(&p->dense);
    memset(p, 0, sizeof *p);
}

static int merge_group(kvd_prompts *p, int side, int layer, int n_layers, size_t s, kvd_err *err)
{
    float *x[KVD_CONFIG_WINDOW_LAYERS];
    const size_t n = p->offset[s + 1] - p->offset[s];
    const double bits = 8.0 * (double)kvd_dtype_bytes(p->plan->type);
    kvd_layers_count count = {0, 0};
    for (int l = 0; l < n_layers; l++)
        x[l] = rows_of(p, side, layer + l, s);
    const kvd_layers_block b = {.side = (kvd_side)side,
                                .first_layer = layer,
                                .n_layers = n_layers,
                                .n = n,
                                .heads = (size_t)p->config->n_kv_heads,
                                .d = (size_t)p->config->d_head,
                                .x = x};
    if (p->plan->layers->merge(&p->plan->layers_values, &b, &count, err))
        return kvd_in(err, "layers %d to %d, sequence %zu of the batch", layer,
                      layer + n_layers - 1, s);
    const double whole = (double)n_layers * (double)n * (double)width_of(p) * bits;
    for (int l = 0; l < n_layers; l++)
        p->share[side][(size_t)(layer + l) * p->n_sequences + s] =
            (count.numbers * bits + count.bits) / whole;
    return 0;
}

static int apply_rope(kvd_prompts *p, const size_t *whole, size_t s, kvd_err *err)
{
    const size_t n = p->offset[s + 1] - p->offset[s], half = (size_t)p->config->d_head / 2,
                 tables = p->config->rope_local_theta > 0 ? 2 : 1, size = n * half;
    kvd_pool pool = {0};
    float *const cosine = kvd_pool_new(&pool, tables * size * sizeof *cosine),
                 *const sine = kvd_pool_new(&pool, tables * size * sizeof *sine);
    uint32_t *const position = kvd_pool_new(&pool, n * sizeof *position);
    if (kvd_pool_check(&pool, "a rope table", err)) {
        kvd_pool_free(&pool);
        return -1;
    }
    for (size_t i = 0; i < tables; i++)
        kvd_rope_tables(p->config, i, whole[s], n, cosine + i * size, sine + i * size);
    for (size_t t = 0; t < n; t++)
        position[t] = (uint32_t)t;
    for (int l = 0; l < p->config->n_layers; l++) {
        const size_t at = kvd_rope_local(p->config, l) ? size : 0;
        kvd_rope_apply(p->config, cosine + at, sine + at, position, n,
                       (size_t)p->config->n_kv_heads, rows_of(p, KVD_KEYS, l, s));
    }
    kvd_pool_free(&pool);
    return 0;
}

static int merge(kvd_prompts *p, const size_t *whole, kvd_err *err)
{
    const kvd_layers_method *const m = p->plan->layers;
    for (size_t s = 0; s < p->n_sequences; s++) {
        if (p->offset[s + 1] == p->offset[s])
            continue;
        for (int l = 0, n; l < p->config->n_layers; l += n) {
            n = m->group(&p->plan->layers_values, p->config, l);
            const bool shared = n > 1 && kvd_plan_of_layer(p->plan, l) == p->plan;
            for (int side = 0; shared && side < KVD_N_SIDES; side++)
                if (merge_group(p, side, l, n, s, err))
                    return -1;
        }
        if (m->keys_before_rope && p->config->positions == KVD_POSITIONS_ROPE &&
            apply_rope(p, whole, s, err))
            return -1;
    }
    return 0;
}

static int rank(kvd_prompts *p, kvd_err *err)
{
    const void *self;
    const kvd_tokens_method *const ranker = kvd_plan_ranker(p->plan, &self);
    for (size_t s = 0; s < p->n_sequences; s++) {
        const size_t at = (size_t)p->config->n_layers * p->offset[s],
                     heads = p->observed ? (size_t)p->config->n_kv_heads : 1;
        const kvd_prompt_layers in = {
            .n_layers = chosen_before(p, p->config->n_layers, s),
            .n = p->offset[s + 1] - p->offset[s],
            .log_denominator = p->log_denominator ? p->log_denominator + at : NULL,
            .observed = p->observed ? p->observed + p->observed_at[s] : NULL};
        if (in.n && ranker->rank(self, &in, p->level + at * heads, err))
            return kvd_in(err, "sequence %zu of the batch", s);
    }
    return 0;
}

int kvd_prompts_finish(kvd_prompts *p, const size_t *whole, kvd_err *err)
{
    if (p->plan->layers && merge(p, whole, err))
        return -1;
    return p->level ? rank(p, err) : 0;
}

const uint8_t *kvd_prompts_levels(const kvd_prompts *p, int layer, int kv_head, size_t sequence)
{
    const size_t heads = p->observed ? (size_t)p->config->n_kv_heads : 1,
                 g = p->observed ? (size_t)kv_head : 0,
                 n = p->offset[sequence + 1] - p->offset[sequence],
                 index = (size_t)chosen_before(p, layer, sequence);
    return chooses(p, layer, sequence)
               ? p->level + heads * (size_t)p->config->n_layers * p->offset[sequence] +
                     (index * heads + g) * n
               : NULL;
}

const float *kvd_prompts_rows(const kvd_prompts *p, kvd_side side, int layer, size_t sequence)
{
    return rows_of(p, (int)side, layer, sequence);
}

double kvd_prompts_share(const kvd_prompts *p, kvd_side side, int layer, size_t sequence)
{
    return kvd_prompts_merged(p, side, layer, sequence)
               ? p->share[side][(size_t)layer * p->n_sequences + sequence]
               : 1;
}

bool kvd_prompts_merged(const kvd_prompts *p, kvd_side side, int layer, size_t sequence)
{
    return !isnan(p->share[side][(size_t)layer * p->n_sequences + sequence]);
}

int kvd_prompts_check(const kvd_plan *plan, const kvd_config *c, size_t sequence, size_t length,
                      size_t max_len, kvd_err *err)
{
    const kvd_tokens_method *const ranker = kvd_plan_ranker(plan, NULL);
    if (!ranker || !ranker->repeats)
        return 0;
    if (2 * length > (size_t)c->max_positions)
        return kvd_fail(err,
                        "method '%s' reads every prompt twice: sequence %zu has a prompt of "
                        "%zu tokens, the model %d positions",
                        ranker->info.name, sequence, length, c->max_positions);
    if (2 * length > max_len)
        return kvd_fail(err,
                        "method '%s' reads every prompt twice: a prompt of %zu tokens needs "
                        "%zu, the longest sequence has %zu",
                        ranker->info.name, length, 2 * length, max_len);
    return 0;
}

int kvd_prompts_make(kvd_prompts *p, const kvd_config *c, const kvd_plan *plan, const kvd_batch *b,
                     size_t max_len, kvd_prompts_pass pass, void *ctx, kvd_err *err)
{
    const size_t n = b->n_sequences, rows = b->offset[n], times = kvd_plan_copies(plan);
    size_t *const whole = malloc((3 * n + 1) * sizeof *whole), *const length = whole + n,
                  *const offset = length + n;
    uint32_t *const id = malloc(times * rows * sizeof *id);
    int status = whole && id ? 0 : kvd_no_memory(err, "a batch of prompts", rows * sizeof *id);
    for (size_t s = 0; !status && s < n; s++) {
        const size_t rows_of_it = b->offset[s + 1] - b->offset[s];
        whole[s] = kvd_batch_whole(b, s);
        length[s] = b->whole                    ? rows_of_it
                    : plan->prompt < rows_of_it ? plan->prompt
                                                : rows_of_it - 1;
        offset[s] = s ? offset[s - 1] + times * length[s - 1] : 0;
        for (size_t i = 0; i < times; i++)
            memcpy(id + offset[s] + i * length[s], b->id + b->offset[s], length[s] * sizeof *id);
    }
    if (!status)
        offset[n] = offset[n - 1] + times * length[n - 1];
    for (size_t s = 0; !status && s < n; s++)
        status = kvd_prompts_check(plan, c, b->first_sequence + s, length[s], max_len, err);
    status = status || kvd_prompts_init(p, c, plan, length, whole, n, err);
    /* Makes each sequence at least as long as `times` copies of its prompt. */
    for (size_t s = 0; !status && s < n; s++)
        whole[s] = whole[s] < times * length[s] ? times * length[s] : whole[s];
    if (!status) {
        const kvd_batch first = {.n_sequences = n,
                                 .offset = offset,
                                 .first_sequence = b->first_sequence,
                                 .id = id,
                                 .whole = whole};
        status = pass(ctx, &first, p, err) || kvd_prompts_finish(p, whole, err);
    }
    free(id);
    free(whole);
    return status ? -1 : 0;
}
