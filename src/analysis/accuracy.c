#include "analysis/accuracy.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const kvd_schema kvd_schema_accuracy = {"accuracy", 1, "Quality of predictions with compressed KV caches"};

static const kvd_column columns[] = {
    {"method", KVD_COL_TEXT, "1",
     "name of the method; weights-4bit is none: the cache is whole, the weights have 4 bits"},
    {"settings", KVD_COL_TEXT, "1",
     "key cut, rates of single pairs and of the low level, and values of the keys of its methods on the axes "
     "layers, tokens and bits"},
    {"label", KVD_COL_TEXT, "1", "what the evaluated texts are called"},
    {"calibration", KVD_COL_TEXT, "1",
     "what the texts behind the bases are called, or else those of --calibration; empty for none"},
    {"purpose", KVD_COL_TEXT, "1",
     "point: asked for; seed: one seed of such a point; target-search: visited while looking for the target; "
     "weights: of "
     "--weights-bits, no method"},
    {"rule", KVD_COL_TEXT, "1", "how widths were chosen: none, eq6, eq6-energy, error, uniform"},
    {"pair_qk", KVD_COL_TEXT, "1", "pair whose bases cut Q and K, empty for none"},
    {"pair_v", KVD_COL_TEXT, "1", "pair whose bases cut V, empty for none"},
    {"cache", KVD_COL_TEXT, "1", "type in which this run stored the cache"},
    {"removal_rate", KVD_COL_REAL, "1", "singular value removal rate r of Eq. 6"},
    {"p_wanted", KVD_COL_REAL, "1", "overall p that was asked for"},
    {"rate_key", KVD_COL_TEXT, "1", "key that trades bytes for quality, empty where the method has none"},
    {"rate_value", KVD_COL_REAL, "1", "its value; of p the overall p of the widths"},
    {"overall_p", KVD_COL_REAL, "1", "fraction of stored elements removed"},
    {"overall_p_qk", KVD_COL_REAL, "1", "fraction of the elements of K removed"},
    {"overall_p_v", KVD_COL_REAL, "1", "fraction of the elements of V removed"},
    {"low_p_qk", KVD_COL_REAL, "1",
     "of entries at the low level, fraction of the elements of K removed; NaN: no level"},
    {"low_p_v", KVD_COL_REAL, "1",
     "of entries at the low level, fraction of the elements of V removed; NaN: no level"},
    {"overall_p16", KVD_COL_REAL, "1", "the same with widths padded to multiples of 16"},
    {"prompt", KVD_COL_INT, "1", "rows of a sequence before the first that is scored"},
    {"n_sequences", KVD_COL_INT, "1", "sequences evaluated"},
    {"n_tokens", KVD_COL_INT, "1", "tokens evaluated"},
    {"n_predictions", KVD_COL_INT, "1", "next tokens predicted: one fewer than tokens in each sequence"},
    {"nll", KVD_COL_REAL, "nat", "mean negative log-likelihood of the next token"},
    {"nll_lo", KVD_COL_REAL, "nat", "its 95 % interval over sequences, lower end"},
    {"nll_hi", KVD_COL_REAL, "nat", "its 95 % interval over sequences, upper end"},
    {"perplexity", KVD_COL_REAL, "1", "exp of nll"},
    {"perplexity_lo", KVD_COL_REAL, "1", "its 95 % interval, lower end"},
    {"perplexity_hi", KVD_COL_REAL, "1", "its 95 % interval, upper end"},
    {"top1", KVD_COL_REAL, "1", "fraction of next tokens that are the argmax"},
    {"top1_lo", KVD_COL_REAL, "1", "its 95 % interval, lower end"},
    {"top1_hi", KVD_COL_REAL, "1", "its 95 % interval, upper end"},
    {"top1_share", KVD_COL_REAL, "1", "top1 as a share of the uncompressed model's, paired by sequence"},
    {"top1_share_lo", KVD_COL_REAL, "1", "its 95 % interval, lower end"},
    {"top1_share_hi", KVD_COL_REAL, "1", "its 95 % interval, upper end"},
    {"kl", KVD_COL_REAL, "nat", "mean KL(uncompressed || this) over the vocabulary per prediction"},
    {"kl_lo", KVD_COL_REAL, "nat", "its 95 % interval, lower end"},
    {"kl_hi", KVD_COL_REAL, "nat", "its 95 % interval, upper end"},
    {"agree", KVD_COL_REAL, "1", "fraction of predictions whose argmax is the uncompressed model's"},
    {"attention_error", KVD_COL_REAL, "1",
     "mean over layers and heads of ||v - u|| / ||u||, u the uncompressed attention output"},
    {"attention_error_zdc", KVD_COL_REAL, "1",
     "mean over layers, heads and elements of |v - u| / |u| as ZDC prints it, elements with u = 0 left out"},
    {"attention_error_zeros", KVD_COL_REAL, "1", "how many elements with u = 0 were left out of it"},
    {"full_rank_error", KVD_COL_REAL, "1",
     "guard: largest change of a logit at full width over the rms of the logits"},
    {"element_bytes", KVD_COL_INT, "byte", "bytes per element in the next three columns: a 16-bit cache"},
    {"bytes_per_token_dense", KVD_COL_REAL, "byte", "cache of the uncompressed model per token"},
    {"bytes_per_token_nominal", KVD_COL_REAL, "byte", "kept elements per token"},
    {"bytes_per_token_padded", KVD_COL_REAL, "byte", "the same with widths padded to multiples of 16"},
    {"basis_bytes", KVD_COL_REAL, "byte",
     "Q-K projections of the whole model; those of V are folded into the weights"},
    {"stored_element_bytes", KVD_COL_INT, "byte", "bytes per element that this run stored"},
    {"bytes_per_token_stored", KVD_COL_REAL, "byte",
     "what the cache of this run held per token seen, as counted; row by row the mean over all rows after "
     "the prompt"},
    {"bytes_per_token_side", KVD_COL_REAL, "byte",
     "of these, scales, zero points, tables, indices, scores, positions"},
    {"cache_share", KVD_COL_REAL, "1", "bytes_per_token_stored over an uncompressed 16-bit cache"},
    {"weight_bytes", KVD_COL_REAL, "byte", "all weights of the model that this row ran"},
    {"engine", KVD_COL_TEXT, "1", "what computed the attention of this point"},
    {"seconds", KVD_COL_REAL, "s", "forward passes of this point on this machine, without the output head"},
};
enum { N_COLUMNS = sizeof columns / sizeof *columns };

