#include "formats/accuracy.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/files/fields.h"
#include "common/stats.h"

const kvd_schema kvd_schema_accuracy = {"accuracy", 1,
                                        "Quality of predictions with compressed KV caches"};
const kvd_schema kvd_schema_accuracy_rows = {"accuracy-rows", 1,
                                             "Rows of a kvdim-eval that has not finished"};
const kvd_schema kvd_schema_tasks = {"tasks", 1, "Generated text with compressed KV caches"};

bool kvd_tasks_label_is_mean(const char *label)
{
    size_t n;
    int end = 0;
    return sscanf(label, KVD_TASKS_MEAN_LABEL "%n", &n, &end) == 1 && end > 0 &&
           (!label[end] || label[end] == ':');
}

bool kvd_target_tells(double saving_lo, double saving_hi)
{
    return saving_lo > 0 || !isnan(saving_hi);
}

const kvd_column kvd_point_columns[KVD_N_POINT_COLUMNS] = {
    {"method", KVD_COL_TEXT, "1",
     "name of the method; weights-4bit is none: the cache is whole, the weights have 4 bits"},
    {"settings", KVD_COL_TEXT, "1",
     "key cut, rates of single pairs and of the low level, and values of the keys of its methods "
     "on the axes layers, tokens and bits"},
    {"label", KVD_COL_TEXT, "1", "label of the evaluated texts"},
    {"calibration", KVD_COL_TEXT, "1",
     "label of the texts that gave the bases, or else of --calibration; empty for none"},
    {"purpose", KVD_COL_TEXT, "1",
     "point: asked for; seed: one seed of such a point; target-search: visited while looking for "
     "the target; weights: of --weights-bits, no method"},
    {"rule", KVD_COL_TEXT, "1", "how widths were chosen: none, eq6, eq6-energy, error, uniform"},
    {"pair_qk", KVD_COL_TEXT, "1", "pair whose bases cut Q and K, empty for none"},
    {"pair_v", KVD_COL_TEXT, "1", "pair whose bases cut V, empty for none"},
    {"cache", KVD_COL_TEXT, "1", "type in which this run stored the cache"},
    {"removal_rate", KVD_COL_REAL, "1", "singular value removal rate r of Eq. 6"},
    {"p_wanted", KVD_COL_REAL, "1", "overall p that was asked for"},
    {"rate_key", KVD_COL_TEXT, "1",
     "key that trades bytes for quality; empty if the method has none"},
    {"rate_value", KVD_COL_REAL, "1", "value of rate_key; for p the overall p of the widths"},
    {"overall_p", KVD_COL_REAL, "1", "fraction of stored elements removed"},
    {"overall_p_qk", KVD_COL_REAL, "1", "fraction of the elements of K removed"},
    {"overall_p_v", KVD_COL_REAL, "1", "fraction of the elements of V removed"},
    {"low_p_qk", KVD_COL_REAL, "1",
     "fraction of the elements of K removed from entries at the low level; NaN: no low level"},
    {"low_p_v", KVD_COL_REAL, "1",
     "fraction of the elements of V removed from entries at the low level; NaN: no low level"},
    {"overall_p16", KVD_COL_REAL, "1", "overall_p with widths padded to multiples of 16"},
};

