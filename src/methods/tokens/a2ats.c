/* Method a2ats: a decode step reads only the cached tokens whose quantised keys have the largest
 * products with the step's queries (He et al. 2025, A2ATS, arXiv 2502.12665, section 4). */
#include <cblas.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "common/rng.h"
#include "methods/bits/calibration.h"
#include "methods/tokens/tokens.h"
#include "model/pass/blocks.h"

enum { BUDGET, SIZE, ROWS, SINK, LOCAL, RELATIVE };
static const kvd_parameter parameters[] = {
    {"budget", 0.1, 0, KVD_BUDGET_MOST, false,
     "tokens read per query head: below 1 a fraction of those held, else a number"},
    {"size", 256, 2, 65536, true, "number of centroids of a KV head"},
    {"rows", 2048, 2, 1 << 20, true, "number of calibration tokens read"},
    {"sink", 8, 0, 4096, true, "first tokens read"},
    {"local", 64, 1, 1 << 20, true, "newest tokens read"},
    {"relative", 2048, 0, 1 << 20, true, "distance at which older tokens are scored"},
    {NULL, 0, 0, 0, false, NULL},
};

enum { ITERATIONS = 10 };

typedef struct {
    kvd_pool pool; /* must be first */
    const kvd_parameter_values *v;
    const kvd_config *config;
    size_t size, d;
    /* [n_layers][n_kv_heads] Matrices [d][d]: Cholesky factors of the second moments of the
     * queries. */
    float *factor;
    /* [n_layers][n_kv_heads][size][d] Centroids of keys, multiplied by `factor`. A key is also
     * multiplied by `factor` before it is compared with them. */
    float *moved;
    float *centroid; /* [n_layers][n_kv_heads][size][d] */
} a2ats;

/* Applies RoPE to x [d] as for a token at position `positions`, which may be negative. `table` is
 * scratch memory. */
static void turn(const kvd_config *c, int layer, double positions, float *table, float *x)
{
    const size_t half = (size_t)c->d_head / 2;
    const uint32_t zero = 0;
    if (c->positions != KVD_POSITIONS_ROPE)
        return;
    for (size_t i = 0; i < half; i++) {
        const double angle = positions * kvd_rope_frequency(c, kvd_rope_local(c, layer),
                                                            (size_t)c->max_positions, i);
        table[i] = (float)cos(angle);
        table[half + i] = (float)sin(angle);
    }
    kvd_rope_apply(c, table, table + half, &zero, 1, 1, x);
}

/* Computes the Cholesky factor of the symmetric matrix h [d][d]. Overwrites h. */
static void factorise(double *h, size_t d, float *factor)
{
    double trace = 0;
    for (size_t i = 0; i < d; i++)
        trace += h[i * d + i];
    for (size_t i = 0; i < d; i++)
        h[i * d + i] += 1e-6 * trace / (double)d + 1e-30;
    memset(factor, 0, d * d * sizeof *factor);
    for (size_t j = 0; j < d; j++)
        for (size_t i = j; i < d; i++) {
            double sum = h[i * d + j];
            for (size_t k = 0; k < j; k++)
                sum -= h[i * d + k] * h[j * d + k];
            h[i * d + j] = i == j ? sqrt(fmax(sum, 1e-30)) : sum / h[j * d + j];
            factor[i * d + j] = (float)h[i * d + j];
        }
}

static size_t nearest(const float *centroid, size_t size, size_t d, const float *y)
{
    size_t best = 0;
    double least = INFINITY;
    for (size_t m = 0; m < size; m++) {
        double sum = 0;
        for (size_t c = 0; c < d; c++) {
            const double x = (double)y[c] - (double)centroid[m * d + c];
            sum += x * x;
        }
        if (sum < least) {
            least = sum;
            best = m;
        }
    }
    return best;
}

static void times_factor(const a2ats *x, const float *factor, const float *k, size_t n, float *y)
{
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (blasint)n, (blasint)x->d, (blasint)x->d,
                1.0f, k, (blasint)x->d, factor, (blasint)x->d, 0.0f, y, (blasint)x->d);
}

/* Clusters the keys k [n][d] by k-means, with distances between the vectors y [n][d], which are the
 * keys times x->factor. Stores the centroids. */
