#include "formats/attention.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/files/fields.h"

const kvd_schema kvd_schema_attention = {
    "attention", 1, "Scores, probabilities and the mass that tokens receive, per layer and head"};

const double kvd_critical_level[KVD_N_CRITICAL_LEVELS] = {0.9, 0.95, 0.99};
const double kvd_attention_quantile[KVD_N_QUANTILES] = {0.001, 0.01, 0.05, 0.25, 0.5,
                                                        0.75,  0.95, 0.99, 0.999};

static size_t bin(double x, double first, double per_unit, size_t n)
{
    assert(!isnan(x));
    const double at = floor((x - first) * per_unit);
    return at < 0 ? 0 : at >= (double)(n - 2) ? n - 1 : 1 + (size_t)at;
}

size_t kvd_score_bin(double score)
{
    return bin(score, -KVD_SCORE_LIMIT, KVD_SCORE_PER_UNIT, KVD_SCORE_BINS);
}

size_t kvd_probability_bin(double log10_p)
{
    return bin(log10_p, -KVD_PROBABILITY_DECADES, KVD_LOG_PER_DECADE, KVD_PROBABILITY_BINS);
}

size_t kvd_norm_bin(double log10_norm)
{
    return bin(log10_norm, -KVD_NORM_DECADES, KVD_LOG_PER_DECADE, KVD_NORM_BINS);
}

typedef enum {
    END,
    LAYER,
    HEAD,
    KV_HEAD,
    SCORE_BIN,
    PROBABILITY_BIN,
    NORM_BIN,
    LEVEL,
    POSITION,
    REQUEST
} axis;
static const char *const axis_name[] = {"",    "layer", "head",  "kv_head",  "bin",
                                        "bin", "bin",   "level", "position", "request"};

typedef enum { SUM, MIN, MAX, SAME, BEHIND } combine;

typedef struct {
    const char *path, *long_name;
    bool count; /* values are uint64 if true, float64 if false */
    combine how;
    const axis *axes; /* [4], ends with END */
} field;

static const axis by_layer[4] = {LAYER}, by_position[4] = {POSITION},
                  by_layer_head_score_bin[4] = {LAYER, HEAD, SCORE_BIN},
                  by_layer_head[4] = {LAYER, HEAD},
                  by_layer_head_probability_bin[4] = {LAYER, HEAD, PROBABILITY_BIN},
                  by_layer_head_position[4] = {LAYER, HEAD, POSITION},
                  by_layer_kv_head_norm_bin[4] = {LAYER, KV_HEAD, NORM_BIN},
                  by_layer_kv_head[4] = {LAYER, KV_HEAD}, by_request[4] = {REQUEST},
                  by_request_layer_position[4] = {REQUEST, LAYER, POSITION},
                  by_layer_head_level[4] = {LAYER, HEAD, LEVEL},
                  by_layer_kv_head_level[4] = {LAYER, KV_HEAD, LEVEL},
                  by_layer_level[4] = {LAYER, LEVEL};

#define CRITICAL(group, by, what)                                                                  \
    {"/critical/" group "/count_sum",                                                              \
     "tokens that hold a level of " what ", summed over requests", true, SUM, by},                 \
        {"/critical/" group "/count_sum_squares", "the squares of these counts, summed", true,     \
         SUM, by},                                                                                 \
        {"/critical/" group "/count_min", "the smallest of these counts", true, MIN, by},          \
        {"/critical/" group "/count_max", "the largest of these counts", true, MAX, by},           \
    {                                                                                              \
        "/critical/" group "/share_sum", "these counts over the length of the request, summed",    \
            false, SUM, by                                                                         \
    }