static const kvd_column own_columns[] = {
    {"prompt", KVD_COL_INT, "1", "rows of a sequence before the first that is scored"},
    {"n_sequences", KVD_COL_INT, "1", "sequences evaluated"},
    {"n_tokens", KVD_COL_INT, "1", "tokens evaluated"},
    {"n_predictions", KVD_COL_INT, "1",
     "next tokens predicted: one fewer than tokens in each sequence"},
    {"nll", KVD_COL_REAL, "nat", "mean negative log-likelihood of the next token"},
    {"nll_lo", KVD_COL_REAL, "nat", "its 95 % interval over sequences, lower end"},
    {"nll_hi", KVD_COL_REAL, "nat", "its 95 % interval over sequences, upper end"},
    {"perplexity", KVD_COL_REAL, "1", "exp of nll"},
    {"perplexity_lo", KVD_COL_REAL, "1", "its 95 % interval, lower end"},
    {"perplexity_hi", KVD_COL_REAL, "1", "its 95 % interval, upper end"},
    {"top1", KVD_COL_REAL, "1", "fraction of next tokens that are the argmax"},
    {"top1_lo", KVD_COL_REAL, "1", "its 95 % interval, lower end"},
    {"top1_hi", KVD_COL_REAL, "1", "its 95 % interval, upper end"},
    {"top1_share", KVD_COL_REAL, "1",
     "top1 as a share of the uncompressed model's, paired by sequence"},
    {"top1_share_lo", KVD_COL_REAL, "1", "its 95 % interval, lower end"},
    {"top1_share_hi", KVD_COL_REAL, "1", "its 95 % interval, upper end"},
    {"kl", KVD_COL_REAL, "nat", "mean KL(uncompressed || this) over the vocabulary per prediction"},
    {"kl_lo", KVD_COL_REAL, "nat", "its 95 % interval, lower end"},
    {"kl_hi", KVD_COL_REAL, "nat", "its 95 % interval, upper end"},
    {"kl_median", KVD_COL_REAL, "nat", "median of the KL of single predictions; NaN on a GPU"},
    {"kl_p90", KVD_COL_REAL, "nat", "their 90 % quantile"},
    {"kl_p99", KVD_COL_REAL, "nat", "their 99 % quantile"},
    {"kl_p999", KVD_COL_REAL, "nat", "their 99.9 % quantile"},
    {"kl_max", KVD_COL_REAL, "nat", "the largest of them"},
    {"p_change", KVD_COL_REAL, "1",
     "mean change of the probability of the next token from the uncompressed model's; NaN on a "
     "GPU"},
    {"agree", KVD_COL_REAL, "1",
     "fraction of predictions whose argmax is the uncompressed model's"},
    {"attention_error", KVD_COL_REAL, "1",
     "mean over layers and heads of ||v - u|| / ||u||, u the uncompressed attention output"},
    {"attention_error_zdc", KVD_COL_REAL, "1",
     "mean over layers, heads and elements of |v - u| / |u| as ZDC prints it, elements with u = 0 left out"},
    {"attention_error_zeros", KVD_COL_REAL, "1",
     "number of elements with u = 0, which attention_error_zdc leaves out"},
    {"full_rank_error", KVD_COL_REAL, "1",
     "guard: largest change of a logit at full width over the rms of the logits"},
    {"element_bytes", KVD_COL_INT, "byte",
     "bytes per element in the next three columns: a 16-bit cache"},
    {"bytes_per_token_dense", KVD_COL_REAL, "byte", "cache of the uncompressed model per token"},
    {"bytes_per_token_nominal", KVD_COL_REAL, "byte", "kept elements per token"},
    {"bytes_per_token_padded", KVD_COL_REAL, "byte",
     "kept elements per token, widths padded to multiples of 16"},
    {"basis_bytes", KVD_COL_REAL, "byte",
     "Q-K projections of the whole model; those of V are folded into the weights"},
    {"stored_element_bytes", KVD_COL_INT, "byte", "bytes per element that this run stored"},
    {"bytes_per_token_stored", KVD_COL_REAL, "byte",
     "bytes that the cache of this run held per token seen, as counted; row by row the mean over all rows after "
     "the prompt"},
    {"bytes_per_token_side", KVD_COL_REAL, "byte",
     "scales, zero points, tables, indices, scores, positions and bounds among the stored bytes"},
    {"bytes_per_token_read", KVD_COL_REAL, "byte",
     "bytes of the cache that the attention of a step read per token seen, as counted"},
    {"cache_share", KVD_COL_REAL, "1", "bytes_per_token_stored over an uncompressed 16-bit cache"},
    {"weight_bytes", KVD_COL_REAL, "byte", "all weights of the model that this row ran"},
    {"engine", KVD_COL_TEXT, "1", "engine that computed the attention of this point"},
    {"seconds", KVD_COL_REAL, "s",
     "time of the forward passes of this point on this machine, without the output head"},
};
enum { N_OWN_COLUMNS = sizeof own_columns / sizeof *own_columns };

