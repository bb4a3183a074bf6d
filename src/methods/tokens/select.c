/* Functions that several token methods share: token budgets, checks of parameters, and rankings of
 * tokens. */
#include <cblas.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "methods/tokens/tokens.h"

size_t kvd_tokens_budget(double value, size_t of)
{
    return value < 1 ? (size_t)(value * (double)of) : (size_t)value;
}

int kvd_tokens_check_budgets(const kvd_method_info *m, const kvd_parameter_values *v, kvd_err *err)
{
    for (int i = 0; m->parameter[i].key; i++)
        if (m->parameter[i].hi >= KVD_BUDGET_MOST && v->value[i] >= 1 &&
            v->value[i] > floor(v->value[i]))
            return kvd_fail(err,
                            "%s = %g is neither a fraction below 1 nor a whole number of tokens",
                            m->parameter[i].key, v->value[i]);
    return 0;
}

int kvd_tokens_check_budget(const kvd_parameter_values *v, kvd_err *err)
{
    return v->value[0] <= 0 ? kvd_fail(err, "budget = 0 keeps nothing") : 0;
}

int kvd_tokens_check(const kvd_tokens_method *m, const kvd_parameter_values *v,
                     const kvd_method_setup *s, kvd_err *err)
{
    return kvd_status((!m->open && (kvd_tokens_check_budgets(&m->info, v, err) ||
                                    (m->check && m->check(v, err)))) ||
                      (m->fits && m->fits(v, s, err)));
}

int kvd_tokens_open(const kvd_tokens_method *m, const kvd_parameter_values *v,
                    const kvd_method_setup *s, void **self, kvd_err *err)
{
    if (kvd_tokens_check(m, v, s, err))
        return -1;
    if (m->open)
        return m->open(v, s, self, err);
    kvd_tokens_self *const made = malloc(sizeof *made);
    if (!made)
        return kvd_no_memory(err, "a method", sizeof *made);
    *made = (kvd_tokens_self){v, s->config, s->seed};
    *self = made;
    return 0;
}

void kvd_tokens_close(const kvd_tokens_method *m, void *self)
{
    if (m->close)
        m->close(self);
    else if (!m->open)
        free(self);
}

const kvd_parameter_values *kvd_tokens_values(const void *self)
{
    return ((const kvd_tokens_self *)self)->v;
}

kvd_evict_budget kvd_tokens_prompt_budget(const kvd_parameter_values *v, const kvd_evict_request *r)
{
    return kvd_evict_once(kvd_tokens_budget(v->value[0], r->prompt), 0);
}

int kvd_tokens_take_ranked(const void *self, void *state, const kvd_prompt_attention *p,
                           uint8_t *level, kvd_err *err)
{
    (void)self, (void)state, (void)err;
    memcpy(level, p->ranked, p->n);
    return 0;
}

size_t kvd_tokens_sums_bytes(const void *self, size_t n)
{
    (void)self;
    return n * sizeof(double);
}

void kvd_tokens_forget_sums(const void *self, void *state, const size_t *kept, size_t n)
{
    double *const sum = state;
    (void)self;
    for (size_t i = 0; i < n; i++)
        sum[i] = sum[kept[i]];
}

int32_t kvd_evict_count(size_t n)
{
    return n < INT32_MAX ? (int32_t)n : INT32_MAX;
}

kvd_evict_budget kvd_evict_always(size_t old, size_t recent, const kvd_evict_request *r)
{
    return (kvd_evict_budget){.keep_new = kvd_evict_count(recent),
                              .keep_old = kvd_evict_count(old),
                              .keep_own = kvd_evict_count(old),
                              .limit = kvd_evict_count(old + recent),
                              .recent = kvd_evict_count(recent),
                              .prompt = kvd_evict_count(r->prompt),
                              .steps = kvd_evict_count(r->whole - r->prompt)};
}

kvd_evict_budget kvd_evict_once(size_t old, size_t newest)
{
    return (kvd_evict_budget){.keep_new = kvd_evict_count(newest),
                              .keep_old = kvd_evict_count(old),
                              .keep_own = kvd_evict_count(old),
                              .limit = INT32_MAX};
}

int kvd_tokens_check_window(const kvd_parameter_values *v, kvd_err *err)
{
    return (size_t)v->value[KVD_WINDOW_KERNEL] % 2
               ? 0
               : kvd_fail(err, "kernel = %g is not odd", v->value[KVD_WINDOW_KERNEL]);
}

size_t kvd_tokens_window_rows(const kvd_parameter_values *v)
{
    return (size_t)v->value[KVD_WINDOW_ROWS];
}

void kvd_tokens_window_rule(const kvd_parameter_values *v, kvd_evict_rule *rule)
{
    rule->window = (int32_t)v->value[KVD_WINDOW_ROWS];
    rule->smooth = (int32_t)v->value[KVD_WINDOW_KERNEL];
}

kvd_evict_budget kvd_tokens_window_budget(const kvd_parameter_values *v, const kvd_evict_request *r)
{
    return kvd_evict_once(kvd_tokens_budget(v->value[KVD_WINDOW_BUDGET], r->prompt),
                          kvd_tokens_window_rows(v));
}

size_t kvd_tokens_window_old(const kvd_parameter_values *v, size_t n)
{
    const size_t rows = kvd_tokens_window_rows(v);
    return n > rows ? n - rows : 0;
}

