/* Method locret: keeps the prompt tokens to which trained networks give the highest scores (Huang
 * et al. 2024, Locret, arXiv 2410.01805, section 3). The network of a layer computes a token's
 * scores from its Q, K and V in all heads. */
#include <cblas.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/rng.h"
#include "formats/trained.h"
#include "methods/tokens/tokens.h"
#include "model/pass/blocks.h"

/* The first two parameters must be in the order KVD_WINDOW_BUDGET, KVD_WINDOW_ROWS. */
static const kvd_parameter parameters[] = {
    {"budget", 0.2, 0, KVD_BUDGET_MOST, false,
     "older tokens kept: below 1 a fraction of the prompt, else a number"},
    {"local", 100, 1, 1 << 20, true, "number of last tokens of the prompt that are kept"},
    {NULL, 0, 0, 0, false, NULL},
};

/* BLOCK: number of tokens that are scored together. HIDDEN: number of hidden units of the
 * token-scoring networks in timing runs, which have random weights. */
enum { BLOCK = 128, HIDDEN = 1024 };

typedef struct {
    const kvd_parameter_values *v;
    const kvd_config *config;
    kvd_retaining_heads heads;
} locret;

/* Returns the number of inputs of a token-scoring network: all elements of a token's Q, K and V. */
static size_t inputs_of(const kvd_config *c)
{
    return ((size_t)c->n_heads + 2 * (size_t)c->n_kv_heads) * (size_t)c->d_head;
}

/* Returns n random weights with variance 1 / `inputs`. On failure returns NULL and fills *err. */
static float *draw(kvd_rng *r, size_t n, size_t inputs, kvd_err *err)
{
    const double most = sqrt(3 / (double)inputs);
    float *const x = malloc(n * sizeof *x);
    if (!x)
        kvd_no_memory(err, "retaining heads", n * sizeof *x);
    for (size_t i = 0; x && i < n; i++)
        x[i] = (float)((2 * kvd_rng_uniform(r) - 1) * most);
    return x;
}

static int draw_heads(locret *l, uint64_t seed, kvd_err *err)
{
    const size_t layers = (size_t)l->config->n_layers, kv = (size_t)l->config->n_kv_heads,
                 inputs = inputs_of(l->config);
    kvd_rng r;
    kvd_rng_seed(&r, seed, 0);
    l->heads.hidden = HIDDEN;
    l->heads.fc1 = draw(&r, layers * HIDDEN * inputs, inputs, err);
    l->heads.fc2 = l->heads.fc1 ? draw(&r, layers * kv * HIDDEN, HIDDEN, err) : NULL;
    return l->heads.fc2 ? 0 : -1;
}

static void close(void *self)
{
    locret *const l = self;
    kvd_retaining_heads_release(&l->heads);
    free(l);
}

static int fits(const kvd_parameter_values *v, const kvd_method_setup *s, kvd_err *err)
{
    if (kvd_tokens_check_budgets(v->method, v, err))
        return -1;
    if (s->config->latent)
        return kvd_fail(err, "it scores keys and values of heads, but a %s model caches latents",
                        s->config->family);
    if (!*v->text && !s->drawn)
        return kvd_fail(err, "it needs file=PATH, a file of retaining heads (docs/formats.md)");
    return 0;
}

static int open(const kvd_parameter_values *v, const kvd_method_setup *s, void **self, kvd_err *err)
{
    locret *const l = calloc(1, sizeof *l);
    if (!l)
        return kvd_no_memory(err, "a method", sizeof *l);
    l->v = v;
    l->config = s->config;
    if (*v->text ? kvd_retaining_heads_load(&l->heads, v->text, s->model, s->model_path, err)
                 : draw_heads(l, s->seed, err)) {
        close(l);
        return -1;
    }
    *self = l;
    return 0;
}

static const kvd_retaining_heads *retaining(const void *self)
{
    return &((const locret *)self)->heads;
}

/* Fills the tables of cosines and sines [n][d_head / 2] with which kvd_rope_apply undoes RoPE. */
static void tables_back(const kvd_config *c, const kvd_prompt_attention *p, size_t n, float *cosine,
                        float *sine)
{
    kvd_rope_tables(c, kvd_rope_local(c, p->layer), p->n_expected, n, cosine, sine);
    for (size_t i = 0; i < n * (size_t)c->d_head / 2; i++) {
        /* Some models multiply the RoPE tables by a constant factor. This is the square of that
         * factor. */
        const float square = cosine[i] * cosine[i] + sine[i] * sine[i];
        cosine[i] /= square;
        sine[i] /= -square;
    }
}

/* Writes the input of the token-scoring network for token t to x: Q and K before RoPE, and V, of
 * all heads. p [n_heads] has the data of each KV head. */