/* With --seeds. */
static const kvd_column seed_columns[] = {
    {"n_seeds", KVD_COL_INT, "1", "seeds whose mean the row is; 1: it is of one"},
    {"seed", KVD_COL_INT, "1", "what its method draws from; of a mean, the first"},
    {"nll_sd", KVD_COL_REAL, "nat", "sample standard deviation of nll over seeds"},
    {"top1_sd", KVD_COL_REAL, "1", "sample standard deviation of top1 over seeds"},
    {"kl_sd", KVD_COL_REAL, "nat", "sample standard deviation of kl over seeds"},
    {"agree_sd", KVD_COL_REAL, "1", "sample standard deviation of agree over seeds"},
};
enum { N_SEED_COLUMNS = sizeof seed_columns / sizeof *seed_columns };

static int make_rows(kvd_accuracy *a, kvd_err *err)
{
    const int n_free = a->free_columns ? kvd_free_columns_count(a->free_columns) : 0;
    const int n_seeds = a->seeds ? N_SEED_COLUMNS : 0, n = N_COLUMNS + n_seeds + n_free;
    if (!(a->all_columns = malloc((size_t)n * sizeof *a->all_columns)))
        return kvd_no_memory(err, "columns", (size_t)n * sizeof *a->all_columns);
    memcpy(a->all_columns, columns, sizeof columns);
    memcpy(a->all_columns + N_COLUMNS, seed_columns, (size_t)n_seeds * sizeof *seed_columns);
    for (int i = 0; i < n_free; i++)
        a->all_columns[N_COLUMNS + n_seeds + i] = *kvd_free_columns_at(a->free_columns, i);
    a->rows = kvd_rows_new(a->all_columns, n, err);
    return a->rows ? 0 : -1;
}