/* columns that exist only with the option --seeds */
static const kvd_column seed_columns[] = {
    {"n_seeds", KVD_COL_INT, "1", "number of seeds of which the row is the mean; 1: a single seed"},
    {"seed", KVD_COL_INT, "1",
     "seed of the random numbers of the method; for a mean, the first seed"},
    {"nll_sd", KVD_COL_REAL, "nat", "sample standard deviation of nll over seeds"},
    {"top1_sd", KVD_COL_REAL, "1", "sample standard deviation of top1 over seeds"},
    {"kl_sd", KVD_COL_REAL, "nat", "sample standard deviation of kl over seeds"},
    {"agree_sd", KVD_COL_REAL, "1", "sample standard deviation of agree over seeds"},
};
enum {
    N_SEED_COLUMNS = sizeof seed_columns / sizeof *seed_columns,
    N_COLUMNS = KVD_N_POINT_COLUMNS + N_OWN_COLUMNS + N_SEED_COLUMNS
};

static const kvd_column *columns(void)
{
    static kvd_column all[N_COLUMNS];
    if (!all[0].name) {
        memcpy(all + KVD_N_POINT_COLUMNS, own_columns, sizeof own_columns);
        memcpy(all + KVD_N_POINT_COLUMNS + N_OWN_COLUMNS, seed_columns, sizeof seed_columns);
        memcpy(all, kvd_point_columns, sizeof kvd_point_columns);
    }
    return all;
}

/* arrays with several values for each row of the accuracy table */
static const kvd_h5_spec samples[KVD_ACCURACY_SAMPLES] = {
    [KVD_ACCURACY_RELATIVE] = {.path = "/attention_error/relative",
                               .long_name = "||v - u|| / ||u|| of the attention output of a head",
                               .units = "1"},
    [KVD_ACCURACY_ZDC] = {.path = "/attention_error/zdc",
                          .long_name = "mean |v - u| / |u| over elements with u != 0",
                          .units = "1"},
    [KVD_ACCURACY_NLL] = {.path = "/sequences/nll",
                          .long_name = "sum of negative log-likelihoods over a sequence",
                          .units = "nat"},
    [KVD_ACCURACY_TOP1] = {.path = "/sequences/top1",
                           .long_name = "next tokens of a sequence that are the argmax",
                           .units = "1"},
    [KVD_ACCURACY_KL] = {.path = "/sequences/kl",
                         .long_name = "sum of KL(uncompressed || this) over a sequence",
                         .units = "nat"},
    [KVD_ACCURACY_AGREE] = {.path = "/sequences/agree",
                            .long_name = "predictions of a sequence with the uncompressed model's "
                                         "argmax",
                            .units = "1"}};

kvd_rows *kvd_accuracy_rows(int n_layers, int n_heads, size_t n_sequences, bool seeds, kvd_err *err)
{
    kvd_rows *r = kvd_rows_new(
        columns(), KVD_N_POINT_COLUMNS + N_OWN_COLUMNS + (seeds ? N_SEED_COLUMNS : 0), err);
    for (int i = 0; r && i < KVD_ACCURACY_SAMPLES; i++) {
        const bool heads = i < KVD_ACCURACY_NLL;
        kvd_h5_spec spec = samples[i];
        spec.rank = heads ? 3 : 2;
        spec.dims[1] = heads ? (hsize_t)n_layers : n_sequences;
        spec.dims[2] = (hsize_t)n_heads;
        spec.axes[0] = "row";
        spec.axes[1] = heads ? "layer" : "sequence";
        spec.axes[2] = "head";
        if (kvd_rows_add_samples(r, &spec, err)) {
            kvd_rows_free(r);
            r = NULL;
        }
    }
    return r;
}

