#include "formats/tokens.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/files/fields.h"

const kvd_schema kvd_schema_tokens = {
    "tokens", 1, "Which tokens matter: scores, overlaps between layers, critical tokens"};

const char *const kvd_ranking_name[KVD_N_RANKINGS] = {
    "score", "score-as-key", "denominator", "denominator-per-key", "mass", "mass-per-query"};

const double kvd_curve_level[KVD_N_CURVE] = {0.0001, 0.001, 0.01, 0.02,  0.05,  0.1, 0.2,
                                             0.3,    0.4,   0.5,  0.6,   0.7,   0.8, 0.9,
                                             0.95,   0.98,  0.99, 0.999, 0.9999};

typedef enum { END, LAYER, HEAD, KV_HEAD, LEVEL, QUANTILE, MEASURE } axis;
static const char *const axis_name[] = {"",      "layer",    "head",   "kv_head",
                                        "level", "quantile", "measure"};

/* range of allowed values: any number (ANY), 0 to 1 (PART), at least 0 (POSITIVE), a number of
 * tokens (COUNT), or the index of a group of layers (GROUP) */
typedef enum { ANY, PART, POSITIVE, COUNT, GROUP } domain;

typedef struct {
    const char *path, *long_name, *units;
    domain in;
    const axis *axes; /* [4], ends with END */
} field;

static const axis by_layer[4] = {LAYER}, by_layer_quantile[4] = {LAYER, QUANTILE},
                  by_measure_layer_layer[4] = {MEASURE, LAYER, LAYER},
                  by_measure_layer[4] = {MEASURE, LAYER}, by_level_layer[4] = {LEVEL, LAYER},
                  by_level_layer_kv_head[4] = {LEVEL, LAYER, KV_HEAD},
                  by_level_layer_head[4] = {LEVEL, LAYER, HEAD};

#define CRITICAL(group, by, what)                                                                  \
    {"/critical/" group "/mean", "tokens that hold a level of " what ": mean over requests",       \
     "token", COUNT, by},                                                                          \
        {"/critical/" group "/sd", "their standard deviation over requests", "token", POSITIVE,    \
         by},                                                                                      \
        {"/critical/" group "/min", "the fewest in a request", "token", COUNT, by},                \
        {"/critical/" group "/max", "the most in a request", "token", COUNT, by},                  \
    {                                                                                              \
        "/critical/" group "/share", "mean over requests of their part of the request's tokens",   \
            "1", PART, by                                                                          \
    }

static const field fields[KVD_N_T] = {
    {"/scores/min", "smallest score of a layer", "1", ANY, by_layer},
    {"/scores/max", "largest score of a layer", "1", ANY, by_layer},
    {"/scores/mean", "mean score", "1", ANY, by_layer},
    {"/scores/sd", "standard deviation of the scores", "1", POSITIVE, by_layer},
    {"/scores/quantiles", "quantiles of the scores of all heads: to 1/8", "1", ANY,
     by_layer_quantile},
    {"/overlap/unimportant",
     "part of the lowest tokens that two layers share: mean over the requests kept", "1", PART,
     by_measure_layer_layer},
    {"/overlap/unimportant_sd", "its standard deviation over requests", "1", POSITIVE,
     by_measure_layer_layer},
    {"/overlap/important",
     "part of the highest tokens that two layers share: mean over the requests kept", "1", PART,
     by_measure_layer_layer},
    {"/overlap/important_sd", "its standard deviation over requests", "1", POSITIVE,
     by_measure_layer_layer},
    {"/overlap/group", "group of layers that share both sets with the group's first layer", "1",
     GROUP, by_measure_layer},
    {"/received/min", "smallest mean probability that a token gets from later ones, any head", "1",
     PART, by_layer},
    {"/received/max", "the largest", "1", PART, by_layer},
    {"/received/quantiles", "its quantiles over tokens and heads: to 12 %", "1", PART,
     by_layer_quantile},
    {"/received/decades", "log10 of its 99.9 % over its 0.1 % quantile", "1", POSITIVE, by_layer},
    {"/values/min", "smallest norm of a value vector, any KV head", "1", POSITIVE, by_layer},
    {"/values/max", "the largest", "1", POSITIVE, by_layer},
    {"/values/quantiles", "its quantiles over tokens and KV heads: to 12 %", "1", POSITIVE,
     by_layer_quantile},
    {"/values/decades", "log10 of its 99.9 % over its 0.1 % quantile", "1", POSITIVE, by_layer},
    CRITICAL("layer", by_level_layer, "the mass of all heads"),
    CRITICAL("kv_head", by_level_layer_kv_head, "the mass of a KV head's query heads"),
    CRITICAL("head", by_level_layer_head, "a head's mass"),
};

