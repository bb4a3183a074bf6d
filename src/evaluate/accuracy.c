/* Fills the results table of kvdim-eval: accuracy, saved bytes and confidence intervals. */
#include "evaluate/eval_run.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int kvd_accuracy_init(kvd_accuracy *a, const kvd_config *config, const char *label,
                      size_t n_sequences, size_t n_tokens, bool seeds, kvd_err *err)
{
    memset(a, 0, sizeof *a);
    a->config = config;
    a->n_sequences = n_sequences;
    a->n_tokens = n_tokens;
    snprintf(a->label, sizeof a->label, "%s", label);
    a->seeds = seeds;
    a->rows = kvd_accuracy_rows(config->n_layers, config->n_heads, n_sequences, seeds, err);
    if (!a->rows)
        return -1;
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
    free(a->predictions);
    memset(a, 0, sizeof *a);
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

/* Stores attention errors per head and prediction scores per sequence in the newest table row.
 * Returns the number of predicted tokens. */
static double put_samples(kvd_accuracy *a, const kvd_choice *choice)
{
    const size_t row = kvd_rows_count(a->rows) - 1;
    double *x[KVD_ACCURACY_SAMPLES], predictions = 0;
    for (int i = 0; i < KVD_ACCURACY_SAMPLES; i++)
        x[i] = kvd_rows_samples(a->rows, i, row);
    for (size_t s = 0; s < a->n_sequences; s++) {
        const kvd_quality *const q = &choice->per_sequence[s];
        x[KVD_ACCURACY_NLL][s] = q->nll;
        x[KVD_ACCURACY_TOP1][s] = q->top1;
        x[KVD_ACCURACY_KL][s] = q->kl;
        x[KVD_ACCURACY_AGREE][s] = q->agree;
        a->predictions[s] = q->n;
        predictions += q->n;
    }
    for (int l = 0; choice->error.diff2 && l < a->config->n_layers; l++)
        for (int h = 0; h < a->config->n_heads; h++) {
            *x[KVD_ACCURACY_RELATIVE]++ = kvd_attention_error_norm(&choice->error, l, h);
            *x[KVD_ACCURACY_ZDC]++ = kvd_attention_error_zdc(&choice->error, l, h);
        }
    return predictions;
}

static void put_bytes(kvd_accuracy *a, const kvd_point *point, const kvd_choice *choice)
{
    kvd_rows *const r = a->rows;
    kvd_cache_bytes b;
    kvd_cache_count_bytes(a->config, point->dims.head ? &point->dims : NULL,
                          KVD_ACCURACY_ELEMENT_BYTES, &b);
    const bool widths = point->dims.head || !kvd_plan_beyond_widths(&choice->plan);
    kvd_rows_int(r, "element_bytes", KVD_ACCURACY_ELEMENT_BYTES);
    /* share of tokens that the cache holds; below 1 in models with sliding windows, whose layers
     * drop old tokens */
    const double held = (double)choice->account.tokens_held / (double)choice->account.tokens,
                 dense = b.dense * held;
    kvd_rows_real(r, "bytes_per_token_dense", dense);
    kvd_rows_real(r, "bytes_per_token_nominal", widths ? b.nominal : NAN);
    kvd_rows_real(r, "bytes_per_token_padded", widths ? b.padded : NAN);
    kvd_rows_real(r, "basis_bytes", b.basis);
    const kvd_stepwise_account *const steps = &choice->account.steps;
    const double element = (double)kvd_dtype_bytes(choice->plan.type),
                 whole = dense / KVD_ACCURACY_ELEMENT_BYTES * element;
    const bool blocks = !kvd_plan_stepwise(&choice->plan);
    /* number of random seeds whose cache sizes are added up in choice->account */
    const double seeds = choice->n_seeds > 1 ? (double)choice->n_seeds : 1;
    const double stored =
        blocks ? (double)choice->account.bytes_stored / (double)a->n_tokens / seeds
               : (steps->payload + steps->side + steps->entries) / steps->dense * whole;
    kvd_rows_int(r, "stored_element_bytes", (int64_t)kvd_dtype_bytes(choice->plan.type));
    kvd_rows_real(r, "bytes_per_token_stored", stored);
    kvd_rows_real(r, "bytes_per_token_side",
                  blocks ? 0 : (steps->side + steps->entries) / steps->dense * whole);
    kvd_rows_real(r, "bytes_per_token_read", blocks ? stored : steps->read / steps->dense * whole);
    kvd_rows_real(r, "cache_share", stored / dense);
}

static int put_changes(kvd_rows *r, const kvd_prediction_change *each, size_t n, kvd_err *err)
{
    kvd_change_summary x;
    if (kvd_quality_changes(each, n, &x, err))
        return -1;
    kvd_rows_real(r, "kl_median", x.kl_median);
    kvd_rows_real(r, "kl_p90", x.kl_p90);
    kvd_rows_real(r, "kl_p99", x.kl_p99);
    kvd_rows_real(r, "kl_p999", x.kl_p999);
    kvd_rows_real(r, "kl_max", x.kl_max);
    kvd_rows_real(r, "p_change", x.p_change);
    return 0;
}

int kvd_accuracy_add(kvd_accuracy *a, const char *purpose, const kvd_point *point,
                     const kvd_choice *choice, const kvd_quality_summary *summary,
                     double full_rank_error, kvd_err *err)
{
    kvd_rows *const r = a->rows;
    if (kvd_rows_begin(r, err))
        return -1;
    kvd_point_columns_put(r, a->config, point, &choice->plan, a->label, a->calibrated, purpose);
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
    if (choice->each && put_changes(r, choice->each, choice->n_each, err))
        return -1;
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
    return 0;
}

double kvd_accuracy_saving(const kvd_accuracy *a, size_t row, bool read)
{
    const kvd_rows *const r = a->rows;
    const double whole = kvd_row_real(r, row, "bytes_per_token_dense") *
                         kvd_row_real(r, row, "stored_element_bytes") /
                         kvd_row_real(r, row, "element_bytes");
    return 1 -
           kvd_row_real(r, row, read ? "bytes_per_token_read" : "bytes_per_token_stored") / whole;
}

kvd_interval kvd_accuracy_top1_share(const kvd_accuracy *a, size_t row)
{
    const kvd_rows *const r = a->rows;
    return (kvd_interval){kvd_row_real(r, row, "top1_share"), kvd_row_real(r, row, "top1_share_lo"),
                          kvd_row_real(r, row, "top1_share_hi")};
}

int kvd_accuracy_take(kvd_accuracy *a, const kvd_accuracy *from, size_t row, kvd_err *err)
{
    memcpy(a->predictions, from->predictions, a->n_sequences * sizeof *a->predictions);
    return kvd_rows_take(a->rows, from->rows, row, err);
}

int kvd_accuracy_write(kvd_h5 *f, const kvd_accuracy *a, kvd_err *err)
{
    return kvd_accuracy_rows_write(f, a->rows, a->predictions, err);
}

int kvd_accuracy_load(kvd_h5 *f, kvd_accuracy *a, kvd_err *err)
{
    kvd_rows *const rows = kvd_accuracy_rows_load(f, a->rows, a->predictions, err);
    if (!rows)
        return -1;
    kvd_rows_free(a->rows);
    a->rows = rows;
    return 0;
}

int kvd_accuracy_write_target_texts(kvd_h5 *f, const char *name, const kvd_target *of_text,
                                    size_t n_texts, kvd_err *err)
{
    static const struct {
        const char *column, *meaning;
        size_t at;
    } answer[] = {
        {"p", "largest evaluated p before the first that misses, of one text",
         offsetof(kvd_target, kept.value)},
        {"p_misses", "that first one", offsetof(kvd_target, misses.value)},
        {"p_lo", "as p, for the lower end of the interval",
         offsetof(kvd_target, surely_kept.value)},
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
        const kvd_h5_spec spec = {path, answer[i].meaning, "1",     H5T_IEEE_F64LE,
                                  1,    {n_texts},         {"text"}};
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