static const field fields[KVD_N_A] = {
    {"/window", "keys that a query sees, itself included; 0: all up to it", true, SAME, by_layer},
    {"/requests/at_position", "requests that have this position", true, SUM, by_position},
    {"/scores/histogram", "scores per bin of /bins/score", true, SUM, by_layer_head_score_bin},
    {"/scores/sum", "sum of the scores", false, SUM, by_layer_head},
    {"/scores/sum_squares", "sum of their squares", false, SUM, by_layer_head},
    {"/scores/min", "the smallest score", false, MIN, by_layer_head},
    {"/scores/max", "the largest score", false, MAX, by_layer_head},
    {"/probabilities/histogram", "probabilities per bin of /bins/probability", true, SUM,
     by_layer_head_probability_bin},
    {"/log_denominators/sum", "sum over rows of ln sum_k exp(score)", false, SUM, by_layer_head},
    {"/log_denominators/sum_squares", "sum of their squares", false, SUM, by_layer_head},
    {"/log_denominators/min", "the smallest", false, MIN, by_layer_head},
    {"/log_denominators/max", "the largest", false, MAX, by_layer_head},
    {"/received/histogram",
     "tokens per bin of /bins/probability: mean probability that a token gets from the later ones that see "
     "it",
     true, SUM, by_layer_head_probability_bin},
    {"/received/min", "the smallest of these means", false, MIN, by_layer_head},
    {"/received/max", "the largest of these means", false, MAX, by_layer_head},
    {"/received/mass_at_position",
     "mass that the token at a position receives, its own included, summed over requests", false,
     SUM, by_layer_head_position},
    {"/values/histogram", "norms of value vectors per bin of /bins/norm", true, SUM,
     by_layer_kv_head_norm_bin},
    {"/values/sum", "sum of the norms", false, SUM, by_layer_kv_head},
    {"/values/sum_squares", "sum of their squares", false, SUM, by_layer_kv_head},
    {"/values/min", "the smallest norm", false, MIN, by_layer_kv_head},
    {"/values/max", "the largest norm", false, MAX, by_layer_kv_head},
    CRITICAL("head", by_layer_head_level, "a head's mass"),
    CRITICAL("kv_head", by_layer_kv_head_level, "the mass of a KV head's query heads"),
    CRITICAL("layer", by_layer_level, "the mass of all heads of a layer"),
    {"/requests/length", "tokens of each request that is kept", true, BEHIND, by_request},
    {"/requests/mass", "mass that each token receives from all heads; 0 after the last token",
     false, BEHIND, by_request_layer_position},
    {"/requests/log_denominator",
     "ln of the softmax denominators of each row, summed over heads; 0 after the last token", false,
     BEHIND, by_request_layer_position},
    {"/requests/score_as_query",
     "mean score over heads and the keys that a token sees; 0 after the last token", false, BEHIND,
     by_request_layer_position},
    {"/requests/score_as_key",
     "mean score over heads and the queries that see a token; 0 after the last token", false,
     BEHIND, by_request_layer_position},
};

static size_t length(const kvd_attention_stats *s, axis a)
{
    switch (a) {
    case LAYER:
        return (size_t)s->n_layers;
    case HEAD:
        return (size_t)s->model.n_heads;
    case KV_HEAD:
        return (size_t)s->model.n_kv_heads;
    case SCORE_BIN:
        return KVD_SCORE_BINS;
    case PROBABILITY_BIN:
        return KVD_PROBABILITY_BINS;
    case NORM_BIN:
        return KVD_NORM_BINS;
    case LEVEL:
        return KVD_N_CRITICAL_LEVELS;
    case POSITION:
        return s->seq_len;
    case REQUEST:
        return s->n_kept;
    case END:
        break;
    }
    return 1;
}

/* Sets *n to the number of values of statistic f. Returns -1 on overflow, because lengths of axes
 * may come from a damaged file. */
static int count_of(const kvd_attention_stats *s, kvd_a f, size_t *n)
{
    *n = 1;
    for (int i = 0; i < 4 && fields[f].axes[i]; i++)
        if (__builtin_mul_overflow(*n, length(s, fields[f].axes[i]), n))
            return -1;
    return 0;
}

size_t kvd_attention_stats_count(const kvd_attention_stats *s, kvd_a f)
{
    size_t n;
    return count_of(s, f, &n) ? 0 : n;
}

kvd_word *kvd_attention_stats_at(const kvd_attention_stats *s, kvd_a f, int layer, int head)
{
    const axis *a = fields[f].axes;
    assert(a[0] == LAYER && layer >= 0 && layer < s->n_layers);
    const bool heads = a[1] == HEAD || a[1] == KV_HEAD;
    const size_t n_heads = heads ? length(s, a[1]) : 1, last = length(s, a[heads ? 2 : 1]);
    assert(head >= 0 && (size_t)head < n_heads);
    return s->word + s->at[f] + ((size_t)layer * n_heads + (size_t)head) * last;
}