static void cluster(a2ats *x, size_t at, const float *k, const float *y, size_t n, size_t *code,
                    double *sum)
{
    const size_t d = x->d, size = x->size;
    float *const moved = x->moved + at * size * d, *const centroid = x->centroid + at * size * d;
    for (size_t m = 0; m < size; m++) {
        memcpy(moved + m * d, y + m * n / size * d, d * sizeof *moved);
        memcpy(centroid + m * d, k + m * n / size * d, d * sizeof *centroid);
    }
    for (int i = 0; i < ITERATIONS; i++) {
#pragma omp parallel for
        for (size_t t = 0; t < n; t++)
            code[t] = nearest(moved, size, d, y + t * d);
        memset(sum, 0, size * (d + 1) * sizeof *sum);
        for (size_t t = 0; t < n; t++) {
            double *const s = sum + code[t] * (d + 1);
            s[d]++;
            for (size_t c = 0; c < d; c++)
                s[c] += (double)k[t * d + c];
        }
        for (size_t m = 0; m < size; m++)
            for (size_t c = 0; sum[m * (d + 1) + d] > 0 && c < d; c++)
                centroid[m * d + c] = (float)(sum[m * (d + 1) + c] / sum[m * (d + 1) + d]);
        times_factor(x, x->factor + at * d * d, centroid, size, moved);
    }
}

static int calibrate_head(a2ats *x, const kvd_method_setup *s, int layer, int g, size_t n,
                          float *rows, double *h, size_t *code, double *sum, kvd_err *err)
{
    const kvd_config *const c = x->config;
    const bool pre = c->positions == KVD_POSITIONS_ROPE;
    const size_t d = x->d, at = (size_t)(layer * c->n_kv_heads + g);
    float *const k = rows, *const y = rows + n * d, *const scratch = y + n * d;
    const int group = kvd_config_group(c);
    memset(h, 0, d * d * sizeof *h);
    for (int j = 0; j < group; j++) {
        if (kvd_activations_rows(s->calibration, pre ? KVD_X_Q_PRE : KVD_X_Q, layer, g * group + j,
                                 0, n, k, scratch, err))
            return -1;
        for (size_t t = 0; t < n; t++) {
            turn(c, layer, x->v->value[RELATIVE], scratch, k + t * d);
            for (size_t a = 0; a < d; a++)
                for (size_t b = 0; b <= a; b++)
                    h[a * d + b] += (double)k[t * d + a] * (double)k[t * d + b];
        }
    }
    factorise(h, d, x->factor + at * d * d);
    if (kvd_activations_rows(s->calibration, pre ? KVD_X_K_PRE : KVD_X_K, layer, g, 0, n, k,
                             scratch, err))
        return -1;
    times_factor(x, x->factor + at * d * d, k, n, y);
    cluster(x, at, k, y, n, code, sum);
    return 0;
}

static int calibrate(a2ats *x, const kvd_method_setup *s, kvd_err *err)
{
    const size_t d = x->d, n = kvd_calibration_tokens(s, x->v->value[ROWS]);
    if (n < x->size)
        return kvd_fail(err, "size = %zu centroids need as many calibration tokens: there are %zu",
                        x->size, n);
    float *const rows = malloc((3 * n * d + d) * sizeof *rows);
    double *const h = malloc((d * d + x->size * (d + 1)) * sizeof *h);
    size_t *const code = malloc(n * sizeof *code);
    int status =
        rows && h && code ? 0 : kvd_no_memory(err, "calibration rows", 3 * n * d * sizeof *rows);
    for (int l = 0; !status && l < x->config->n_layers; l++)
        for (int g = 0; !status && g < x->config->n_kv_heads; g++)
            status = calibrate_head(x, s, l, g, n, rows, h, code, h + d * d, err);
    free(code);
    free(h);
    free(rows);
    return status;
}

/* Draws random centroids, all of length 1, for timing runs. */
static void draw(a2ats *x, size_t heads, uint64_t seed)
{
    const size_t d = x->d, n = heads * x->size;
    kvd_rng r;
    kvd_rng_seed(&r, seed, 0);
    for (size_t i = 0; i < heads * d; i++)
        x->factor[i * d + i % d] = 1;
    for (size_t i = 0; i < n; i++) {
        float *const c = x->centroid + i * d;
        for (size_t j = 0; j < d; j++)
            c[j] = (float)kvd_rng_normal(&r);
        const double length = kvd_tokens_length(c, d);
        for (size_t j = 0; j < d; j++)
            c[j] = (float)((double)c[j] / length);
    }
    memcpy(x->moved, x->centroid, n * d * sizeof *x->moved);
}

static int fits(const kvd_parameter_values *v, const kvd_method_setup *s, kvd_err *err)
{
    if (kvd_tokens_check_budgets(v->method, v, err) || kvd_tokens_check_budget(v, err))
        return -1;
    if (s->dims)
        return kvd_fail(err, "it looks up whole keys: leave out the method of the dims axis");
    return s->drawn ? 0 : kvd_calibration_fits(s, s->config->positions == KVD_POSITIONS_ROPE, err);
}