static size_t length(const kvd_tokens *t, axis a)
{
    switch (a) {
    case LAYER:
        return (size_t)t->n_layers;
    case HEAD:
        return (size_t)t->model.n_heads;
    case KV_HEAD:
        return (size_t)t->model.n_kv_heads;
    case LEVEL:
        return KVD_N_CRITICAL_LEVELS;
    case QUANTILE:
        return KVD_N_CURVE;
    case MEASURE:
        return KVD_N_RANKINGS;
    case END:
        break;
    }
    return 1;
}

/* Returns the number of elements of dataset f. It cannot overflow, because a dataset has at most
 * three axes, each shorter than 1e6. */
static size_t count_of(const kvd_tokens *t, kvd_t f)
{
    size_t n = 1;
    for (int i = 0; i < 4 && fields[f].axes[i]; i++)
        n *= length(t, fields[f].axes[i]);
    return n;
}

int kvd_tokens_alloc(kvd_tokens *t, kvd_err *err)
{
    for (int f = 0; f < KVD_N_T; f++)
        t->data[f] = NULL;
    for (int f = 0; f < KVD_N_T; f++) {
        const size_t n = count_of(t, (kvd_t)f);
        if (!(t->data[f] = calloc(n, sizeof(double)))) {
            kvd_tokens_release(t);
            return kvd_no_memory(err, fields[f].path, n * sizeof(double));
        }
    }
    return 0;
}

void kvd_tokens_release(kvd_tokens *t)
{
    for (int f = 0; f < KVD_N_T; f++) {
        free(t->data[f]);
        t->data[f] = NULL;
    }
}

static int shape(const kvd_tokens *t, kvd_t f, hsize_t *dims)
{
    int rank = 0;
    for (; rank < 4 && fields[f].axes[rank]; rank++)
        dims[rank] = (hsize_t)length(t, fields[f].axes[rank]);
    return rank;
}

static void measures_text(char *to, size_t size)
{
    *to = '\0';
    for (int i = 0; i < KVD_N_RANKINGS; i++)
        snprintf(to + strlen(to), size - strlen(to), "%s%s", i ? "," : "", kvd_ranking_name[i]);
}

static int write_description(kvd_h5 *f, const kvd_tokens *t, kvd_err *err)
{
    char measures[128];
    measures_text(measures, sizeof measures);
    return kvd_status(
        kvd_model_info_write(f, &t->model, err) ||
        kvd_h5_put_text(f, "/", "label", t->label, err) ||
        kvd_field_write_corpus_hash(f, t->corpus_hash, err) ||
        kvd_h5_put_int(f, "/", "n_requests", (int64_t)t->n_requests, err) ||
        kvd_h5_put_int(f, "/", "n_kept", (int64_t)t->n_kept, err) ||
        kvd_h5_put_int(f, "/", "seq_len", (int64_t)t->seq_len, err) ||
        kvd_h5_put_int(f, "/", "first_layer", t->first_layer, err) ||
        kvd_h5_put_double(f, "/", "share", t->share, err) ||
        kvd_h5_put_double(f, "/", "group_overlap", t->group_overlap, err) ||
        kvd_h5_put_text(f, "/", "measures", measures, err) ||
        kvd_field_write_tokens(f, "tokens that the study runs over", t->n_tokens, err) ||
        kvd_field_write_reals(f, "/levels", "parts of the mass that critical tokens hold", "level",
                              kvd_critical_level, KVD_N_CRITICAL_LEVELS, err) ||
        kvd_field_write_reals(f, "/quantile_levels",
                              "probabilities of the quantiles in the datasets quantiles",
                              "quantile", kvd_curve_level, KVD_N_CURVE, err));
}

int kvd_tokens_write(kvd_h5 *f, const kvd_tokens *t, kvd_err *err)
{
    if (write_description(f, t, err))
        return -1;
    for (int i = 0; i < KVD_N_T; i++) {
        kvd_h5_spec spec = {.path = fields[i].path,
                            .long_name = fields[i].long_name,
                            .units = fields[i].units,
                            .type = fields[i].in == GROUP ? H5T_STD_I32LE : H5T_IEEE_F64LE};
        spec.rank = shape(t, (kvd_t)i, spec.dims);
        for (int k = 0; k < spec.rank; k++)
            spec.axes[k] = axis_name[fields[i].axes[k]];
        if (kvd_h5_write(f, &spec, H5T_NATIVE_DOUBLE, t->data[i], err))
            return -1;
    }
    return 0;
}