int kvd_accuracy_init(kvd_accuracy *a, const kvd_config *config, const char *label, size_t n_sequences,
                      size_t n_tokens, const kvd_free_run *f, bool seeds, uint64_t seed, kvd_err *err)
{
    memset(a, 0, sizeof *a);
    a->config = config;
    a->n_sequences = n_sequences;
    a->n_tokens = n_tokens;
    snprintf(a->label, sizeof a->label, "%s", label);
    a->seeds = seeds;
    a->seed = seed;
    if ((f && !(a->free_columns = kvd_free_columns_new(f, seeds, err))) || make_rows(a, err)) {
        kvd_accuracy_release(a);
        return -1;
    }
    a->predictions = calloc(n_sequences, sizeof *a->predictions);
    if (!a->predictions) {
        kvd_accuracy_release(a);
        return kvd_no_memory(err, "samples per sequence",
                             (unsigned long long)n_sequences * sizeof *a->predictions);
    }
    return 0;
}

void kvd_accuracy_release(kvd_accuracy *a)
{
    kvd_rows_free(a->rows);
    kvd_free_columns_free(a->free_columns);
    free(a->all_columns);
    free(a->relative);
    free(a->zdc);
    free(a->nll);
    free(a->top1);
    free(a->kl);
    free(a->agree);
    free(a->predictions);
    memset(a, 0, sizeof *a);
}

/* ---- adding ----------------------------------------------------------------------------------- */

static size_t heads_of(const kvd_accuracy *a)
{
    return (size_t)a->config->n_layers * (size_t)a->config->n_heads;
}

static int grow(kvd_accuracy *a, kvd_err *err)
{
    if (a->n < a->capacity)
        return 0;
    const size_t rows = a->capacity ? 2 * a->capacity : 16;
    double **const blocks[] = {&a->relative, &a->zdc, &a->nll, &a->top1, &a->kl, &a->agree};
    for (int i = 0; i < 6; i++) {
        const size_t n = i < 2 ? heads_of(a) : a->n_sequences;
        double *const grown =
            n > SIZE_MAX / sizeof(double) / rows ? NULL : realloc(*blocks[i], rows * n * sizeof(double));
        if (!grown)
            return kvd_no_memory(err, "samples of all points", (unsigned long long)rows * n * sizeof(double));
        *blocks[i] = grown;
    }
    a->capacity = rows;
    return 0;
}

static void put_seeds(kvd_rows *r, const kvd_choice *choice)
{
    const bool several = choice->n_seeds > 1;
    kvd_rows_int(r, "n_seeds", several ? (int64_t)choice->n_seeds : 1);
    kvd_rows_int(r, "seed", (int64_t)choice->plan.seed);
    kvd_rows_real(r, "nll_sd", several ? choice->spread.nll : NAN);
    kvd_rows_real(r, "top1_sd", several ? choice->spread.top1 : NAN);
    kvd_rows_real(r, "kl_sd", several ? choice->spread.kl : NAN);
    kvd_rows_real(r, "agree_sd", several ? choice->spread.agree : NAN);
}

static double put_samples(kvd_accuracy *a, const kvd_choice *choice)
{
    double predictions = 0;
    for (size_t s = 0; s < a->n_sequences; s++) {
        const kvd_quality *const q = &choice->per_sequence[s];
        const size_t at = a->n * a->n_sequences + s;
        a->nll[at] = q->nll;
        a->top1[at] = q->top1;
        a->kl[at] = q->kl;
        a->agree[at] = q->agree;
        a->predictions[s] = q->n;
        predictions += q->n;
    }
    for (int l = 0; l < a->config->n_layers; l++)
        for (int h = 0; h < a->config->n_heads; h++) {
            const size_t at = a->n * heads_of(a) + (size_t)l * (size_t)a->config->n_heads + (size_t)h;
            a->relative[at] = choice->error.diff2 ? kvd_attention_error_norm(&choice->error, l, h) : NAN;
            a->zdc[at] = choice->error.diff2 ? kvd_attention_error_zdc(&choice->error, l, h) : NAN;
        }
    return predictions;
}

