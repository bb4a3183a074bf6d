#include "analysis/tokens.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static void add_heads(const kvd_attention_stats *s, kvd_a f, int layer, int heads, kvd_word *sum,
                      size_t bins)
{
    memset(sum, 0, bins * sizeof *sum);
    for (int h = 0; h < heads; h++) {
        const kvd_word *w = kvd_attention_stats_at(s, f, layer, h);
        for (size_t b = 0; b < bins; b++)
            sum[b].n += w[b].n;
    }
}

static void curve_of(kvd_a f, const kvd_word *histogram, double *to)
{
    for (int i = 0; i < KVD_N_CURVE; i++)
        to[i] = kvd_attention_stats_quantile(f, histogram, kvd_curve_level[i]);
}

static double decades(const double *curve)
{
    /* indices in curve[] of the quantiles 0.1 % and 99.9 % */
    enum { LOW = 1, HIGH = KVD_N_CURVE - 2 };
    return log10(curve[HIGH] / curve[LOW]);
}

static double extreme(const kvd_attention_stats *s, kvd_a f, int layer, int heads,
                      double (*pick)(double, double))
{
    double x = kvd_attention_stats_at(s, f, layer, 0)->x;
    for (int h = 1; h < heads; h++)
        x = pick(x, kvd_attention_stats_at(s, f, layer, h)->x);
    return x;
}

static int distributions(const kvd_attention_stats *s, kvd_tokens *t, kvd_err *err)
{
    const int heads = s->model.n_heads, kv = s->model.n_kv_heads;
    kvd_word *sum = malloc(KVD_SCORE_BINS * sizeof *sum);
    if (!sum)
        return kvd_no_memory(err, "a histogram", KVD_SCORE_BINS * sizeof *sum);
    for (int l = 0; l < s->n_layers; l++) {
        const size_t curve = (size_t)l * KVD_N_CURVE;
        double n = 0, total = 0, squares = 0;
        add_heads(s, KVD_A_SCORE_HISTOGRAM, l, heads, sum, KVD_SCORE_BINS);
        curve_of(KVD_A_SCORE_HISTOGRAM, sum, t->data[KVD_T_SCORE_CURVE] + curve);
        for (size_t b = 0; b < KVD_SCORE_BINS; b++)
            n += (double)sum[b].n;
        for (int h = 0; h < heads; h++) {
            total += kvd_attention_stats_at(s, KVD_A_SCORE_SUM, l, h)->x;
            squares += kvd_attention_stats_at(s, KVD_A_SCORE_SQUARES, l, h)->x;
        }
        t->data[KVD_T_SCORE_MEAN][l] = total / n;
        t->data[KVD_T_SCORE_SD][l] = sqrt(fmax(0, squares / n - total / n * (total / n)));
        t->data[KVD_T_SCORE_MIN][l] = extreme(s, KVD_A_SCORE_MIN, l, heads, fmin);
        t->data[KVD_T_SCORE_MAX][l] = extreme(s, KVD_A_SCORE_MAX, l, heads, fmax);

        add_heads(s, KVD_A_RECEIVED_HISTOGRAM, l, heads, sum, KVD_PROBABILITY_BINS);
        curve_of(KVD_A_RECEIVED_HISTOGRAM, sum, t->data[KVD_T_RECEIVED_CURVE] + curve);
        t->data[KVD_T_RECEIVED_DECADES][l] = decades(t->data[KVD_T_RECEIVED_CURVE] + curve);
        t->data[KVD_T_RECEIVED_MIN][l] = extreme(s, KVD_A_RECEIVED_MIN, l, heads, fmin);
        t->data[KVD_T_RECEIVED_MAX][l] = extreme(s, KVD_A_RECEIVED_MAX, l, heads, fmax);

        add_heads(s, KVD_A_VALUE_HISTOGRAM, l, kv, sum, KVD_NORM_BINS);
        curve_of(KVD_A_VALUE_HISTOGRAM, sum, t->data[KVD_T_VALUE_CURVE] + curve);
        t->data[KVD_T_VALUE_DECADES][l] = decades(t->data[KVD_T_VALUE_CURVE] + curve);
        t->data[KVD_T_VALUE_MIN][l] = extreme(s, KVD_A_VALUE_MIN, l, kv, fmin);
        t->data[KVD_T_VALUE_MAX][l] = extreme(s, KVD_A_VALUE_MAX, l, kv, fmax);
    }
    free(sum);
    return 0;
}