kvd_word *kvd_attention_stats_kept(const kvd_attention_stats *s, kvd_a f, size_t request, int layer)
{
    assert(fields[f].axes[0] == REQUEST && fields[f].axes[1] == LAYER && request < s->n_kept);
    assert(layer >= 0 && layer < s->n_layers);
    return s->word + s->at[f] + (request * (size_t)s->n_layers + (size_t)layer) * s->seq_len;
}

static void set_empty(kvd_attention_stats *s, kvd_a f)
{
    const size_t n = kvd_attention_stats_count(s, f);
    const bool least = fields[f].how == MIN;
    kvd_word *w = s->word + s->at[f];
    if (!least && fields[f].how != MAX)
        return;
    for (size_t i = 0; i < n; i++) {
        if (!fields[f].count)
            w[i].x = least ? INFINITY : -INFINITY;
        else if (least)
            w[i].n = UINT64_MAX;
    }
}

int kvd_attention_stats_alloc(kvd_attention_stats *s, kvd_err *err)
{
    s->word = NULL;
    s->n_words = 0;
    for (int f = 0; f < KVD_N_A; f++) {
        size_t n;
        s->at[f] = s->n_words;
        if (count_of(s, (kvd_a)f, &n) || __builtin_add_overflow(s->n_words, n, &s->n_words) ||
            s->n_words > SIZE_MAX / sizeof *s->word / 2)
            return kvd_fail(
                err, "attention statistics of %d layers, %d heads, %zu positions are too large",
                s->n_layers, s->model.n_heads, s->seq_len);
    }
    if (!(s->word = calloc(s->n_words, sizeof *s->word)))
        return kvd_no_memory(err, "attention statistics", s->n_words * sizeof *s->word);
    for (int f = 0; f < KVD_N_A; f++)
        set_empty(s, (kvd_a)f);
    return 0;
}

void kvd_attention_stats_release(kvd_attention_stats *s)
{
    free(s->word);
    s->word = NULL;
    s->n_words = 0;
}

typedef struct {
    double first, per_unit;
    size_t n;
    bool logarithmic;
} scale;

static scale scale_of(axis a)
{
    if (a == SCORE_BIN)
        return (scale){-KVD_SCORE_LIMIT, KVD_SCORE_PER_UNIT, KVD_SCORE_BINS - 1, false};
    if (a == PROBABILITY_BIN)
        return (scale){-KVD_PROBABILITY_DECADES, KVD_LOG_PER_DECADE, KVD_PROBABILITY_BINS - 1,
                       true};
    return (scale){-KVD_NORM_DECADES, KVD_LOG_PER_DECADE, KVD_NORM_BINS - 1, true};
}

static axis bins_of(kvd_a f)
{
    for (int i = 0; i < 4; i++)
        if (fields[f].axes[i] >= SCORE_BIN && fields[f].axes[i] <= NORM_BIN)
            return fields[f].axes[i];
    return END;
}

/* Returns the value at bin edge number x of a histogram. A fractional x is between two edges. */
static double edge(scale s, double x)
{
    const double at = s.first + x / s.per_unit;
    return s.logarithmic ? pow(10, at) : at;
}

double kvd_attention_stats_quantile(kvd_a f, const kvd_word *h, double q)
{
    assert(bins_of(f) != END);
    const scale s = scale_of(bins_of(f));
    double total = 0, below = 0;
    for (size_t i = 0; i <= s.n; i++)
        total += (double)h[i].n;
    if (total <= 0)
        return 0;
    for (size_t i = 0; i <= s.n; i++) {
        const double here = (double)h[i].n;
        if (here > 0 && below + here >= q * total) {
            const double part = fmax(0, (q * total - below) / here);
            return i == 0     ? edge(s, 0)
                   : i == s.n ? edge(s, (double)(s.n - 1))
                              : edge(s, (double)(i - 1) + part);
        }
        below += here;
    }
    return edge(s, (double)(s.n - 1));
}

static int shape(const kvd_attention_stats *s, kvd_a f, hsize_t *dims)
{
    int rank = 0;
    for (; rank < 4 && fields[f].axes[rank]; rank++)
        dims[rank] = (hsize_t)length(s, fields[f].axes[rank]);
    return rank;
}

static int write_edges(kvd_h5 *f, const char *path, axis a, kvd_err *err)
{
    double e[KVD_SCORE_BINS];
    const scale s = scale_of(a);
    for (size_t i = 0; i < s.n; i++)
        e[i] = edge(s, (double)i);
    return kvd_field_write_reals(
        f, path, "edges of the bins: bin 0 is below the first edge, bin i from edge i-1 to edge i",
        "edge", e, s.n, err);
}