static void put_bytes(kvd_accuracy *a, const kvd_point *point, const kvd_choice *choice)
{
    kvd_rows *const r = a->rows;
    kvd_cache_bytes b;
    kvd_cache_count_bytes(a->config, point->cut ? &point->dims : NULL, KVD_ACCURACY_ELEMENT_BYTES, &b);
    /* Of what tokens and bits take away no fraction of elements speaks. */
    const bool widths = point->cut || !kvd_plan_beyond_widths(&choice->plan);
    kvd_rows_real(r, "overall_p", widths ? b.overall_p : NAN);
    kvd_rows_real(r, "overall_p16", widths ? b.overall_p16 : NAN);
    kvd_rows_real(r, "overall_p_qk", point->side_p[0]);
    kvd_rows_real(r, "overall_p_v", point->side_p[1]);
    kvd_rows_real(r, "low_p_qk", point->low_p[0]);
    kvd_rows_real(r, "low_p_v", point->low_p[1]);
    kvd_rows_int(r, "element_bytes", KVD_ACCURACY_ELEMENT_BYTES);
    kvd_rows_real(r, "bytes_per_token_dense", b.dense);
    kvd_rows_real(r, "bytes_per_token_nominal", widths ? b.nominal : NAN);
    kvd_rows_real(r, "bytes_per_token_padded", widths ? b.padded : NAN);
    kvd_rows_real(r, "basis_bytes", b.basis);
    const kvd_stepwise_account *const steps = &choice->account.steps;
    const double element = (double)kvd_dtype_bytes(choice->plan.type),
                 whole = b.dense / KVD_ACCURACY_ELEMENT_BYTES * element;
    const bool blocks = !kvd_plan_stepwise(&choice->plan);
    const double stored = blocks ? (double)choice->account.bytes_stored / (double)a->n_tokens
                                 : (steps->payload + steps->side + steps->entries) / steps->dense * whole;
    kvd_rows_int(r, "stored_element_bytes", (int64_t)kvd_dtype_bytes(choice->plan.type));
    kvd_rows_real(r, "bytes_per_token_stored", stored);
    kvd_rows_real(r, "bytes_per_token_side",
                  blocks ? 0 : (steps->side + steps->entries) / steps->dense * whole);
    kvd_rows_real(r, "cache_share", stored / b.dense);
}

static void put_rate(kvd_rows *r, const kvd_method *m, const kvd_point *point)
{
    kvd_method_rate rate;
    kvd_err none;
    if (kvd_method_rate_find(m, NULL, &rate, &none))
        return;
    kvd_rows_text(r, "rate_key", rate.name);
    kvd_rows_real(r, "rate_value", rate.p ? point->overall_p : kvd_method_rate_value(m, &rate));
}