static size_t sequences_of(const kvd_rows *r)
{
    return (size_t)kvd_rows_samples_spec(r, KVD_ACCURACY_NLL)->dims[1];
}

int kvd_accuracy_rows_write(kvd_h5 *f, const kvd_rows *r, const double *predictions, kvd_err *err)
{
    return kvd_status(kvd_rows_write(f, r, err) ||
                      kvd_field_write_reals(f, "/sequences/n", "predictions in a sequence",
                                            "sequence", predictions, sequences_of(r), err));
}

kvd_rows *kvd_accuracy_rows_load(kvd_h5 *f, const kvd_rows *like, double *predictions, kvd_err *err)
{
    const hsize_t n = sequences_of(like);
    kvd_rows *const r = kvd_rows_load(f, err);
    int status =
        r ? kvd_h5_read(f, "/sequences/n", 1, &n, H5T_NATIVE_DOUBLE, predictions, err) : -1;
    for (int i = 0; !status && i < KVD_ACCURACY_SAMPLES; i++)
        status = kvd_rows_load_samples(f, r, kvd_rows_samples_spec(like, i), err);
    if (!status)
        return r;
    kvd_rows_free(r);
    return NULL;
}

enum { RESAMPLES = 1000 };

void kvd_accuracy_result_release(kvd_accuracy_result *a)
{
    kvd_rows_free(a->rows);
    free(a->norm);
    free(a->zdc);
    free(a->ratio);
    free(a->sequence_n);
    free(a->sequence_kl);
    free(a->target);
    free(a->needle_depth);
    free(a->needle_nll);
    free(a->needle_agree);
    free(a->needle_exact);
    *a = (kvd_accuracy_result){0};
}

static int read_errors(kvd_accuracy_result *a, kvd_h5 *f, const char *path, double **out,
                       kvd_err *err)
{
    hsize_t dims[3];
    if (!kvd_h5_exists(f, path))
        return 0;
    if (kvd_h5_shape(f, path, 3, dims, err))
        return -1;
    size_t n = kvd_rows_count(a->rows), layers = (size_t)dims[1], heads = (size_t)dims[2];
    if (dims[0] != n || dims[1] == 0 || dims[2] == 0 || dims[1] > 1000000 || dims[2] > 1000000)
        return kvd_fail(err, "'%s': '%s' is %llu x %llu x %llu for %zu rows", f->path, path,
                        (unsigned long long)dims[0], (unsigned long long)dims[1],
                        (unsigned long long)dims[2], n);
    if (a->n_layers && a->n_layers != layers)
        return kvd_fail(err, "'%s': %s has %zu layers, the other /attention_error has %zu", f->path,
                        path, layers, a->n_layers);
    double *all = calloc(n * layers * heads, sizeof *all);
    *out = calloc(n * layers, sizeof **out);
    int status = !all || !*out ? kvd_no_memory(err, path, n * layers * heads * sizeof *all)
                               : kvd_h5_read(f, path, 3, dims, H5T_NATIVE_DOUBLE, all, err);
    for (size_t i = 0; !status && i < n * layers; i++)
        for (size_t h = 0; !status && h < heads; h++) {
            const double x = all[i * heads + h];
            if (x < 0 || isinf(x))
                status = kvd_fail(err, "'%s': %s[%zu][%zu][%zu] is %g, not an error", f->path, path,
                                  i / layers, i % layers, h, x);
            (*out)[i] += x / (double)heads;
        }
    a->n_layers = layers;
    free(all);
    return status;
}

/* Divides a method's perplexity by the uncompressed model's, with a bootstrap confidence
 * interval. */
