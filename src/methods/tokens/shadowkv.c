/* Method shadowkv: stores prompt keys as a low-rank matrix. Decode steps read the groups of tokens
 * whose mean keys have the largest products with the query (Sun et al. 2024, ShadowKV, arXiv
 * 2410.21465, section 4).
 *
 * Groups whose keys differ most from their mean are always read, with exact keys. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/linalg.h"
#include "methods/tokens/tokens.h"

enum { BUDGET, CHUNK, RANK, OUTLIERS, LOCAL };
static const kvd_parameter parameters[] = {
    {"budget", 0.25, 0, KVD_BUDGET_MOST, false,
     "tokens read by landmarks, in whole chunks: below 1 a fraction of the prompt, else a number"},
    {"chunk", 8, 1, 4096, true, "number of tokens of a chunk"},
    {"rank", 160, 1, 1 << 16, true, "rank of the prompt's keys of all KV heads together"},
    {"outliers", 48, 0, 1 << 16, true, "number of chunks that stay exact and are always read"},
    {"local", 4, 0, 1 << 16, true, "number of last chunks that stay exact and are always read"},
    {NULL, 0, 0, 0, false, NULL},
};

/* State of a KV head. After the structure there are the mean keys [chunks][d] of groups of tokens
 * (chunks) and one flag per chunk, 1 if its keys are stored exactly. */
typedef struct {
    size_t prompt, chunks;
} shadow;

static float *landmarks_of(const shadow *s)
{
    return (float *)(uintptr_t)(s + 1);
}

static uint8_t *outliers_of(const shadow *s, size_t d)
{
    return (uint8_t *)(landmarks_of(s) + s->chunks * d);
}

static size_t state_bytes(const void *self, size_t n)
{
    const kvd_tokens_self *const q = self;
    const size_t chunks = n / (size_t)q->v->value[CHUNK] + 1;
    return sizeof(shadow) + chunks * ((size_t)q->config->d_head * sizeof(float) + 1);
}

/* Writes the mean of n keys k [n][d] to `mean`. Returns the smallest cosine between a key and the
 * mean. */
static double describe(const float *k, size_t n, size_t d, float *mean)
{
    double least = 1, length = 0;
    for (size_t j = 0; j < d; j++) {
        double sum = 0;
        for (size_t i = 0; i < n; i++)
            sum += (double)k[i * d + j];
        mean[j] = (float)(sum / (double)n);
        length += (double)mean[j] * (double)mean[j];
    }
    for (size_t i = 0; i < n; i++) {
        double dot = 0, own = 0;
        for (size_t j = 0; j < d; j++) {
            dot += (double)k[i * d + j] * (double)mean[j];
            own += (double)k[i * d + j] * (double)k[i * d + j];
        }
        const double cosine = length > 0 && own > 0 ? dot / sqrt(length * own) : 0;
        least = cosine < least ? cosine : least;
    }
    return least;
}

/* Computes the mean key of each chunk (group of adjacent tokens) of a prompt. Sets exact[t] to 1 if
 * token t is in a chunk whose keys are stored exactly. */
static int find_landmarks(const kvd_tokens_self *q, shadow *s, const kvd_prompt_keys *p,
                          uint8_t *exact, kvd_err *err)
{
    const size_t chunk = (size_t)q->v->value[CHUNK], local = (size_t)q->v->value[LOCAL],
                 all = p->n / chunk;
    s->prompt = p->n;
    s->chunks = all > local ? all - local : 0;
    const size_t outliers =
        (size_t)q->v->value[OUTLIERS] < s->chunks ? (size_t)q->v->value[OUTLIERS] : s->chunks;
    double *const worst = malloc((s->chunks + 1) * sizeof *worst);
    uint8_t *const level = malloc(s->chunks + 1);
    int status = worst && level ? 0 : kvd_no_memory(err, "chunks", s->chunks * sizeof *worst);
    for (size_t c = 0; !status && c < s->chunks; c++) {
        worst[c] = -describe(p->k + c * chunk * p->d, chunk, p->d, landmarks_of(s) + c * p->d);
        level[c] = KVD_LEVEL_HIGH;
    }
    if (!status)
        status = kvd_tokens_keep_top(worst, s->chunks, outliers, level, err);
    for (size_t t = 0; !status && t < p->n; t++)
        exact[t] = t / chunk >= s->chunks || level[t / chunk] != KVD_LEVEL_DROPPED;
    for (size_t c = 0; !status && c < s->chunks; c++)
        outliers_of(s, p->d)[c] = level[c] != KVD_LEVEL_DROPPED;
    free(worst);
    free(level);
    return status;
}

static void round_to(kvd_dtype type, float *x, size_t n, void *rounded)
{
    kvd_from_f32(type, x, rounded, n);
    kvd_to_f32(type, rounded, x, n);
}