static int write_quantiles(kvd_h5 *f, const kvd_attention_stats *s, kvd_a field_of,
                           const char *path, const char *long_name, kvd_err *err)
{
    const bool kv = fields[field_of].axes[1] == KV_HEAD;
    const size_t heads = length(s, fields[field_of].axes[1]),
                 n = (size_t)s->n_layers * heads * KVD_N_QUANTILES;
    double *q = malloc(n * sizeof *q);
    if (!q)
        return kvd_no_memory(err, "quantiles", n * sizeof *q);
    for (size_t i = 0; i < n; i++) {
        const size_t head = i / KVD_N_QUANTILES;
        q[i] = kvd_attention_stats_quantile(
            field_of, kvd_attention_stats_at(s, field_of, (int)(head / heads), (int)(head % heads)),
            kvd_attention_quantile[i % KVD_N_QUANTILES]);
    }
    const kvd_h5_spec spec = {path,
                              long_name,
                              "1",
                              H5T_IEEE_F64LE,
                              3,
                              {(hsize_t)s->n_layers, heads, KVD_N_QUANTILES},
                              {"layer", kv ? "kv_head" : "head", "quantile"}};
    const int status = kvd_h5_write(f, &spec, H5T_NATIVE_DOUBLE, q, err);
    free(q);
    return status;
}

static int write_lists(kvd_h5 *f, const kvd_attention_stats *s, kvd_err *err)
{
    return kvd_status(
        write_edges(f, "/bins/score", SCORE_BIN, err) ||
        write_edges(f, "/bins/probability", PROBABILITY_BIN, err) ||
        write_edges(f, "/bins/norm", NORM_BIN, err) ||
        kvd_field_write_reals(f, "/levels", "parts of the mass that critical tokens hold", "level",
                              kvd_critical_level, KVD_N_CRITICAL_LEVELS, err) ||
        kvd_field_write_reals(f, "/quantile_levels",
                              "probabilities of the quantiles in the datasets quantiles",
                              "quantile", kvd_attention_quantile, KVD_N_QUANTILES, err) ||
        write_quantiles(f, s, KVD_A_SCORE_HISTOGRAM, "/scores/quantiles",
                        "quantiles of the scores, from the bins: to 1/8", err) ||
        write_quantiles(f, s, KVD_A_PROBABILITY_HISTOGRAM, "/probabilities/quantiles",
                        "quantiles of the probabilities, from the bins: to 12 %", err));
}

int kvd_attention_stats_write(kvd_h5 *f, const kvd_attention_stats *s, kvd_err *err)
{
    if (kvd_model_info_write(f, &s->model, err) ||
        kvd_h5_put_text(f, "/", "label", s->label, err) ||
        kvd_field_write_corpus_hash(f, s->corpus_hash, err) ||
        kvd_h5_put_int(f, "/", "n_requests", (int64_t)s->n_requests, err) ||
        kvd_h5_put_int(f, "/", "seq_len", (int64_t)s->seq_len, err) ||
        kvd_h5_put_int(f, "/", "first_layer", s->first_layer, err) ||
        kvd_field_write_tokens(f, "tokens that the statistics run over", s->n_tokens, err) ||
        write_lists(f, s, err))
        return -1;
    for (int i = 0; i < KVD_N_A; i++) {
        kvd_h5_spec spec = {.path = fields[i].path,
                            .long_name = fields[i].long_name,
                            .units = "1",
                            .type = fields[i].count ? H5T_STD_U64LE : H5T_IEEE_F64LE};
        spec.rank = shape(s, (kvd_a)i, spec.dims);
        for (int k = 0; k < spec.rank; k++)
            spec.axes[k] = axis_name[fields[i].axes[k]];
        if (kvd_h5_write(f, &spec, fields[i].count ? H5T_NATIVE_UINT64 : H5T_NATIVE_DOUBLE,
                         s->word + s->at[i], err))
            return -1;
    }
    return 0;
}