static int ratio_of_row(const double *nll, const double *none, const double *n, size_t sequences,
                        double *difference, kvd_interval *out, kvd_err *err)
{
    for (size_t s = 0; s < sequences; s++)
        difference[s] = nll[s] - none[s];
    if (kvd_bootstrap_ratio(difference, n, sequences, RESAMPLES, 1, out, err))
        return -1;
    *out = (kvd_interval){exp(out->value), exp(out->lo), exp(out->hi)};
    return 0;
}

static int read_counts(const kvd_rows *r, kvd_h5 *f, hsize_t n, double *counts, kvd_err *err)
{
    double sum = 0;
    if (kvd_h5_read_finite(f, "/sequences/n", 1, &n, counts, err))
        return -1;
    for (size_t s = 0; s < (size_t)n; s++) {
        if (counts[s] < 0 || counts[s] != floor(counts[s]))
            return kvd_fail(err, "'%s': /sequences/n[%zu] is %g, not a number of predictions",
                            f->path, s, counts[s]);
        sum += counts[s];
    }
    if (!(sum > 0))
        return kvd_fail(err, "'%s': /sequences/n has %llu sequences without a prediction", f->path,
                        (unsigned long long)n);
    for (size_t i = 0; i < kvd_rows_count(r); i++) {
        const double predictions = kvd_row_real(r, i, "n_predictions");
        if (!isnan(predictions) && predictions != sum)
            return kvd_fail(err,
                            "'%s': /rows/n_predictions[%zu] is %.15g, but /sequences/n has %.15g "
                            "predictions",
                            f->path, i, predictions, sum);
    }
    return 0;
}

static int read_ratios(kvd_accuracy_result *a, kvd_h5 *f, kvd_err *err)
{
    size_t rows = kvd_rows_count(a->rows), none = 0;
    hsize_t sequences;
    double *n = NULL, *nll = NULL, *difference = NULL;
    int status = -1;

    a->ratio = malloc((rows ? rows : 1) * sizeof *a->ratio);
    if (!a->ratio)
        return kvd_no_memory(err, "ratios of perplexity", rows * sizeof *a->ratio);
    for (size_t i = 0; i < rows; i++)
        a->ratio[i] = (kvd_interval){(double)NAN, (double)NAN, (double)NAN};
    while (none < rows && strcmp(kvd_row_text(a->rows, none, "method"), "none"))
        none++;
    if (none == rows || !kvd_h5_exists(f, "/sequences/nll"))
        return 0;
    if (kvd_h5_shape(f, "/sequences/n", 1, &sequences, err))
        return -1;
    const hsize_t dims[] = {rows, sequences};
    if (sequences == 0 || sequences > SIZE_MAX / sizeof *nll / rows)
        return kvd_fail(err, "'%s': %llu sequences", f->path, (unsigned long long)sequences);
    n = malloc((size_t)sequences * sizeof *n);
    difference = malloc((size_t)sequences * sizeof *difference);
    nll = malloc(rows * (size_t)sequences * sizeof *nll);
    if (!n || !nll || !difference) {
        kvd_no_memory(err, "sums of sequences", rows * sequences * sizeof *nll);
        goto done;
    }
    if (read_counts(a->rows, f, sequences, n, err) ||
        kvd_h5_read_finite(f, "/sequences/nll", 2, dims, nll, err))
        goto done;
    for (size_t i = 0; i < rows; i++)
        if (i != none && ratio_of_row(nll + i * sequences, nll + none * sequences, n,
                                      (size_t)sequences, difference, &a->ratio[i], err))
            goto done;
    a->ratio[none] = (kvd_interval){1, (double)NAN, (double)NAN};
    status = 0;
done:
    free(n);
    free(nll);
    free(difference);
    return status;
}

