/* Method kvzip: keeps the cached tokens that the model needs in order to repeat the prompt (Kim et
 * al. 2025, KVzip, arXiv 2505.23416, section 3). A token's score is the largest attention
 * probability that it gets from a copy of the prompt. */
#include <cblas.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "methods/tokens/tokens.h"

enum { BUDGET, SINK };
static const kvd_parameter parameters[] = {
    {"budget", 0.5, 0, KVD_BUDGET_MOST, false,
     "tokens kept, mean over layers and KV heads: below 1 a fraction of the prompt, else a number"},
    {"sink", 4, 0, 4096, true, "first tokens kept"},
    {NULL, 0, 0, 0, false, NULL},
};

/* Returns the number of doubles that `observe` writes for a layer: the token scores
 * [n_kv_heads][n]. */
static size_t observed(const void *self, size_t n)
{
    const kvd_tokens_self *const z = self;
    return (size_t)z->config->n_kv_heads * n;
}

/* Sets score[i] to the larger of score[i] and the attention probability that query t gives prompt
 * token i. */
static void add_row(const kvd_tokens_self *z, const kvd_observed_prompt *r, size_t head, size_t t,
                    const float *product, double *score)
{
    const kvd_scores f = kvd_config_scores(z->config);
    const size_t from = r->window && t + 1 > r->window ? t + 1 - r->window : 0;
    const double sink = r->sinks ? (double)r->sinks[head] : -INFINITY;
    double top = sink, sum = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = from; i <= t; i++) {
            double x = (double)product[i] * (double)f.scale;
            x = f.softcap > 0 ? (double)f.softcap * tanh(x / (double)f.softcap) : x;
            if (pass == 0)
                top = fmax(top, x);
            else
                sum += exp(x - top);
        }
        sum += pass == 0 && r->sinks ? exp(sink - top) : 0;
    }
    for (size_t i = from; i < r->n; i++) {
        double x = (double)product[i] * (double)f.scale;
        x = f.softcap > 0 ? (double)f.softcap * tanh(x / (double)f.softcap) : x;
        score[i] = fmax(score[i], exp(x - top) / sum);
    }
}

static int observe(const void *self, const kvd_observed_prompt *r, double *out, kvd_err *err)
{
    const kvd_tokens_self *const z = self;
    const kvd_config *const c = z->config;
    const size_t d = (size_t)c->d_head, wide_q = (size_t)c->n_heads * d,
                 wide_k = (size_t)c->n_kv_heads * d, group = (size_t)kvd_config_group(c);
    float *const product = malloc(2 * r->n * sizeof *product);
    if (!product)
        return kvd_no_memory(err, "scores of a prompt", 2 * r->n * sizeof *product);
    memset(out, 0, observed(self, r->n) * sizeof *out);
    for (size_t head = 0; head < (size_t)c->n_heads; head++)
        for (size_t t = r->n; t < 2 * r->n; t++) {
            cblas_sgemv(CblasRowMajor, CblasNoTrans, (blasint)(t + 1), (blasint)d, 1.0f,
                        r->k + head / group * d, (blasint)wide_k, r->q + t * wide_q + head * d, 1,
                        0.0f, product, 1);
            add_row(z, r, head, t, product, out + head / group * r->n);
        }
    free(product);
    return 0;
}

static int rank(const void *self, const kvd_prompt_layers *p, uint8_t *level, kvd_err *err)
{
    const kvd_tokens_self *const z = self;
    const size_t n = p->n, heads = (size_t)p->n_layers * (size_t)z->config->n_kv_heads,
                 sink = (size_t)z->v->value[SINK],
                 budget = kvd_tokens_budget(z->v->value[BUDGET], n);
    double *const score = malloc(heads * n * sizeof *score);
    if (!score)
        return kvd_no_memory(err, "scores of all layers", heads * n * sizeof *score);
    for (size_t i = 0; i < heads * n; i++) {
        /* The first `sink` tokens get scores above 1, more than any probability. Earlier tokens get
         * larger scores, so that all heads keep the same ones if the budget is below `sink`. */
        score[i] = i % n < sink ? (double)(1 + sink - i % n) : p->observed[i];
        level[i] = KVD_LEVEL_HIGH;
    }
    const int status = kvd_tokens_keep_top(score, heads * n, heads * budget, level, err);
    free(score);
    return status;
}

static void evict_rule(const kvd_parameter_values *v, kvd_evict_rule *rule)
{
    rule->ranking = KVD_EVICT_REPEATED;
    rule->sink = (int32_t)v->value[SINK];
}

const kvd_tokens_method kvd_tokens_kvzip = {
    .info = {.name = "kvzip",
             .summary = "entries that the model needs to repeat its prompt, over all layers",
             .parameter = parameters,
             .tradeoff = &(const kvd_tradeoff){"budget", 0.9, 0.05, true, NULL, 0, 0},
             .needs = KVD_NEEDS_PROMPT,
             .gpu = &kvd_gpu_uneven},
    .eviction =
        &(const kvd_tokens_eviction){.rule = evict_rule, .budget = kvd_tokens_prompt_budget},
    .check = kvd_tokens_check_budget,
    .repeats = true,
    .observed = observed,
    .observe = observe,
    .rank = rank,
    .prompt = kvd_tokens_take_ranked,
};