int kvd_accuracy_add(kvd_accuracy *a, const char *purpose, const kvd_point_source *source,
                     const kvd_point *point, const kvd_choice *choice, const kvd_quality_summary *summary,
                     double full_rank_error, kvd_err *err)
{
    kvd_rows *const r = a->rows;
    if (grow(a, err) || kvd_rows_begin(r, err))
        return -1;
    const kvd_dims_method *const m = source->method->dims;
    kvd_rows_text(r, "method", kvd_method_name(source->method));
    kvd_rows_text(r, "settings", source->method->settings);
    kvd_rows_text(r, "label", a->label);
    kvd_rows_text(r, "calibration",
                  source->spectrum                                        ? source->spectrum->label
                  : kvd_plan_needs(&choice->plan) & KVD_NEEDS_ACTIVATIONS ? a->calibrated
                                                                          : "");
    kvd_rows_text(r, "purpose", purpose);
    kvd_rows_text(r, "rule", point->rule);
    kvd_rows_text(r, "pair_qk", m && source->method->cut != KVD_CUT_V ? kvd_pair_name[m->pair[0]] : "");
    kvd_rows_text(r, "pair_v", m && source->method->cut != KVD_CUT_QK ? kvd_pair_name[m->pair[1]] : "");
    kvd_rows_text(r, "cache", kvd_dtype_name(choice->plan.type));
    kvd_rows_real(r, "removal_rate", point->removal_rate);
    kvd_rows_real(r, "p_wanted", point->p_wanted);
    put_rate(r, source->method, point);
    put_bytes(a, point, choice);
    kvd_rows_int(r, "prompt", (int64_t)choice->plan.prompt);
    kvd_rows_int(r, "n_sequences", (int64_t)a->n_sequences);
    kvd_rows_int(r, "n_tokens", (int64_t)a->n_tokens);
    kvd_rows_int(r, "n_predictions", (int64_t)put_samples(a, choice));
    kvd_rows_interval(r, "nll", &summary->nll);
    kvd_rows_interval(r, "perplexity", &summary->perplexity);
    kvd_rows_interval(r, "top1", &summary->top1);
    kvd_rows_interval(r, "top1_share", &summary->top1_share);
    kvd_rows_interval(r, "kl", &summary->kl);
    kvd_rows_real(r, "agree", summary->agree.value);
    if (choice->error.diff2) {
        double norm, zdc, zeros;
        kvd_attention_error_mean(&choice->error, &norm, &zdc, &zeros);
        kvd_rows_real(r, "attention_error", norm);
        kvd_rows_real(r, "attention_error_zdc", zdc);
        kvd_rows_real(r, "attention_error_zeros", zeros);
    }
    kvd_rows_real(r, "full_rank_error", full_rank_error);
    kvd_rows_real(r, "weight_bytes", choice->weight_bytes);
    kvd_rows_text(r, "engine", choice->engine);
    kvd_rows_real(r, "seconds", choice->seconds);
    if (a->seeds)
        put_seeds(r, choice);
    if (a->free_columns &&
        kvd_free_columns_add(a->free_columns, r, &choice->free_run,
                             choice->n_seeds > 1 ? choice->spread.measure : NULL, a->seed, err))
        return -1;
    a->n++;
    return 0;
}

double kvd_accuracy_saving(const kvd_accuracy *a, size_t row)
{
    const kvd_rows *const r = a->rows;
    const double whole = kvd_row_real(r, row, "bytes_per_token_dense") *
                         kvd_row_real(r, row, "stored_element_bytes") / kvd_row_real(r, row, "element_bytes");
    return 1 - kvd_row_real(r, row, "bytes_per_token_stored") / whole;
}

kvd_interval kvd_accuracy_top1_share(const kvd_accuracy *a, size_t row)
{
    const kvd_rows *const r = a->rows;
    return (kvd_interval){kvd_row_real(r, row, "top1_share"), kvd_row_real(r, row, "top1_share_lo"),
                          kvd_row_real(r, row, "top1_share_hi")};
}

int kvd_accuracy_take(kvd_accuracy *a, const kvd_accuracy *from, size_t row, kvd_err *err)
{
    kvd_rows *const r = a->rows;
    if (grow(a, err) || kvd_rows_begin(r, err))
        return -1;
    for (int c = 0; c < kvd_rows_columns(r); c++) {
        const kvd_column *const column = kvd_rows_column(r, c);
        const int at = kvd_rows_find(from->rows, column->name);
        if (at < 0 || kvd_rows_column(from->rows, at)->kind != column->kind)
            return kvd_fail(err, "saved rows have no column '%s' of its kind", column->name);
        if (column->kind == KVD_COL_TEXT)
            kvd_rows_text(r, column->name, kvd_rows_get_text(from->rows, row, at));
        else if (column->kind == KVD_COL_INT)
            kvd_rows_int(r, column->name, kvd_rows_get_int(from->rows, row, at));
        else
            kvd_rows_real(r, column->name, kvd_rows_get_real(from->rows, row, at));
    }
    double *const to[] = {a->relative, a->zdc, a->nll, a->top1, a->kl, a->agree};
    const double *const of[] = {from->relative, from->zdc, from->nll, from->top1, from->kl, from->agree};
    for (int i = 0; i < 6; i++) {
        const size_t n = i < 2 ? heads_of(a) : a->n_sequences;
        memcpy(to[i] + a->n * n, of[i] + row * n, n * sizeof(double));
    }
    memcpy(a->predictions, from->predictions, a->n_sequences * sizeof *a->predictions);
    a->n++;
    return 0;
}