static int open(const kvd_parameter_values *v, const kvd_method_setup *s, void **self, kvd_err *err)
{
    const kvd_config *const c = s->config;
    a2ats *const x = kvd_pool_open(sizeof *x);
    if (!x)
        return kvd_no_memory(err, "a method", sizeof *x);
    x->v = v;
    x->config = c;
    x->size = (size_t)v->value[SIZE];
    x->d = (size_t)c->d_head;
    const size_t heads = (size_t)c->n_layers * (size_t)c->n_kv_heads;
    x->factor = kvd_pool_new(&x->pool, heads * x->d * x->d * sizeof *x->factor);
    x->moved = kvd_pool_new(&x->pool, heads * x->size * x->d * sizeof *x->moved);
    x->centroid = kvd_pool_new(&x->pool, heads * x->size * x->d * sizeof *x->centroid);
    int status = kvd_pool_check(&x->pool, "codebooks", err);
    if (!status && s->drawn)
        draw(x, heads, s->seed);
    else if (!status)
        status = calibrate(x, s, err);
    return kvd_pool_give(x, status != 0, self);
}

typedef struct {
    size_t n;
    uint16_t code[]; /* [n] centroid nearest to each token's key */
} state_of_head;

static size_t state_bytes(const void *self, size_t n)
{
    (void)self;
    return sizeof(state_of_head) + n * sizeof(uint16_t);
}

static double select_bits(const void *self, const void *state, const uint32_t *position, size_t n,
                          size_t d, size_t number_bits)
{
    (void)state;
    const a2ats *const x = self;
    (void)position, (void)d, (void)number_bits;
    return (double)n * ceil(log2((double)x->size));
}

static int choose(const void *self, void *state, const kvd_read_choice *c, uint8_t *read,
                  kvd_err *err)
{
    const a2ats *const x = self;
    state_of_head *const s = state;
    const size_t d = x->d, at = (size_t)(c->layer * x->config->n_kv_heads + c->kv_head),
                 sink = (size_t)x->v->value[SINK], local = (size_t)x->v->value[LOCAL],
                 end = c->n > local ? c->n - local : 0,
                 budget = kvd_tokens_budget(x->v->value[BUDGET], c->n);
    const float *const centroid = x->centroid + at * x->size * d;
    float *const row = malloc(3 * d * sizeof *row);
    double *const score = malloc((x->size + c->n) * sizeof *score), *const of_token =
                                                                        score + x->size;
    uint8_t *const level = malloc(c->n);
    int status = row && score && level ? 0 : kvd_no_memory(err, "scores", c->n * sizeof *score);
    for (; !status && s->n < c->n; s->n++) {
        memcpy(row, c->k + s->n * d, d * sizeof *row);
        turn(x->config, c->layer, -(double)c->position[s->n], row + 2 * d, row);
        times_factor(x, x->factor + at * d * d, row, 1, row + d);
        s->code[s->n] = (uint16_t)nearest(x->moved + at * x->size * d, x->size, d, row + d);
    }
    for (size_t i = sink; !status && i < end; i++)
        read[i] = 0;
    for (int j = 0; !status && sink < end && j < c->group; j++) {
        memcpy(row, c->q + (size_t)j * c->ldq, d * sizeof *row);
        turn(x->config, c->layer, x->v->value[RELATIVE] - (double)c->position[c->n - 1], row + d,
             row);
        for (size_t m = 0; m < x->size; m++) {
            score[m] = 0;
            for (size_t a = 0; a < d; a++)
                score[m] += (double)row[a] * (double)centroid[m * d + a];
        }
        for (size_t i = sink; i < end; i++)
            of_token[i] = score[s->code[i]];
        memset(level, KVD_LEVEL_HIGH, c->n);
        status = kvd_tokens_keep_top(of_token + sink, end - sink, budget, level + sink, err);
        for (size_t i = sink; i < end; i++)
            read[i] |= level[i] != KVD_LEVEL_DROPPED;
    }
    free(level);
    free(score);
    free(row);
    return status;
}

static kvd_read_rule read_rule(const kvd_parameter_values *v)
{
    return (kvd_read_rule){.budget = v->value[BUDGET],
                           .page = 1,
                           .ranking = KVD_READ_CODES,
                           .sink = (int32_t)v->value[SINK],
                           .newest = (int32_t)v->value[LOCAL]};
}

static kvd_read_codes read_codes(const void *self)
{
    const a2ats *const x = self;
    return (kvd_read_codes){.size = (int32_t)x->size,
                            .relative = (int32_t)x->v->value[RELATIVE],
                            .factor = x->factor,
                            .moved = x->moved,
                            .centroid = x->centroid};
}

const kvd_tokens_method kvd_tokens_a2ats = {
    .info = {.name = "a2ats",
             .summary = "every step reads the tokens whose quantised keys score highest",
             .parameter = parameters,
             .tradeoff = &(const kvd_tradeoff){"budget", 0.9, 0.02, true, NULL, 0, 0},
             .needs = KVD_NEEDS_ACTIVATIONS,
             .gpu = &kvd_gpu_selection},
    .drawn = true,
    .read_rule = read_rule,
    .read_codes = read_codes,
    .fits = fits,
    .open = open,
    .close = kvd_pool_close,
    .state_bytes = state_bytes,
    .select = choose,
    .select_bits = select_bits,
};
