#include "analysis/sensitivity.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "analysis/pairs.h"
#include "common/linalg.h"
#include "common/threads.h"
#include "model/pass/backward.h"

enum { SIDES = 2, KINDS = KVD_SENSITIVITY_KINDS };

struct kvd_sensitivity {
    size_t n_layers, n_kv_heads, group, d, threads;
    double *sum;     /* [n_layers][KINDS][n_kv_heads][d][d] sums of x^T x */
    double *scratch; /* scratch memory of kvd_gram_add, [threads][kvd_gram_scratch(d)] */
};

kvd_sensitivity *kvd_sensitivity_new(const kvd_config *c, kvd_err *err)
{
    kvd_sensitivity *const s = kvd_new(1, sizeof *s, "sums of gradients", err);
    if (!s)
        return NULL;
    s->n_layers = (size_t)c->n_layers;
    s->n_kv_heads = (size_t)c->n_kv_heads;
    s->group = (size_t)kvd_config_group(c);
    s->d = (size_t)c->d_head;
    s->threads = kvd_thread_count();
    const size_t n = s->n_layers * s->n_kv_heads * KINDS * s->d * s->d;
    s->sum = calloc(n, sizeof *s->sum);
    s->scratch = calloc(s->threads * kvd_gram_scratch(s->d), sizeof *s->scratch);
    if (!s->sum || !s->scratch) {
        kvd_no_memory(err, "sums of gradients", n * sizeof *s->sum);
        kvd_sensitivity_free(s);
        return NULL;
    }
    return s;
}

void kvd_sensitivity_free(kvd_sensitivity *s)
{
    if (!s)
        return;
    free(s->sum);
    free(s->scratch);
    free(s);
}

static double *sum_at(const kvd_sensitivity *s, size_t layer, size_t kv_head, size_t kind)
{
    return s->sum + ((layer * KINDS + kind) * s->n_kv_heads + kv_head) * s->d * s->d;
}

double *kvd_sensitivity_sums(kvd_sensitivity *s)
{
    return s->sum;
}

int kvd_sensitivity_add(kvd_sensitivity *s, const kvd_gradients *g, kvd_err *err)
{
    const float *const rows[KINDS] = {g->q, g->dq, g->o, g->d_o};
    const size_t jobs = s->n_kv_heads * KINDS, ld = s->n_kv_heads * s->group * s->d;
    /* smallest index of a failed job, whose error is reported */
    size_t failed = jobs;
    const int saved = kvd_blas_serial();
#pragma omp parallel for schedule(dynamic) num_threads((int)s->threads)
    for (size_t i = 0; i < jobs; i++) {
        const size_t h = i / KINDS, kind = i % KINDS;
        double *const scratch = s->scratch + kvd_thread_index() * kvd_gram_scratch(s->d);
        kvd_err mine = {""};
        for (size_t j = 0; j < s->group; j++)
            if (kvd_gram_add(sum_at(s, (size_t)g->layer, h, kind), s->d,
                             rows[kind] + (h * s->group + j) * s->d, g->n_tokens, ld, scratch,
                             &mine)) {
#pragma omp critical(kvd_sensitivity_error)
                if (i < failed) {
                    failed = i;
                    *err = mine;
                }
            }
    }
    kvd_blas_restore(saved);
    if (failed == jobs)
        return 0;
    static const char *const what[KINDS] = {"q", "gradient of q", "o", "gradient of o"};
    return kvd_in(err, "layer %d KV head %zu: %s", g->layer, failed / KINDS, what[failed % KINDS]);
}

static int bases_of_head(const kvd_sensitivity *s, kvd_pair pair, size_t side, int layer, int h,
                         double scale, kvd_spectrum *out, kvd_err *err)
{
    double *const sigma = kvd_spectrum_sigma(out, pair, layer, h);
    const double *const rows = sum_at(s, (size_t)layer, (size_t)h, 2 * side),
                        *const gradients = sum_at(s, (size_t)layer, (size_t)h, 2 * side + 1);
    if (kvd_balanced(rows, gradients, s->d, sigma, kvd_spectrum_R(out, pair, layer, h),
                     kvd_spectrum_right(out, pair, layer, h), err))
        return kvd_in(err, "pair '%s', layer %d, KV head %d", kvd_pair_name[pair], layer, h);
    for (size_t j = 0; j < s->d; j++)
        sigma[j] *= scale;
    return 0;
}