static void critical(const kvd_attention_stats *s, kvd_a from, int heads, kvd_tokens *t, kvd_t to)
{
    const double n = (double)s->n_requests;
    size_t i = 0;
    for (int level = 0; level < KVD_N_CRITICAL_LEVELS; level++)
        for (int l = 0; l < s->n_layers; l++)
            for (int h = 0; h < heads; h++, i++) {
                const double sum = (double)kvd_attention_stats_at(s, from, l, h)[level].n;
                const double squares = (double)kvd_attention_stats_at(s, from + 1, l, h)[level].n;
                t->data[to][i] = sum / n;
                t->data[to + 1][i] = n > 1 ? sqrt(fmax(0, (squares - sum * sum / n) / (n - 1))) : 0;
                t->data[to + 2][i] = (double)kvd_attention_stats_at(s, from + 2, l, h)[level].n;
                t->data[to + 3][i] = (double)kvd_attention_stats_at(s, from + 3, l, h)[level].n;
                t->data[to + 4][i] = kvd_attention_stats_at(s, from + 4, l, h)[level].x / n;
            }
}

typedef struct {
    double value;
    size_t token;
} ranked;

/* Orders by value, and equal values by token position, so that every machine chooses the same
 * tokens. */
static int rising(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    if (x->value != y->value)
        return x->value < y->value ? -1 : 1;
    return (x->token > y->token) - (x->token < y->token);
}

static double value_of(const kvd_attention_stats *s, size_t request, int layer, size_t n, size_t j,
                       kvd_ranking by)
{
#define KEPT(field) kvd_attention_stats_kept(s, KVD_A_KEPT_##field, request, layer)[j].x
    const size_t window = (size_t)kvd_attention_stats_at(s, KVD_A_WINDOW, layer, 0)->n;
    const size_t keys = window && j + 1 > window ? window : j + 1,
                 queries = window && n - j > window ? window : n - j;
    switch (by) {
    case KVD_RANK_SCORE:
        return KEPT(QUERY_SCORE);
    case KVD_RANK_SCORE_AS_KEY:
        return KEPT(KEY_SCORE);
    case KVD_RANK_DENOMINATOR:
        return KEPT(DENOMINATOR);
    case KVD_RANK_DENOMINATOR_PER_KEY:
        return KEPT(DENOMINATOR) - log((double)keys);
    case KVD_RANK_MASS:
        return KEPT(MASS);
    default:
        return KEPT(MASS) / (double)queries;
    }
#undef KEPT
}

typedef struct {
    const kvd_attention_stats *s;
    size_t k;      /* number of important tokens, and of unimportant tokens */
    ranked *order; /* [seq_len] tokens to sort */
    /* [2][n_layers][seq_len] 1 for tokens that are unimportant (set[0]) or important (set[1]) */
    uint8_t *set;
} sets;

static uint8_t *set_of(const sets *z, int which, int layer)
{
    return z->set + ((size_t)which * (size_t)z->s->n_layers + (size_t)layer) * z->s->seq_len;
}

static void find_sets(sets *z, size_t request, size_t n, kvd_ranking by)
{
    memset(z->set, 0, 2 * (size_t)z->s->n_layers * z->s->seq_len);
    for (int l = 0; l < z->s->n_layers; l++) {
        for (size_t j = 0; j < n; j++)
            z->order[j] = (ranked){value_of(z->s, request, l, n, j, by), j};
        qsort(z->order, n, sizeof *z->order, rising);
        for (size_t i = 0; i < z->k; i++) {
            set_of(z, 0, l)[z->order[i].token] = 1;
            set_of(z, 1, l)[z->order[n - 1 - i].token] = 1;
        }
    }
}

static double shared(const uint8_t *a, const uint8_t *b, size_t n, size_t k)
{
    size_t both = 0;
    for (size_t j = 0; j < n; j++)
        both += a[j] && b[j];
    return (double)both / (double)k;
}