static void gather(const kvd_config *c, const kvd_prompt_attention *p, size_t n_heads, size_t t,
                   const float *cosine, const float *sine, float *x)
{
    const size_t d = p->d, q = (size_t)c->n_heads * d;
    const uint32_t position = (uint32_t)t;
    for (size_t g = 0, group = (size_t)p->group; g < n_heads; g++) {
        memcpy(x + g * group * d, p[g].q + t * p[g].ldq, group * d * sizeof *x);
        memcpy(x + q + g * d, p[g].k + t * p[g].ld, d * sizeof *x);
        memcpy(x + q + (n_heads + g) * d, p[g].v + t * p[g].ld, d * sizeof *x);
    }
    if (c->positions == KVD_POSITIONS_ROPE)
        kvd_rope_apply(c, cosine, sine, &position, 1, (size_t)c->n_heads + n_heads, x);
}

/* Computes y [n][out] = x [n][in] times the transpose of w [out][in]. */
static void multiply(const float *x, const float *w, size_t n, size_t in, size_t out, float *y)
{
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (blasint)n, (blasint)out, (blasint)in,
                1.0f, x, (blasint)in, w, (blasint)in, 0.0f, y, (blasint)out);
}

/* Computes the scores [n_heads][n] of the first n prompt tokens with the layer's trained
 * network. */
static int score_tokens(const locret *l, const kvd_prompt_attention *p, size_t n_heads, size_t n,
                        double *score, kvd_err *err)
{
    const kvd_config *const c = l->config;
    const size_t inputs = inputs_of(c), hidden = l->heads.hidden, table = n * p->d / 2,
                 layer = (size_t)p->layer, floats = 2 * table + BLOCK * (inputs + hidden + n_heads);
    float *const cosine = malloc(floats * sizeof *cosine);
    if (!cosine)
        return kvd_no_memory(err, "scores of a prompt", floats * sizeof *cosine);
    float *const sine = cosine + table, *const x = sine + table, *const h = x + BLOCK * inputs,
                 *const y = h + BLOCK * hidden;
    if (c->positions == KVD_POSITIONS_ROPE)
        tables_back(c, p, n, cosine, sine);
    for (size_t first = 0; first < n; first += BLOCK) {
        const size_t rows = n - first < BLOCK ? n - first : BLOCK;
        for (size_t i = 0; i < rows; i++)
            gather(c, p, n_heads, first + i, cosine, sine, x + i * inputs);
        multiply(x, l->heads.fc1 + layer * hidden * inputs, rows, inputs, hidden, h);
        kvd_activate(c->activation, h, NULL, rows * hidden);
        multiply(h, l->heads.fc2 + layer * n_heads * hidden, rows, hidden, n_heads, y);
        for (size_t g = 0; g < n_heads; g++)
            for (size_t i = 0; i < rows; i++)
                score[g * n + first + i] = (double)y[i * n_heads + g];
    }
    free(cosine);
    return 0;
}

static int prompt(const void *self, void *const *state, const kvd_prompt_attention *p,
                  size_t n_heads, uint8_t *const *level, kvd_err *err)
{
    const locret *const l = self;
    const size_t old = kvd_tokens_window_old(l->v, p->n),
                 budget = kvd_tokens_budget(l->v->value[KVD_WINDOW_BUDGET], p->n);
    (void)state;
    if (old <= budget)
        return 0;
    double *const score = malloc(n_heads * old * sizeof *score);
    if (!score)
        return kvd_no_memory(err, "scores of a prompt", n_heads * old * sizeof *score);
    int status = score_tokens(l, p, n_heads, old, score, err);
    for (size_t g = 0; !status && g < n_heads; g++)
        status = kvd_tokens_keep_top(score + g * old, old, budget, level[g], err);
    free(score);
    return status;
}

static void evict_rule(const kvd_parameter_values *v, kvd_evict_rule *rule)
{
    (void)v;
    rule->ranking = KVD_EVICT_TRAINED;
}

const kvd_tokens_method kvd_tokens_locret = {
    .info = {.name = "locret",
             .summary = "tokens of the prompt that trained networks from a file score highest",
             .parameter = parameters,
             .tradeoff = &(const kvd_tradeoff){"budget", 0.9, 0.05, true, NULL, 0, 0},
             .text_key = "file",
             .text_meaning = "file of retaining heads; its path may not contain a comma",
             .needs = KVD_NEEDS_PROMPT,
             .gpu = &kvd_gpu_evict},
    .eviction = &(const kvd_tokens_eviction){.rule = evict_rule,
                                             .budget = kvd_tokens_window_budget,
                                             .whole_keys = true},
    .drawn = true,
    .retaining = retaining,
    .fits = fits,
    .open = open,
    .close = close,
    .prompt_heads = prompt,
};