/* Writes a rank-r approximation of the prompt's keys before RoPE to k [n][d]. */
static int rebuild_keys(const kvd_prompt_keys *p, size_t r, float *k, kvd_err *err)
{
    const size_t wide = p->n_kv_heads * p->d, at = (size_t)p->kv_head * p->d;
    double *const gram = calloc(2 * wide * wide + wide + kvd_gram_scratch(wide), sizeof *gram);
    float *const basis = malloc((wide * r + 2 * (wide > r ? wide : r)) * sizeof *basis);
    int status = gram && basis ? 0 : kvd_no_memory(err, "keys of low rank", wide * wide * 16);
    double *const vectors = gram ? gram + wide * wide : NULL, *const sigma =
                                                                  gram ? vectors + wide * wide
                                                                       : NULL;
    status = status || kvd_gram_add(gram, wide, p->k_pre, p->n, wide, sigma + wide, err) ||
             kvd_gram_svd(gram, wide, sigma, vectors, err);
    float *const latent = basis ? basis + wide * r : NULL;
    for (size_t i = 0; !status && i < wide; i++) {
        for (size_t j = 0; j < r; j++)
            basis[i * r + j] = (float)vectors[i * wide + j];
        round_to(p->type, basis + i * r, r, latent);
    }
    for (size_t t = 0; !status && t < p->n; t++) {
        for (size_t j = 0; j < r; j++) {
            double sum = 0;
            for (size_t i = 0; i < wide; i++)
                sum += (double)p->k_pre[t * wide + i] * (double)basis[i * r + j];
            latent[j] = (float)sum;
        }
        round_to(p->type, latent, r, latent + r);
        for (size_t i = 0; i < p->d; i++) {
            double sum = 0;
            for (size_t j = 0; j < r; j++)
                sum += (double)latent[j] * (double)basis[(at + i) * r + j];
            k[t * p->d + i] = (float)sum;
        }
    }
    free(basis);
    free(gram);
    return status ? -1 : 0;
}

static int rebuild(const void *self, void *state, const kvd_prompt_keys *p, float *k,
                   uint8_t *exact, kvd_rebuilt_bits *bits, kvd_err *err)
{
    const kvd_tokens_self *const q = self;
    const size_t wide = p->n_kv_heads * p->d, wanted = (size_t)q->v->value[RANK],
                 r = wanted < wide ? wanted : wide, number = 8 * kvd_dtype_bytes(p->type);
    if (find_landmarks(q, state, p, exact, err) || rebuild_keys(p, r, k, err))
        return -1;
    bits->token = (double)(r * number) / (double)p->n_kv_heads;
    bits->prompt = (double)(p->d * r * number);
    return 0;
}

static double select_bits(const void *self, const void *state, const uint32_t *position, size_t n,
                          size_t d, size_t number_bits)
{
    const shadow *const s = state;
    (void)self;
    (void)position;
    (void)n;
    size_t landmarks = 0;
    for (size_t c = 0; c < s->chunks; c++)
        landmarks += !outliers_of(s, d)[c];
    return (double)(landmarks * d * number_bits);
}

static void score_chunks(const kvd_tokens_self *q, const shadow *s, const kvd_read_choice *c,
                         double *score, double *one)
{
    const double scale = (double)kvd_config_scores(q->config).scale;
    const uint8_t *const outlier = outliers_of(s, c->d);
    for (size_t i = 0; i < s->chunks; i++)
        score[i] = 0;
    for (int g = 0; g < c->group; g++) {
        double top = -INFINITY, sum = 0;
        for (size_t i = 0; i < s->chunks; i++) {
            one[i] = 0;
            for (size_t j = 0; j < c->d; j++)
                one[i] +=
                    (double)c->q[(size_t)g * c->ldq + j] * (double)landmarks_of(s)[i * c->d + j];
            one[i] = outlier[i] ? -INFINITY : scale * one[i];
            top = one[i] > top ? one[i] : top;
        }
        for (size_t i = 0; i < s->chunks; i++)
            sum += outlier[i] ? 0 : exp(one[i] - top);
        for (size_t i = 0; i < s->chunks; i++)
            if (!outlier[i] && exp(one[i] - top) / sum > score[i])
                score[i] = exp(one[i] - top) / sum;
    }
}

static int choose(const void *self, void *state, const kvd_read_choice *c, uint8_t *read,
                  kvd_err *err)
{
    const kvd_tokens_self *const q = self;
    const shadow *const s = state;
    const size_t chunk = (size_t)q->v->value[CHUNK],
                 budget = kvd_tokens_budget(q->v->value[BUDGET], s->prompt) / chunk;
    double *const score = malloc((2 * s->chunks + 1) * sizeof *score);
    uint8_t *const level = malloc(s->chunks + 1);
    int status = score && level ? 0 : kvd_no_memory(err, "chunks", s->chunks * sizeof *score);
    if (!status) {
        score_chunks(q, s, c, score, score + s->chunks);
        memset(level, KVD_LEVEL_HIGH, s->chunks);
        for (size_t i = 0; i < s->chunks; i++)
            score[i] = outliers_of(s, c->d)[i] ? -1 : score[i];
        status = kvd_tokens_keep_top(score, s->chunks, budget, level, err);
    }
    for (size_t i = 0; !status && i < c->n; i++) {
        const size_t at = c->position[i] / chunk;
        read[i] = at >= s->chunks || outliers_of(s, c->d)[at] || level[at] != KVD_LEVEL_DROPPED;
    }
    free(level);
    free(score);
    return status ? -1 : 0;
}

static kvd_read_rule read_rule(const kvd_parameter_values *v)
{
    return (kvd_read_rule){.budget = v->value[BUDGET],
                           .page = (size_t)v->value[CHUNK],
                           .ranking = KVD_READ_LANDMARKS,
                           .rank = (int32_t)v->value[RANK],
                           .outliers = (int32_t)v->value[OUTLIERS],
                           .last = (int32_t)v->value[LOCAL]};
}

const kvd_tokens_method kvd_tokens_shadowkv = {
    .info = {.name = "shadowkv",
             .summary = "keys of the prompt in low rank; steps read chunks by their mean keys",
             .parameter = parameters,
             .tradeoff = &(const kvd_tradeoff){"budget", 0.9, 0.02, true, NULL, 0, 0},
             .needs = KVD_NEEDS_PROMPT | KVD_NEEDS_PRE_ROPE,
             .gpu = &kvd_gpu_selection},
    .read_rule = read_rule,
    .state_bytes = state_bytes,
    .rebuild = rebuild,
    .select = choose,
    .select_bits = select_bits,
};