/* ---- files ---------------------------------------------------------------------------------- */

/* Raw samples: what a file has of them, and where they stand in memory. */
typedef struct {
    kvd_h5_spec spec;
    double *data;
} samples;
enum { N_SAMPLES = 7 };

static void list_samples(const kvd_accuracy *a, samples list[N_SAMPLES])
{
    const hsize_t rows = a->n, layers = (hsize_t)a->config->n_layers, heads = (hsize_t)a->config->n_heads;
    const hid_t f64 = H5T_IEEE_F64LE;
    const samples all[N_SAMPLES] = {
        {{"/attention_error/relative",
          "||v - u|| / ||u|| of the attention output of a head",
          "1",
          f64,
          3,
          {rows, layers, heads},
          {"row", "layer", "head"}},
         a->relative},
        {{"/attention_error/zdc",
          "mean |v - u| / |u| over elements with u != 0",
          "1",
          f64,
          3,
          {rows, layers, heads},
          {"row", "layer", "head"}},
         a->zdc},
        {{"/sequences/n", "predictions in a sequence", "1", f64, 1, {a->n_sequences}, {"sequence"}},
         a->predictions},
        {{"/sequences/nll",
          "sum of negative log-likelihoods over a sequence",
          "nat",
          f64,
          2,
          {rows, a->n_sequences},
          {"row", "sequence"}},
         a->nll},
        {{"/sequences/top1",
          "next tokens of a sequence that are the argmax",
          "1",
          f64,
          2,
          {rows, a->n_sequences},
          {"row", "sequence"}},
         a->top1},
        {{"/sequences/kl",
          "sum of KL(uncompressed || this) over a sequence",
          "nat",
          f64,
          2,
          {rows, a->n_sequences},
          {"row", "sequence"}},
         a->kl},
        {{"/sequences/agree",
          "predictions of a sequence with the uncompressed model's argmax",
          "1",
          f64,
          2,
          {rows, a->n_sequences},
          {"row", "sequence"}},
         a->agree},
    };
    memcpy(list, all, sizeof all);
}

int kvd_accuracy_write(kvd_h5 *f, const kvd_accuracy *a, kvd_err *err)
{
    samples all[N_SAMPLES];
    list_samples(a, all);
    if (kvd_rows_write(f, a->rows, err))
        return -1;
    for (size_t i = 0; i < N_SAMPLES; i++)
        if (kvd_h5_write(f, &all[i].spec, H5T_NATIVE_DOUBLE, all[i].data, err))
            return -1;
    return a->free_columns ? kvd_free_columns_write(f, a->free_columns, err) : 0;
}

int kvd_accuracy_load(kvd_h5 *f, kvd_accuracy *a, kvd_err *err)
{
    samples all[N_SAMPLES];
    kvd_rows *const rows = kvd_rows_load(f, err);
    if (!rows)
        return -1;
    kvd_rows_free(a->rows);
    a->rows = rows;
    const size_t n = kvd_rows_count(rows);
    for (a->n = 0; a->n < n; a->n = a->capacity < n ? a->capacity : n)
        if (grow(a, err))
            return -1;
    list_samples(a, all);
    for (size_t i = 0; i < N_SAMPLES; i++)
        if (kvd_h5_read(f, all[i].spec.path, all[i].spec.rank, all[i].spec.dims, H5T_NATIVE_DOUBLE,
                        all[i].data, err))
            return -1;
    return 0;
}

static int put_end(kvd_h5 *f, const char *where, const char *suffix, bool p, const kvd_target_end *e,
                   kvd_err *err)
{
    char name[3][40];
    snprintf(name[0], sizeof name[0], "p%s", suffix);
    snprintf(name[1], sizeof name[1], "value%s", suffix);
    snprintf(name[2], sizeof name[2], "saving%s", suffix);
    return kvd_h5_put_double(f, where, name[0], p ? e->value : NAN, err) ||
                   kvd_h5_put_double(f, where, name[1], e->value, err) ||
                   kvd_h5_put_double(f, where, name[2], e->saving, err)
               ? -1
               : 0;
}