static int describe(kvd_h5 *f, kvd_attention_stats *s, kvd_err *err)
{
    hsize_t kept;
    if (kvd_model_info_read(f, &s->model, err) ||
        kvd_field_text(f, "/", "label", s->label, sizeof s->label, err) ||
        kvd_field_corpus_hash(f, s->corpus_hash, err) ||
        kvd_field_layers(f, fields[KVD_A_WINDOW].path, 1, s->model.n_layers, &s->n_layers, err) ||
        kvd_h5_shape(f, fields[KVD_A_KEPT_LENGTH].path, 1, &kept, err) ||
        kvd_field_tokens(f, 2, &s->n_tokens, err) ||
        kvd_field_small(f, "/", "first_layer", 0, s->model.n_layers - s->n_layers, &s->first_layer,
                        err) ||
        kvd_field_size(f, "/", "n_requests", 1, s->n_tokens / 2, &s->n_requests, err) ||
        kvd_field_size(f, "/", "seq_len", 2, (size_t)s->model.max_positions, &s->seq_len, err))
        return -1;
    if (kept < 1 || kept > (hsize_t)s->n_requests)
        return kvd_fail(err, "'%s': %llu requests are kept, of %zu", f->path,
                        (unsigned long long)kept, s->n_requests);
    s->n_kept = (size_t)kept;
    if ((s->n_tokens - 1) / s->n_requests >= s->seq_len)
        return kvd_fail(err, "'%s': %zu tokens do not fit into %zu requests of at most %zu",
                        f->path, s->n_tokens, s->n_requests, s->seq_len);
    return 0;
}

static int check_edges(kvd_h5 *f, const char *path, axis a, kvd_err *err)
{
    double e[KVD_SCORE_BINS];
    const scale s = scale_of(a);
    const hsize_t n = s.n;
    if (kvd_h5_read_finite(f, path, 1, &n, e, err))
        return -1;
    for (size_t i = 0; i < s.n; i++)
        if (fabs(e[i] - edge(s, (double)i)) > 1e-12 * fabs(e[i]))
            return kvd_fail(err, "'%s': %s[%zu] is %g, should be %g", f->path, path, i, e[i],
                            edge(s, (double)i));
    return 0;
}

static int check_levels(kvd_h5 *f, kvd_err *err)
{
    double level[KVD_N_CRITICAL_LEVELS];
    const hsize_t n = KVD_N_CRITICAL_LEVELS;
    if (kvd_h5_read_finite(f, "/levels", 1, &n, level, err))
        return -1;
    for (int i = 0; i < KVD_N_CRITICAL_LEVELS; i++)
        if (level[i] != kvd_critical_level[i])
            return kvd_fail(err, "'%s': /levels[%d] is %g, should be %g", f->path, i, level[i],
                            kvd_critical_level[i]);
    return 0;
}

static int check_totals(const char *path, const kvd_attention_stats *s, kvd_a field_of,
                        uint64_t want, kvd_err *err)
{
    const size_t bins = length(s, bins_of(field_of)),
                 n = kvd_attention_stats_count(s, field_of) / bins;
    const size_t per_layer = length(s, fields[field_of].axes[1]);
    for (size_t i = 0; i < n; i++) {
        const kvd_word *h = s->word + s->at[field_of] + i * bins;
        uint64_t total = 0;
        for (size_t b = 0; b < bins; b++)
            if (__builtin_add_overflow(total, h[b].n, &total))
                return kvd_fail(err, "'%s': %s[%zu][%zu] overflows", path, fields[field_of].path,
                                i / per_layer, i % per_layer);
        if (total != want)
            return kvd_fail(err, "'%s': %s[%zu][%zu] holds %llu values, should hold %llu", path,
                            fields[field_of].path, i / per_layer, i % per_layer,
                            (unsigned long long)total, (unsigned long long)want);
    }
    return 0;
}

/* Fails if the sum, minimum and maximum of a token count over all texts contradict each other.
 * `first`: field that holds the sum. */
static int check_critical(const char *path, const kvd_attention_stats *s, kvd_a first, kvd_err *err)
{
    const size_t n = kvd_attention_stats_count(s, first);
    const kvd_word *sum = s->word + s->at[first], *squares = s->word + s->at[first + 1],
                   *least = s->word + s->at[first + 2], *most = s->word + s->at[first + 3],
                   *share = s->word + s->at[first + 4];
    const double requests = (double)s->n_requests;
    for (size_t i = 0; i < n; i++) {
        const double mean = (double)sum[i].n / requests;
        if (least[i].n < 1 || least[i].n > most[i].n || most[i].n > s->seq_len ||
            mean < (double)least[i].n || mean > (double)most[i].n ||
            (double)squares[i].n < mean * mean * requests * (1 - 1e-9) ||
            (double)squares[i].n > (double)sum[i].n * (double)most[i].n * (1 + 1e-9) ||
            share[i].x <= 0 || share[i].x > requests * (1 + 1e-9))
            return kvd_fail(
                err,
                "'%s': %s and the other statistics of this kind cannot be of %zu requests of at most %zu tokens",
                path, fields[first].path, s->n_requests, s->seq_len);
    }
    return 0;
}