static void resolve(double *sum, double *squares, size_t count, double n)
{
    for (size_t i = 0; i < count; i++) {
        const double mean = sum[i] / n;
        squares[i] = n > 1 ? sqrt(fmax(0, (squares[i] - n * mean * mean) / (n - 1))) : 0;
        sum[i] = fmin(mean, 1);
    }
}

static void overlaps(sets *z, kvd_tokens *t, kvd_ranking by)
{
    /* indices in t->data of the results for unimportant tokens and for important tokens */
    static const kvd_t to[2] = {KVD_T_UNIMPORTANT, KVD_T_IMPORTANT};
    const size_t n_layers = (size_t)z->s->n_layers, first = (size_t)by * n_layers * n_layers;
    for (size_t r = 0; r < z->s->n_kept; r++) {
        const size_t n = (size_t)z->s->word[z->s->at[KVD_A_KEPT_LENGTH] + r].n;
        const double wanted = floor(t->share * (double)n + 0.5);
        z->k = wanted < 1 ? 1 : (size_t)wanted;
        find_sets(z, r, n, by);
        for (int w = 0; w < 2; w++)
            for (size_t a = 0; a < n_layers; a++)
                for (size_t b = 0; b < n_layers; b++) {
                    const double x = shared(set_of(z, w, (int)a), set_of(z, w, (int)b), n, z->k);
                    t->data[to[w]][first + a * n_layers + b] += x;
                    t->data[to[w] + 1][first + a * n_layers + b] += x * x;
                }
    }
    for (int w = 0; w < 2; w++)
        resolve(t->data[to[w]] + first, t->data[to[w] + 1] + first, n_layers * n_layers,
                (double)z->s->n_kept);
}

static void group(kvd_tokens *t, kvd_ranking by)
{
    const size_t n = (size_t)t->n_layers;
    const double *low = t->data[KVD_T_UNIMPORTANT] + (size_t)by * n * n,
                 *high = t->data[KVD_T_IMPORTANT] + (size_t)by * n * n;
    double *number = t->data[KVD_T_GROUP] + (size_t)by * n;
    size_t first = 0;
    for (size_t l = 1; l < n; l++) {
        const bool joins =
            low[first * n + l] > t->group_overlap && high[first * n + l] > t->group_overlap;
        number[l] = number[l - 1] + (joins ? 0 : 1);
        first = joins ? first : l;
    }
}

int kvd_tokens_study(const kvd_attention_stats *s, double share, double group_overlap,
                     kvd_tokens *out, kvd_err *err)
{
    *out = (kvd_tokens){.model = s->model,
                        .n_tokens = s->n_tokens,
                        .n_requests = s->n_requests,
                        .n_kept = s->n_kept,
                        .seq_len = s->seq_len,
                        .first_layer = s->first_layer,
                        .n_layers = s->n_layers,
                        .share = share,
                        .group_overlap = group_overlap};
    memcpy(out->label, s->label, sizeof out->label);
    memcpy(out->corpus_hash, s->corpus_hash, sizeof out->corpus_hash);
    sets z = {.s = s,
              .order = malloc(s->seq_len * sizeof *z.order),
              .set = malloc(2 * (size_t)s->n_layers * s->seq_len)};
    int status = z.order && z.set
                     ? 0
                     : kvd_no_memory(err, "sets of tokens", 2 * (size_t)s->n_layers * s->seq_len);
    if (!status)
        status = kvd_status(kvd_tokens_alloc(out, err) || distributions(s, out, err));
    for (int by = 0; by < KVD_N_RANKINGS && !status; by++) {
        overlaps(&z, out, (kvd_ranking)by);
        group(out, (kvd_ranking)by);
    }
    if (!status) {
        critical(s, KVD_A_LAYER_COUNT, 1, out, KVD_T_LAYER_MEAN);
        critical(s, KVD_A_KV_COUNT, s->model.n_kv_heads, out, KVD_T_KV_MEAN);
        critical(s, KVD_A_HEAD_COUNT, s->model.n_heads, out, KVD_T_HEAD_MEAN);
    }
    free(z.order);
    free(z.set);
    if (status)
        kvd_tokens_release(out);
    return status;
}