int kvd_accuracy_write_target(kvd_h5 *f, const char *name, const kvd_method *m, const char *key,
                              const kvd_target *t, kvd_err *err)
{
    char where[100];
    const bool p = !strcmp(key, "p");
    const char *const rule = !m->dims ? "none" : m->dims->one_p ? "uniform" : kvd_ranks_name[m->ranks];
    snprintf(where, sizeof where, "/target/%s", name);
    return kvd_h5_put_text(f, where, "method", kvd_method_name(m), err) ||
                   kvd_h5_put_text(f, where, "settings", m->settings, err) ||
                   kvd_h5_put_text(f, where, "rule", rule, err) ||
                   kvd_h5_put_text(f, where, "key", key, err) ||
                   kvd_h5_put_double(f, where, "target", t->target, err) ||
                   put_end(f, where, "", p, &t->kept, err) ||
                   put_end(f, where, "_misses", p, &t->misses, err) ||
                   put_end(f, where, "_lo", p, &t->surely_kept, err) ||
                   put_end(f, where, "_hi", p, &t->surely_lost, err) ||
                   put_end(f, where, "_last_kept", p, &t->last_kept, err) ||
                   kvd_h5_put_int(f, where, "monotone", t->monotone, err) ||
                   kvd_h5_put_int(f, where, "n_points", (int64_t)t->n_points, err)
               ? -1
               : 0;
}

int kvd_accuracy_write_target_texts(kvd_h5 *f, const char *name, const kvd_target *of_text, size_t n_texts,
                                    kvd_err *err)
{
    static const struct {
        const char *column, *meaning;
        size_t at;
    } answer[] = {
        {"p", "largest evaluated p before the first that misses, of one text",
         offsetof(kvd_target, kept.value)},
        {"p_misses", "that first one", offsetof(kvd_target, misses.value)},
        {"p_lo", "as p, for the lower end of the interval", offsetof(kvd_target, surely_kept.value)},
        {"p_hi", "first p whose upper end misses", offsetof(kvd_target, surely_lost.value)},
    };
    double *const x = malloc(n_texts * sizeof *x);
    if (!x)
        return kvd_no_memory(err, "targets of the texts", n_texts * sizeof *x);
    int status = 0;
    for (size_t i = 0; !status && i < sizeof answer / sizeof *answer; i++) {
        char path[120];
        snprintf(path, sizeof path, "/target/%s/texts/%s", name, answer[i].column);
        for (size_t t = 0; t < n_texts; t++)
            memcpy(&x[t], (const char *)&of_text[t] + answer[i].at, sizeof *x);
        const kvd_h5_spec spec = {path, answer[i].meaning, "1", H5T_IEEE_F64LE, 1, {n_texts}, {"text"}};
        status = kvd_h5_write(f, &spec, H5T_NATIVE_DOUBLE, x, err);
    }
    free(x);
    return status;
}

int kvd_accuracy_write_difference(kvd_h5 *f, const char *name, const char *versus,
                                  const kvd_target_difference_result *d, kvd_err *err)
{
    char where[80];
    snprintf(where, sizeof where, "/target/%s", name);
    const struct {
        const char *name;
        double value;
    } all[] = {{"p_crossing", d->b.value},
               {"p_crossing_lo", d->b.lo},
               {"p_crossing_hi", d->b.hi},
               {"versus_p", d->a.value},
               {"versus_p_lo", d->a.lo},
               {"versus_p_hi", d->a.hi},
               {"difference", d->difference.value},
               {"difference_lo", d->difference.lo},
               {"difference_hi", d->difference.hi}};
    if (kvd_h5_put_text(f, where, "versus", versus, err))
        return -1;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (kvd_h5_put_double(f, where, all[i].name, all[i].value, err))
            return -1;
    return 0;
}