static int check_range(const char *path, const kvd_attention_stats *s, kvd_a lo, kvd_a hi,
                       kvd_err *err)
{
    const size_t n = kvd_attention_stats_count(s, lo);
    for (size_t i = 0; i < n; i++)
        if (s->word[s->at[lo] + i].x > s->word[s->at[hi] + i].x)
            return kvd_fail(err, "'%s': %s is %g where %s is %g", path, fields[lo].path,
                            s->word[s->at[lo] + i].x, fields[hi].path, s->word[s->at[hi] + i].x);
    return 0;
}

static int check_requests(const char *path, const kvd_attention_stats *s, kvd_err *err)
{
    const kvd_word *at = s->word + s->at[KVD_A_REQUESTS_AT],
                   *len = s->word + s->at[KVD_A_KEPT_LENGTH];
    uint64_t total = 0, before = s->n_requests;
    for (size_t i = 0; i < s->seq_len; i++) {
        if (at[i].n > before)
            return kvd_fail(err, "'%s': /requests/at_position rises at %zu", path, i);
        before = at[i].n;
        /* The number of texts that have a token at position i, summed over i, must be the number of
         * all tokens. */
        total += at[i].n;
    }
    if (at[0].n != s->n_requests || total != s->n_tokens)
        return kvd_fail(
            err,
            "'%s': /requests/at_position gives %llu requests of %llu tokens, should be %zu of %zu",
            path, (unsigned long long)at[0].n, (unsigned long long)total, s->n_requests,
            s->n_tokens);
    for (size_t i = 0; i < s->n_kept; i++)
        if (len[i].n < 2 || len[i].n > s->seq_len)
            return kvd_fail(err, "'%s': /requests/length[%zu] is %llu", path, i,
                            (unsigned long long)len[i].n);
    return 0;
}

/* Returns the number of query-key pairs that the mask of a layer allows, over all requests. */
static uint64_t pairs(const kvd_attention_stats *s, int layer)
{
    const uint64_t window = s->word[s->at[KVD_A_WINDOW] + (size_t)layer].n;
    uint64_t n = 0;
    for (size_t i = 0; i < s->seq_len; i++)
        n += s->word[s->at[KVD_A_REQUESTS_AT] + i].n * (window && window < i + 1 ? window : i + 1);
    return n;
}

static int check(const char *path, const kvd_attention_stats *s, kvd_err *err)
{
    static const kvd_a range[][2] = {{KVD_A_SCORE_MIN, KVD_A_SCORE_MAX},
                                     {KVD_A_DENOMINATOR_MIN, KVD_A_DENOMINATOR_MAX},
                                     {KVD_A_RECEIVED_MIN, KVD_A_RECEIVED_MAX},
                                     {KVD_A_VALUE_MIN, KVD_A_VALUE_MAX}};
    if (check_requests(path, s, err))
        return -1;
    for (size_t i = 0; i < sizeof range / sizeof *range; i++)
        if (check_range(path, s, range[i][0], range[i][1], err))
            return -1;
    for (kvd_a f = KVD_A_SCORE_HISTOGRAM; f <= KVD_A_PROBABILITY_HISTOGRAM;
         f = f == KVD_A_SCORE_HISTOGRAM ? KVD_A_PROBABILITY_HISTOGRAM : KVD_N_A)
        for (int l = 0; l < s->n_layers; l++) {
            /* copy of *s that is restricted to layer l */
            kvd_attention_stats one = *s;
            one.n_layers = 1;
            one.at[f] = s->at[f] + (size_t)l * kvd_attention_stats_count(&one, f);
            if (check_totals(path, &one, f, pairs(s, l), err))
                return kvd_in(err, "layer %d", s->first_layer + l);
        }
    return kvd_status(
        check_totals(path, s, KVD_A_VALUE_HISTOGRAM, s->n_tokens, err) ||
        check_totals(path, s, KVD_A_RECEIVED_HISTOGRAM, s->n_tokens - s->n_requests, err) ||
        check_critical(path, s, KVD_A_HEAD_COUNT, err) ||
        check_critical(path, s, KVD_A_KV_COUNT, err) ||
        check_critical(path, s, KVD_A_LAYER_COUNT, err));
}