void kvd_tokens_window_scores(const kvd_parameter_values *v, const kvd_prompt_attention *p,
                              double *score)
{
    const size_t old = kvd_tokens_window_old(v, p->n),
                 half = (size_t)v->value[KVD_WINDOW_KERNEL] / 2;
    for (size_t t = 0; t < old; t++) {
        const size_t from = t > half ? t - half : 0, to = t + half + 1 < old ? t + half + 1 : old;
        score[t] = 0;
        for (int j = 0; j < p->group; j++)
            for (size_t i = from; i < to; i++)
                score[t] += p->recent[(size_t)j * p->n + i];
    }
}

int kvd_tokens_window_keep(const kvd_parameter_values *v, const kvd_prompt_attention *p,
                           size_t budget, uint8_t *level, kvd_err *err)
{
    const size_t old = kvd_tokens_window_old(v, p->n);
    double *const score = malloc((old + 1) * sizeof *score);
    if (!score)
        return kvd_no_memory(err, "scores of a prompt", old * sizeof *score);
    kvd_tokens_window_scores(v, p, score);
    const int status = kvd_tokens_keep_top(score, old, budget, level, err);
    free(score);
    return status;
}

/* Returns true if token a has a smaller score than token b, or an equal score and a smaller
 * index. */
static bool worse(const double *score, size_t a, size_t b)
{
    return a < b ? score[a] <= score[b] : score[a] < score[b];
}

static void sift(const double *score, size_t *heap, size_t n, size_t i)
{
    for (;;) {
        size_t least = i;
        for (size_t child = 2 * i + 1; child <= 2 * i + 2 && child < n; child++)
            if (worse(score, heap[child], heap[least]))
                least = child;
        if (least == i)
            return;
        const size_t held = heap[i];
        heap[i] = heap[least];
        heap[least] = held;
        i = least;
    }
}

int kvd_tokens_keep_top(const double *score, size_t n, size_t k, uint8_t *level, kvd_err *err)
{
    if (k >= n)
        return 0;
    size_t *const heap = malloc((k + 1) * sizeof *heap);
    if (!heap)
        return kvd_no_memory(err, "a selection of tokens", k * sizeof *heap);
    uint8_t *const was = malloc(n);
    if (!was) {
        free(heap);
        return kvd_no_memory(err, "a selection of tokens", n);
    }
    for (size_t i = 0; i < k; i++)
        heap[i] = i;
    for (size_t i = k / 2; i-- > 0;)
        sift(score, heap, k, i);
    for (size_t i = k; i < n && k > 0; i++)
        if (worse(score, heap[0], i)) {
            heap[0] = i;
            sift(score, heap, k, 0);
        }
    memcpy(was, level, n);
    memset(level, KVD_LEVEL_DROPPED, n);
    for (size_t i = 0; i < k; i++)
        level[heap[i]] = was[heap[i]];
    free(was);
    free(heap);
    return 0;
}

double kvd_tokens_dot(const float *a, const float *b, size_t d)
{
    double sum = 0;
    for (size_t c = 0; c < d; c++)
        sum += (double)a[c] * (double)b[c];
    return sum;
}

double kvd_tokens_length(const float *x, size_t d)
{
    return fmax(sqrt(kvd_tokens_dot(x, x, d)), 1e-12);
}

size_t kvd_tokens_least(const double *score, size_t n)
{
    size_t least = 0;
    for (size_t i = 1; i < n; i++)
        if (score[i] < score[least])
            least = i;
    return least;
}

void kvd_tokens_probabilities(const kvd_config *c, const kvd_observed_prompt *r, int head, size_t t,
                              float *product, double *a)
{
    const size_t d = (size_t)c->d_head, wide = (size_t)c->n_kv_heads * d,
                 from = r->window && t + 1 > r->window ? t + 1 - r->window : 0;
    const kvd_scores scores = kvd_config_scores(c);
    const float *const q = r->q + (t * (size_t)c->n_heads + (size_t)head) * d;
    const float *const k = r->k + (size_t)(head / (c->n_heads / c->n_kv_heads)) * d;
    double top = -INFINITY, sum = 0;
    cblas_sgemv(CblasRowMajor, CblasNoTrans, (blasint)(t + 1 - from), (blasint)d, 1.0f,
                k + from * wide, (blasint)wide, q, 1, 0.0f, product + from, 1);
    for (size_t i = 0; i < from; i++)
        a[i] = 0;
    for (size_t i = from; i <= t; i++) {
        a[i] = (double)product[i] * (double)scores.scale;
        if (scores.softcap > 0)
            a[i] = (double)scores.softcap * tanh(a[i] / (double)scores.softcap);
        top = fmax(top, a[i]);
    }
    if (r->sinks) {
        const double sink = (double)r->sinks[head];
        top = fmax(top, sink);
        sum = exp(sink - top);
    }
    for (size_t i = from; i <= t; i++)
        sum += a[i] = exp(a[i] - top);
    for (size_t i = from; i <= t; i++)
        a[i] /= sum;
}

size_t kvd_tokens_received_doubles(const void *self, size_t n)
{
    (void)self;
    return n;
}

int kvd_tokens_observe_received(const void *self, const kvd_observed_prompt *r, double *out,
                                kvd_err *err)
{
    const kvd_config *const c = ((const kvd_tokens_self *)self)->config;
    double *const a = malloc(2 * r->n * sizeof *a);
    if (!a)
        return kvd_no_memory(err, "probabilities of a row", 2 * r->n * sizeof *a);
    memset(out, 0, r->n * sizeof *out);
    for (int head = 0; head < c->n_heads; head++)
        for (size_t t = 0; t < r->n; t++) {
            kvd_tokens_probabilities(c, r, head, t, (float *)(void *)(a + r->n), a);
            for (size_t i = 0; i <= t; i++)
                out[i] += a[i];
        }
    free(a);
    return 0;
}