/* Reads the KL divergences of all sequences, if the file has them, and checks their values. */
static int read_kl(kvd_accuracy_result *a, kvd_h5 *f, kvd_err *err)
{
    const size_t rows = kvd_rows_count(a->rows);
    hsize_t n;
    if (!kvd_h5_exists(f, "/sequences/kl"))
        return 0;
    if (kvd_h5_shape(f, "/sequences/n", 1, &n, err))
        return -1;
    const hsize_t dims[] = {rows, n};
    if (n == 0 || n > SIZE_MAX / sizeof(double) / (rows + 1))
        return kvd_fail(err, "'%s': %llu sequences", f->path, (unsigned long long)n);
    a->sequence_n = malloc((size_t)n * sizeof *a->sequence_n);
    a->sequence_kl = malloc((rows * (size_t)n + 1) * sizeof *a->sequence_kl);
    if (!a->sequence_n || !a->sequence_kl)
        return kvd_no_memory(err, "sums of sequences", rows * n * sizeof *a->sequence_kl);
    a->n_sequences = (size_t)n;
    if (read_counts(a->rows, f, n, a->sequence_n, err) ||
        kvd_h5_read(f, "/sequences/kl", 2, dims, H5T_NATIVE_DOUBLE, a->sequence_kl, err))
        return -1;
    for (size_t i = 0; i < rows; i++) {
        const double *const kl = a->sequence_kl + i * (size_t)n;
        const double sequences = kvd_row_real(a->rows, i, "n_sequences");
        if (!isnan(sequences) && sequences != (double)n)
            return kvd_fail(err, "'%s': /rows/n_sequences[%zu] is %g, but /sequences/n has %llu",
                            f->path, i, sequences, (unsigned long long)n);
        for (size_t s = 0; s < (size_t)n; s++) {
            const bool missing = isnan(kl[s]) && isnan(kl[0]);
            if (!missing && !(kl[s] >= -1e-6 * (a->sequence_n[s] + 1) && kl[s] <= DBL_MAX))
                return kvd_fail(err, "'%s': /sequences/kl[%zu, %zu] is %g, not a sum of KL",
                                f->path, i, s, kl[s]);
        }
        if (isnan(kl[0]) && !isnan(kvd_row_real(a->rows, i, "kl")))
            return kvd_fail(err, "'%s': /sequences/kl[%zu, 0] is nan, but /rows/kl[%zu] is %g",
                            f->path, i, i, kvd_row_real(a->rows, i, "kl"));
    }
    return 0;
}

/* Reads the model's losses and answers for prompts that hide a fact (needle). They may be NaN,
 * which means not measured. */
static int read_needles(kvd_accuracy_result *a, kvd_h5 *f, kvd_err *err)
{
    const size_t rows = kvd_rows_count(a->rows);
    const struct {
        const char *path;
        double **to, most;
    } all[] = {{"/needle/needle_nll", &a->needle_nll, DBL_MAX},
               {"/needle/needle_agree", &a->needle_agree, 1},
               {"/needle/needle_exact", &a->needle_exact, 1}};
    hsize_t n;
    if (!kvd_h5_exists(f, "/needle/depth"))
        return 0;
    if (kvd_h5_shape(f, "/needle/depth", 1, &n, err))
        return -1;
    if (n == 0 || n > SIZE_MAX / sizeof(double) / (rows + 1))
        return kvd_fail(err, "'%s': %llu needles", f->path, (unsigned long long)n);
    if (!(a->needle_depth = malloc((size_t)n * sizeof *a->needle_depth)))
        return kvd_no_memory(err, "needles", n * sizeof *a->needle_depth);
    if (kvd_h5_read_finite(f, "/needle/depth", 1, &n, a->needle_depth, err))
        return -1;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const hsize_t dims[] = {rows, n};
        if (!(*all[i].to = malloc((rows * (size_t)n + 1) * sizeof(double))))
            return kvd_no_memory(err, "needles", rows * n * sizeof(double));
        if (kvd_h5_read(f, all[i].path, 2, dims, H5T_NATIVE_DOUBLE, *all[i].to, err))
            return -1;
        for (size_t j = 0; j < rows * (size_t)n; j++) {
            const double x = (*all[i].to)[j];
            if (x < -1e-6 || x > all[i].most)
                return kvd_fail(err, "'%s': %s[%zu][%zu] is %g, not within 0 .. %g", f->path,
                                all[i].path, j / (size_t)n, j % (size_t)n, x, all[i].most);
        }
    }
    a->n_needles = (size_t)n;
    return 0;
}