int kvd_sensitivity_bases(const kvd_sensitivity *s, size_t n_tokens, kvd_spectrum *out,
                          kvd_err *err)
{
    static const kvd_pair pair[SIDES] = {KVD_PAIR_FQK, KVD_PAIR_FVW};
    const double scale = 1 / ((double)n_tokens * sqrt((double)s->group));
    const size_t heads = s->n_layers * s->n_kv_heads, jobs = SIDES * heads;
    assert(n_tokens > 0 && out->n_layers == (int)s->n_layers && out->pairing == KVD_SHARED);
    for (size_t side = 0; side < SIDES; side++) {
        if (kvd_spectrum_alloc(out, pair[side], err))
            return -1;
        /* n_rows is 1, so that dividing these singular values by sqrt(n_rows) changes nothing. */
        out->pair[pair[side]].n_rows = 1;
    }
    /* smallest index of a failed job, whose error is reported */
    size_t failed = jobs;
    const int saved = kvd_blas_serial();
#pragma omp parallel for schedule(dynamic) num_threads((int)s->threads)
    for (size_t i = 0; i < jobs; i++) {
        const size_t side = i / heads, l = i % heads / s->n_kv_heads, h = i % s->n_kv_heads;
        kvd_err mine = {""};
        if (bases_of_head(s, pair[side], side, (int)l, (int)h, scale, out, &mine)) {
#pragma omp critical(kvd_sensitivity_error)
            if (i < failed) {
                failed = i;
                *err = mine;
            }
        }
    }
    kvd_blas_restore(saved);
    return failed == jobs ? 0 : -1;
}

/* theta: largest loss in nats that quantisation may cause in one singular direction. The direction
 * of singular value sigma costs min(theta, sigma^2 / 2). Returns the sum over all directions. *bits
 * receives the mean number of bits per direction. */
static double loss_at(const kvd_spectrum *s, double theta, double *bits)
{
    static const kvd_pair pair[SIDES] = {KVD_PAIR_FQK, KVD_PAIR_FVW};
    double loss = 0, sum = 0, n = 0;
    for (size_t side = 0; side < SIDES; side++)
        for (int l = 0; l < s->n_layers; l++)
            for (int h = 0; h < s->model.n_kv_heads; h++)
                for (int j = 0; j < s->model.d_head; j++) {
                    const double sigma = kvd_spectrum_sigma(s, pair[side], l, h)[j],
                                 cost = sigma * sigma / 2;
                    loss += fmin(theta, cost);
                    sum += cost > theta ? log2(cost / theta) / 2 : 0;
                    n++;
                }
    if (bits)
        *bits = sum / n;
    return loss;
}

double kvd_sensitivity_bits(const kvd_spectrum *s, double loss)
{
    /* bounds of ln(theta) for bisection, where theta limits the loss (nats) that quantising one
     * singular direction causes */
    double low = log(loss) - 700, high = log(loss), bits;
    while (high - low > 1e-12 * fabs(high) + 1e-13) {
        const double middle = (low + high) / 2;
        if (middle <= low || middle >= high)
            break;
        *(loss_at(s, exp(middle), NULL) <= loss ? &low : &high) = middle;
    }
    loss_at(s, exp(low), &bits);
    return bits;
}

typedef struct {
    /* first field, because pointers to `hook` are cast to pointers to this struct */
    kvd_sensitivity_engine hook;
    kvd_sensitivity_spec spec;
    kvd_backward *pass;
} engine;

static engine *self_of(kvd_sensitivity_engine *e)
{
    return (engine *)(void *)e;
}

static int take(void *ctx, const kvd_gradients *g, kvd_err *err)
{
    const engine *const e = ctx;
    return kvd_sensitivity_add(e->spec.sums, g, err);
}

static int give_up(void *ctx, kvd_err *err)
{
    const engine *const e = ctx;
    return e->spec.give_up(err);
}

static int run(kvd_sensitivity_engine *e, const kvd_batch *b, kvd_err *err)
{
    const kvd_gradient_sink sink = {take, give_up, e};
    return kvd_backward_run(self_of(e)->pass, b, 0, &sink, &e->loss, &e->n_predicted, err);
}

static int flush(kvd_sensitivity_engine *e, kvd_err *err)
{
    (void)e;
    (void)err;
    return 0;
}

static const char *describe(const kvd_sensitivity_engine *e)
{
    (void)e;
    return "CPU, f32";
}

static void release(kvd_sensitivity_engine *e)
{
    kvd_backward_free(self_of(e)->pass);
    free(self_of(e));
}

kvd_sensitivity_engine *kvd_sensitivity_engine_cpu(const kvd_sensitivity_spec *s, kvd_err *err)
{
    engine *const e = kvd_new(1, sizeof *e, "the backward pass", err);
    if (!e)
        return NULL;
    e->hook =
        (kvd_sensitivity_engine){.run = run, .flush = flush, .describe = describe, .free = release};
    e->spec = *s;
    if (!(e->pass = kvd_backward_new(s->checkpoint, s->max_tokens, s->max_len, err))) {
        release(&e->hook);
        return NULL;
    }
    kvd_backward_draw(e->pass, s->seed);
    return &e->hook;
}