static int read_fields(kvd_h5 *f, kvd_attention_stats *s, kvd_err *err)
{
    hsize_t dims[KVD_MAX_RANK];
    /* Checks shapes first, because a damaged file may announce any size. */
    for (int i = 0; i < KVD_N_A; i++)
        if (kvd_field_shape(f, fields[i].path, shape(s, (kvd_a)i, dims), dims, err))
            return -1;
    if (kvd_attention_stats_alloc(s, err))
        return kvd_in(err, "'%s'", f->path);
    for (int i = 0; i < KVD_N_A; i++) {
        const int rank = shape(s, (kvd_a)i, dims);
        kvd_word *to = s->word + s->at[i];
        if (fields[i].count ? kvd_h5_read(f, fields[i].path, rank, dims, H5T_NATIVE_UINT64, to, err)
                            : kvd_h5_read_finite(f, fields[i].path, rank, dims, &to->x, err))
            return -1;
    }
    return 0;
}

int kvd_attention_stats_load(kvd_attention_stats *s, const char *path, kvd_err *err)
{
    kvd_h5 f = {.id = H5I_INVALID_HID};
    memset(s, 0, sizeof *s);
    if (kvd_h5_open(&f, path, &kvd_schema_attention, err))
        return -1;
    const int status = describe(&f, s, err) || check_edges(&f, "/bins/score", SCORE_BIN, err) ||
                       check_edges(&f, "/bins/probability", PROBABILITY_BIN, err) ||
                       check_edges(&f, "/bins/norm", NORM_BIN, err) || check_levels(&f, err) ||
                       read_fields(&f, s, err) || check(path, s, err);
    if (status)
        kvd_attention_stats_release(s);
    kvd_h5_close(&f, false);
    return kvd_status(status);
}

static kvd_word combined(const field *f, kvd_word a, kvd_word b)
{
    const bool less = f->count ? b.n < a.n : b.x < a.x;
    switch (f->how) {
    case SUM:
        if (f->count)
            a.n += b.n;
        else
            a.x += b.x;
        return a;
    case MIN:
        return less ? b : a;
    case MAX:
        return less ? a : b;
    case SAME:
    case BEHIND:
        break;
    }
    return a;
}

int kvd_attention_stats_add(kvd_attention_stats *sum, const char *sum_path,
                            const kvd_attention_stats *other, const char *other_path, kvd_err *err)
{
    if (kvd_model_info_same(&sum->model, sum_path, &other->model, other_path, err))
        return -1;
    if (sum->first_layer != other->first_layer || sum->n_layers != other->n_layers)
        return kvd_fail(err, "'%s' and '%s' have different layers: %d-%d and %d-%d", sum_path,
                        other_path, sum->first_layer, sum->first_layer + sum->n_layers - 1,
                        other->first_layer, other->first_layer + other->n_layers - 1);
    if (sum->seq_len != other->seq_len)
        return kvd_fail(
            err,
            "'%s' and '%s' have different seq_len: %zu and %zu; how many tokens hold the mass depends on it",
            sum_path, other_path, sum->seq_len, other->seq_len);
    kvd_attention_stats all = *sum;
    all.n_kept += other->n_kept;
    all.n_tokens += other->n_tokens;
    all.n_requests += other->n_requests;
    if (kvd_attention_stats_alloc(&all, err))
        return -1;
    for (int f = 0; f < KVD_N_A; f++) {
        const size_t n = kvd_attention_stats_count(sum, (kvd_a)f),
                     m = kvd_attention_stats_count(other, (kvd_a)f);
        kvd_word *to = all.word + all.at[f];
        const kvd_word *a = sum->word + sum->at[f], *b = other->word + other->at[f];
        if (fields[f].how == BEHIND) {
            memcpy(to, a, n * sizeof *to);
            memcpy(to + n, b, m * sizeof *to);
            continue;
        }
        for (size_t i = 0; i < n; i++)
            to[i] = combined(&fields[f], a[i], b[i]);
    }
    kvd_field_add_hash(all.corpus_hash, sizeof all.corpus_hash, other->corpus_hash);
    kvd_field_add_label(all.label, sizeof all.label, other->label);
    kvd_attention_stats_release(sum);
    *sum = all;
    return 0;
}