typedef struct {
    kvd_accuracy_result *a;
    kvd_h5 *f;
    kvd_err *err;
} target_reader;

static int read_ends(target_reader *x, const char *where, const char *name, double *to,
                     kvd_err *err)
{
    static const char *const suffix[] = {"", "_misses", "_lo", "_hi"};
    for (int i = 0; i < 4; i++) {
        char attribute[40];
        snprintf(attribute, sizeof attribute, "%s%s", name, suffix[i]);
        if (kvd_h5_get_double(x->f, where, attribute, &to[i], err))
            return -1;
    }
    return 0;
}

/* Reads which parameter option --target varied and which score it measured. In old files, which
 * lack this, the parameter was "p" and the score top-1 accuracy. */
static int read_optional(kvd_h5 *f, const char *where, kvd_target_result *t, bool *has_key,
                         kvd_err *err)
{
    int64_t own = 0;
    *has_key = H5Aexists_by_name(f->id, where, "key", H5P_DEFAULT) > 0;
    strcpy(t->key, "p");
    strcpy(t->metric, KVD_TARGET_TOP1);
    if ((*has_key && kvd_field_text(f, where, "key", t->key, sizeof t->key, err)) ||
        (H5Aexists_by_name(f->id, where, "metric", H5P_DEFAULT) > 0 &&
         kvd_field_text(f, where, "metric", t->metric, sizeof t->metric, err)) ||
        (H5Aexists_by_name(f->id, where, "own", H5P_DEFAULT) > 0 &&
         kvd_field_int(f, where, "own", 0, 1, &own, err)))
        return -1;
    t->own = own != 0;
    return t->key[0] && t->metric[0] ? 0
                                     : kvd_fail(err, "'%s': attribute %s of %s is empty", f->path,
                                                t->key[0] ? "metric" : "key", where);
}

static herr_t read_target(hid_t group, const char *name, const H5L_info_t *info, void *ctx)
{
    target_reader *x = ctx;
    char where[128];
    kvd_target_result t = {0};
    int64_t monotone, points;
    bool any_key;
    (void)group;
    (void)info;
    if (strlen(name) >= sizeof t.name) {
        kvd_fail(x->err, "'%s': a target has a name of %zu bytes", x->f->path, strlen(name));
        return -1;
    }
    strcpy(t.name, name);
    snprintf(where, sizeof where, "/target/%s", name);
    if (read_optional(x->f, where, &t, &any_key, x->err) ||
        kvd_h5_get_double(x->f, where, "target", &t.target, x->err) ||
        read_ends(x, where, any_key ? "value" : "p", &t.value, x->err) ||
        (any_key && read_ends(x, where, "saving", &t.saving, x->err)) ||
        kvd_field_int(x->f, where, "monotone", 0, 1, &monotone, x->err) ||
        kvd_field_int(x->f, where, "n_points", 0, INT64_MAX, &points, x->err))
        return -1;
    if (!(t.target > 0 && t.target <= 1)) {
        kvd_fail(x->err, "'%s': attribute target of %s is %g, should be above 0 and at most 1",
                 x->f->path, where, t.target);
        return -1;
    }
    if (!any_key)
        t.saving = t.saving_misses = t.saving_lo = t.saving_hi = (double)NAN;
    t.monotone = monotone != 0;
    t.n_points = points;
    kvd_target_result *all = realloc(x->a->target, (x->a->n_targets + 1) * sizeof *all);
    if (!all) {
        kvd_no_memory(x->err, "targets", sizeof *all);
        return -1;
    }
    x->a->target = all;
    x->a->target[x->a->n_targets++] = t;
    return 0;
}