static int describe(kvd_h5 *f, kvd_tokens *t, kvd_err *err)
{
    char measures[128], found[128];
    measures_text(measures, sizeof measures);
    if (kvd_model_info_read(f, &t->model, err) ||
        kvd_field_text(f, "/", "label", t->label, sizeof t->label, err) ||
        kvd_field_corpus_hash(f, t->corpus_hash, err) ||
        kvd_field_text(f, "/", "measures", found, sizeof found, err))
        return -1;
    if (strcmp(measures, found) != 0)
        return kvd_fail(err,
                        "'%s': /measures is '%s', should be '%s': make the file again with "
                        "kvdim-collect --attention and kvdim-tokens",
                        f->path, found, measures);
    if (kvd_field_layers(f, fields[0].path, 1, t->model.n_layers, &t->n_layers, err) ||
        kvd_field_tokens(f, 2, &t->n_tokens, err) ||
        kvd_field_small(f, "/", "first_layer", 0, t->model.n_layers - t->n_layers, &t->first_layer,
                        err) ||
        kvd_field_size(f, "/", "n_requests", 1, t->n_tokens / 2, &t->n_requests, err) ||
        kvd_field_size(f, "/", "n_kept", 1, t->n_requests, &t->n_kept, err) ||
        kvd_field_size(f, "/", "seq_len", 2, (size_t)t->model.max_positions, &t->seq_len, err) ||
        kvd_h5_get_double(f, "/", "share", &t->share, err) ||
        kvd_h5_get_double(f, "/", "group_overlap", &t->group_overlap, err))
        return -1;
    if (!(t->share > 0 && t->share < 1) || !(t->group_overlap >= 0 && t->group_overlap <= 1))
        return kvd_fail(err, "'%s': share is %g, group_overlap %g", f->path, t->share,
                        t->group_overlap);
    return 0;
}

static int check(const char *path, const kvd_tokens *t, kvd_t f, kvd_err *err)
{
    const size_t n = count_of(t, f);
    const double most[] = {INFINITY, 1 + 1e-9, INFINITY, (double)t->seq_len, t->n_layers - 1};
    const double least[] = {-INFINITY, 0, 0, 1, 0};
    for (size_t i = 0; i < n; i++)
        if (t->data[f][i] < least[fields[f].in] || t->data[f][i] > most[fields[f].in])
            return kvd_fail(err, "'%s': value %zu of %s is %g, should be %g to %g", path, i,
                            fields[f].path, t->data[f][i], least[fields[f].in], most[fields[f].in]);
    return 0;
}

int kvd_tokens_load(kvd_tokens *t, const char *path, kvd_err *err)
{
    kvd_h5 f = {.id = H5I_INVALID_HID};
    hsize_t dims[KVD_MAX_RANK];
    int status = -1;
    memset(t, 0, sizeof *t);
    if (kvd_h5_open(&f, path, &kvd_schema_tokens, err))
        return -1;
    if (describe(&f, t, err))
        goto done;
    /* Checks shapes first, because a damaged file may announce any size. */
    for (int i = 0; i < KVD_N_T; i++)
        if (kvd_field_shape(&f, fields[i].path, shape(t, (kvd_t)i, dims), dims, err))
            goto done;
    if (kvd_tokens_alloc(t, err)) {
        kvd_in(err, "'%s'", path);
        goto done;
    }
    for (int i = 0; i < KVD_N_T; i++) {
        const int rank = shape(t, (kvd_t)i, dims);
        if (kvd_h5_read_finite(&f, fields[i].path, rank, dims, t->data[i], err) ||
            check(path, t, (kvd_t)i, err))
            goto done;
    }
    status = 0;
done:
    if (status)
        kvd_tokens_release(t);
    kvd_h5_close(&f, false);
    return status;
}

kvd_token_overlap kvd_tokens_at_distance(const kvd_tokens *t, kvd_t f, kvd_ranking by, int distance)
{
    const size_t n = (size_t)t->n_layers, d = (size_t)distance;
    const double *o = t->data[f] + (size_t)by * n * n;
    kvd_token_overlap all = {0, INFINITY, -INFINITY};
    assert((f == KVD_T_UNIMPORTANT || f == KVD_T_IMPORTANT) && distance >= 0 && d < n);
    for (size_t l = 0; l + d < n; l++) {
        const double x = o[l * n + l + d];
        all.mean += x / (double)(n - d);
        all.least = fmin(all.least, x);
        all.most = fmax(all.most, x);
    }
    return all;
}