static int check_columns(const kvd_accuracy_result *a, const kvd_h5 *f, kvd_err *err)
{
    static const char *const kinds[] = {
        [KVD_COL_TEXT] = "text", [KVD_COL_INT] = "integers", [KVD_COL_REAL] = "real numbers"};
    if (kvd_rows_find(a->rows, "method") < 0)
        return kvd_fail(err, "'%s' has no column '/rows/method'", f->path);
    for (int c = 0; c < N_COLUMNS; c++) {
        const kvd_column *const known = &columns()[c];
        const int found = kvd_rows_find(a->rows, known->name);
        const kvd_column_kind kind =
            found < 0 ? known->kind : kvd_rows_column(a->rows, found)->kind;
        if (kind != known->kind)
            return kvd_fail(err, "'%s': /rows/%s has %s, should have %s", f->path, known->name,
                            kinds[kind], kinds[known->kind]);
    }
    return 0;
}

/* Fails if a number is negative or infinite, or if a fraction is above 1. Perplexities may be
 * infinite, and columns of changes may be negative. */
static int check_values(const kvd_accuracy_result *a, const kvd_h5 *f, kvd_err *err)
{
    static const char *const shares[] = {
        "top1",         "top1_lo",         "top1_hi",     "agree",
        "overall_p",    "overall_p16",     "p_wanted",    "removal_rate",
        "rouge1",       "edit_similarity", "exact",       "needle_exact",
        "needle_agree", "class_correct",   "class_agree", "score"};
    for (int c = 0; c < kvd_rows_columns(a->rows); c++) {
        const kvd_column *column = kvd_rows_column(a->rows, c);
        double most =
            strncmp(column->name, "perplexity", strlen("perplexity")) ? DBL_MAX : (double)INFINITY;
        for (size_t k = 0; k < sizeof shares / sizeof *shares; k++)
            if (!strcmp(column->name, shares[k]))
                most = 1;
        if (most < 2 && column->kind == KVD_COL_TEXT)
            return kvd_fail(err, "'%s': /rows/%s has text, should have real numbers", f->path,
                            column->name);
        for (size_t i = 0; column->kind != KVD_COL_TEXT && i < kvd_rows_count(a->rows); i++) {
            const double x = kvd_rows_get_real(a->rows, i, c);
            const double least = strstr(column->name, "_change") ? -DBL_MAX : -1e-6;
            if (x < least || x > most + 1e-9)
                return kvd_fail(err, "'%s': /rows/%s[%zu] is %g, %s", f->path, column->name, i, x,
                                x < 0 && least > -1 ? "below 0"
                                : x < 0 || most > 1 ? "infinite"
                                                    : "above 1");
        }
    }
    return 0;
}

int kvd_accuracy_read(kvd_accuracy_result *a, kvd_h5 *f, kvd_err *err)
{
    target_reader x = {a, f, err};
    hsize_t from = 0;
    a->rows = kvd_rows_load(f, err);
    if (!a->rows || check_columns(a, f, err) || check_values(a, f, err) ||
        read_errors(a, f, "/attention_error/relative", &a->norm, err) ||
        read_errors(a, f, "/attention_error/zdc", &a->zdc, err) || read_ratios(a, f, err) ||
        read_kl(a, f, err) || read_needles(a, f, err))
        return -1;
    if (!kvd_h5_exists(f, "/target"))
        return 0;
    err->msg[0] = '\0';
    if (H5Literate_by_name(f->id, "/target", H5_INDEX_NAME, H5_ITER_INC, &from, read_target, &x,
                           H5P_DEFAULT) < 0)
        return err->msg[0] ? -1 : kvd_fail(err, "'%s': cannot read '/target'", f->path);
    return 0;
}
