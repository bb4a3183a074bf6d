/* Proposes parameters of compression method ZDC with which perplexity rises by a given amount
 * (kvdim-fit). A regression predicts the rise. */
#include "analysis/regression.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/rows.h"
#include "methods/widths.h"

static const char rule_by_pair[] = "eq6-by-pair";

static int check_alike(const kvd_sweep *a, const char *path_a, const kvd_sweep *b,
                       const char *path_b, kvd_err *err)
{
    if (strcmp(a->method, b->method) || strcmp(a->rest, b->rest) || a->pair[0] != b->pair[0] ||
        a->pair[1] != b->pair[1])
        return kvd_fail(err, "'%s' sweeps '%s' (%s), '%s' '%s' (%s): one method at a time", path_a,
                        a->method, a->rest, path_b, b->method, b->rest);
    return 0;
}

static void number_models(kvd_fit_proposal *x, const kvd_spectrum *s)
{
    for (size_t i = 0; i < x->n_sweeps; i++) {
        size_t k = 0;
        while (k < i && strcmp(x->sweep[k].model.hash, x->sweep[i].model.hash))
            k++;
        x->model_of[i] = k < i ? x->model_of[k] : x->n_models++;
    }
    x->target = x->n_models;
    for (size_t i = 0; i < x->n_sweeps; i++)
        if (!strcmp(x->sweep[i].model.hash, s->model.hash))
            x->target = x->model_of[i];
}

static int read_sweeps(kvd_fit_proposal *x, const char *const *path, size_t n,
                       const kvd_spectrum *s, kvd_err *err)
{
    for (size_t i = 0; i < n; i++, x->n_sweeps++) {
        kvd_sweep *const w = &x->sweep[i];
        if (kvd_sweep_read(w, path[i], err))
            return -1;
        x->n_tried += w->n;
        if (strcmp(w->rule, "eq6")) {
            kvd_sweep_release(w);
            return kvd_fail(err, "'%s': widths by rule %s, proposals are of eq6", path[i], w->rule);
        }
        if (i && check_alike(&x->sweep[0], path[0], w, path[i], err)) {
            kvd_sweep_release(w);
            return -1;
        }
    }
    x->best = malloc(x->n_tried * sizeof *x->best);
    x->best_model = malloc(x->n_tried * sizeof *x->best_model);
    if (!x->best || !x->best_model)
        return kvd_no_memory(err, "settings",
                             x->n_tried * (sizeof *x->best + sizeof *x->best_model));
    number_models(x, s);
    for (size_t i = 0; i < n; i++) {
        const size_t first = x->n_best;
        x->n_best += kvd_sweep_oracle(x->sweep[i].tried, x->sweep[i].n, x->best + first);
        for (size_t k = first; k < x->n_best; k++)
            x->best_model[k] = x->model_of[i];
    }
    return 0;
}

static int alloc(kvd_fit_proposal *x, size_t n, kvd_rates *r, kvd_err *err)
{
    x->n = n;
    x->proposal = calloc(n, sizeof *x->proposal);
    r->n_points = 2 * n;
    r->removal_rate = calloc(2 * n, sizeof *r->removal_rate);
    r->overall_p = calloc(2 * n, sizeof *r->overall_p);
    r->overall_p16 = calloc(2 * n, sizeof *r->overall_p16);
    r->widths = calloc(2 * n, sizeof *r->widths);
    return x->proposal && r->removal_rate && r->overall_p && r->overall_p16 && r->widths
               ? 0
               : kvd_no_memory(err, "proposals", n * (sizeof *x->proposal + 6 * sizeof(double)));
}

/* Chooses each head's number of kept dimensions. p: removed fractions, for Q and K, then for V. */
static int widths_of(const kvd_spectrum *s, const kvd_pair pair[2], const double p[2],
                     kvd_widths *w, kvd_err *err)
{
    kvd_widths v = {0};
    int status = kvd_status(kvd_widths_for_p(s, pair, 0, p[0], false, NULL, w, err) ||
                            kvd_widths_for_p(s, pair, 1, p[1], false, NULL, &v, err));
    if (!status)
        memcpy(w->kept[1], v.kept[1],
               (size_t)v.n_layers * (size_t)v.n_kv_heads * sizeof *v.kept[1]);
    kvd_widths_release(&v);
    return status;
}

static int put_points(const kvd_fit_proposal *x, size_t i, const kvd_spectrum *s, kvd_rates *r,
                      kvd_err *err)
{
    for (size_t low = 0; low < 2; low++) {
        const size_t at = 2 * i + low;
        if (widths_of(s, r->pair, x->proposal[i].set + (low ? KVD_SET_P_U_QK : KVD_SET_P_QK),
                      &r->widths[at], err))
            return -1;
        r->removal_rate[at] = NAN;
        r->overall_p[at] = kvd_widths_p(&r->widths[at], 0);
        r->overall_p16[at] = kvd_widths_p(&r->widths[at], 1);
    }
    return 0;
}

int kvd_fit_proposal_make(kvd_fit_proposal *x, const char *const *path, size_t n_paths,
                          const double *loss, size_t n, const kvd_spectrum *s, kvd_rates *r,
                          kvd_err *err)
{
    if (read_sweeps(x, path, n_paths, s, err) ||
        kvd_regression_fit(&x->fit, x->best, x->best_model, x->n_best, x->n_models, err) ||
        alloc(x, n, r, err))
        return -1;
    snprintf(r->rule, sizeof r->rule, "%s", rule_by_pair);
    memcpy(r->pair, x->sweep[0].pair, sizeof r->pair);
    /* largest fraction of dimensions that may be removed; each head then keeps one dimension */
    const double most = 1 - 1.0 / s->model.d_head;
    for (size_t i = 0; i < n; i++) {
        kvd_regression_propose(&x->fit, x->target, loss[i], most, &x->proposal[i]);
        if (put_points(x, i, s, r, err))
            return kvd_in(err, "a loss of %g", loss[i]);
    }
    return 0;
}

void kvd_fit_proposal_release(kvd_fit_proposal *x)
{
    for (size_t i = 0; i < x->n_sweeps; i++)
        kvd_sweep_release(&x->sweep[i]);
    free(x->best);
    free(x->best_model);
    free(x->proposal);
    *x = (kvd_fit_proposal){.n = 0};
}

/* Returns the fraction of all dimensions of K and V that compression with parameters x->proposal[i]
 * removes. */
static double prompt_p(const kvd_fit_proposal *x, const kvd_rates *r, size_t i)
{
    const int layers = r->model.n_layers;
    double sum = 0;
    for (int l = 0; l < layers; l++) {
        const double depth = layers > 1 ? (double)l / (layers - 1) : 0;
        const double g =
            fmin(1, x->proposal[i].set[KVD_SET_G] + x->proposal[i].set[KVD_SET_RISE] * depth);
        sum += g * r->overall_p[2 * i] + (1 - g) * r->overall_p[2 * i + 1];
    }
    return sum / layers;
}

/* Writes the names of the parameters whose values were limited to their ranges, separated by
 * commas. */
static void say_moved(const kvd_proposal *p, char *text, size_t size)
{
    *text = '\0';
    for (int j = 0; j < KVD_N_SET; j++)
        if (p->moved[j])
            snprintf(text + strlen(text), size - strlen(text), "%s%s", *text ? ", " : "",
                     kvd_set_name[j]);
}

void kvd_fit_proposal_print(const kvd_fit_proposal *x, const kvd_rates *r, const char *output)
{
    char text[600];
    printf("%s: settings of '%s' for %s, from %zu optimal ones of %zu tried", output,
           x->sweep[0].method, r->model.name, x->fit.n, x->n_tried);
    for (size_t i = 0; i < x->n_sweeps; i++)
        printf("%s%s on %s", i ? ", " : " on ", x->sweep[i].model.name, x->sweep[i].label);
    printf("; losses from %.3g to %.3g\n", x->fit.loss_lo, x->fit.loss_hi);
    if (x->target == x->n_models)
        printf(
            "nothing was measured of %s: it is given the mean of %zu other model%s, so the losses are not "
            "its own\n",
            r->model.name, x->n_models, x->n_models > 1 ? "s" : "");
    printf("%8s %8s\n", "number", "residual");
    for (int j = 0; j < KVD_N_SET; j++)
        printf("%8s %8.4f   %+.4f %+.4f ln(loss)\n", kvd_set_name[j], x->fit.residual[j],
               kvd_regression_at_one(&x->fit, x->target, (kvd_set)j), x->fit.slope[j]);
    printf("%8s %10s\n", "loss", "p (prompt)");
    for (size_t i = 0; i < x->n; i++) {
        const kvd_proposal *const p = &x->proposal[i];
        printf("%8.4g %10.4f   ", p->loss, prompt_p(x, r, i));
        kvd_proposal_method(&x->sweep[0], p, text, sizeof text);
        printf("--method %s", text);
        say_moved(p, text, sizeof text);
        printf("%s%s%s\n", p->extrapolated ? "   extrapolated" : "",
               *text ? "   moved into bounds: " : "", text);
    }
    printf(
        "loss: perplexity over the uncompressed model's, less 1; p (prompt): fraction removed of a prompt's "
        "elements, Eq. 5\n");
}

json_t *kvd_fit_proposal_json(const kvd_fit_proposal *x, const kvd_rates *r)
{
    json_t *const fit = json_object(), *const all = json_array();
    for (int j = 0; j < KVD_N_SET; j++)
        json_object_set_new(fit, kvd_set_name[j],
                            json_pack("{s:f, s:f, s:f}", "at_one",
                                      kvd_regression_at_one(&x->fit, x->target, (kvd_set)j),
                                      "slope", x->fit.slope[j], "residual", x->fit.residual[j]));
    for (size_t i = 0; i < x->n; i++) {
        const kvd_proposal *const p = &x->proposal[i];
        char method[600], moved[100];
        kvd_proposal_method(&x->sweep[0], p, method, sizeof method);
        say_moved(p, moved, sizeof moved);
        json_t *const one = json_pack("{s:f, s:s, s:b, s:s, s:f, s:I, s:I}", "loss", p->loss,
                                      "method", method, "extrapolated", (int)p->extrapolated,
                                      "moved", moved, "prompt_p", prompt_p(x, r, i), "point_high",
                                      (json_int_t)(2 * i), "point_low", (json_int_t)(2 * i + 1));
        for (int j = 0; j < KVD_N_SET; j++)
            json_object_set_new(one, kvd_set_name[j], json_real(p->set[j]));
        json_array_append_new(all, one);
    }
    return json_pack("{s:I, s:I, s:I, s:f, s:f, s:b, s:o, s:o}", "n_tried", (json_int_t)x->n_tried,
                     "n_settings", (json_int_t)x->fit.n, "n_models", (json_int_t)x->n_models,
                     "loss_lo", x->fit.loss_lo, "loss_hi", x->fit.loss_hi, "measured",
                     (int)(x->target < x->n_models), "lines", fit, "proposals", all);
}

static const kvd_column columns[] = {
    {"loss", KVD_COL_REAL, "1",
     "perplexity over the uncompressed model's, less 1, that was asked for"},
    {"method", KVD_COL_TEXT, "1",
     "the proposed setting as --method of kvdim-eval and kvdim-jct takes it"},
    {"extrapolated", KVD_COL_INT, "1",
     "1: the loss is beyond those that the regression was fitted to"},
    {"moved", KVD_COL_TEXT, "1", "numbers that a bound moved"},
    {"g", KVD_COL_REAL, "1", "share of important tokens in the first layer"},
    {"rise", KVD_COL_REAL, "1", "what the share grows by up to the last layer"},
    {"p_qk", KVD_COL_REAL, "1", "fraction of Q and K removed, important tokens"},
    {"p_v", KVD_COL_REAL, "1", "fraction of V removed, important tokens"},
    {"p_u_qk", KVD_COL_REAL, "1", "fraction of Q and K removed, unimportant tokens"},
    {"p_u_v", KVD_COL_REAL, "1", "fraction of V removed, unimportant tokens"},
    {"prompt_p", KVD_COL_REAL, "1", "fraction of the elements of a prompt removed, Eq. 5 of ZDC"},
    {"point_high", KVD_COL_INT, "1", "point of this file with the widths of important tokens"},
    {"point_low", KVD_COL_INT, "1", "point of this file with the widths of unimportant tokens"},
};

static int write_rows(kvd_h5 *f, const kvd_fit_proposal *x, const kvd_rates *r, kvd_err *err)
{
    kvd_rows *const rows = kvd_rows_new(columns, sizeof columns / sizeof *columns, err);
    int status = rows ? 0 : -1;
    for (size_t i = 0; !status && i < x->n; i++) {
        const kvd_proposal *const p = &x->proposal[i];
        char text[600];
        if ((status = kvd_rows_begin(rows, err)))
            break;
        kvd_rows_real(rows, "loss", p->loss);
        kvd_proposal_method(&x->sweep[0], p, text, sizeof text);
        kvd_rows_text(rows, "method", text);
        kvd_rows_int(rows, "extrapolated", p->extrapolated);
        say_moved(p, text, sizeof text);
        kvd_rows_text(rows, "moved", text);
        for (int j = 0; j < KVD_N_SET; j++)
            kvd_rows_real(rows, kvd_set_name[j], p->set[j]);
        kvd_rows_real(rows, "prompt_p", prompt_p(x, r, i));
        kvd_rows_int(rows, "point_high", (int64_t)(2 * i));
        kvd_rows_int(rows, "point_low", (int64_t)(2 * i + 1));
    }
    if (!status)
        status = kvd_rows_write(f, rows, err);
    kvd_rows_free(rows);
    return status;
}

static int write_regression(kvd_h5 *f, const kvd_fit_proposal *x, kvd_err *err)
{
    const hsize_t n = x->n_best;
    double lines[3][KVD_N_SET], *const loss = malloc((2 + KVD_N_SET) * x->n_best * sizeof *loss);
    if (!loss)
        return kvd_no_memory(err, "settings", x->n_best * sizeof *loss);
    double *const share = loss + x->n_best, *const set = share + x->n_best;
    for (size_t i = 0; i < x->n_best; i++) {
        loss[i] = x->best[i].loss;
        share[i] = x->best[i].share;
        memcpy(set + i * KVD_N_SET, x->best[i].set, sizeof x->best[i].set);
    }
    for (int j = 0; j < KVD_N_SET; j++)
        lines[0][j] = kvd_regression_at_one(&x->fit, x->target, (kvd_set)j);
    memcpy(lines[1], x->fit.slope, sizeof lines[1]);
    memcpy(lines[2], x->fit.residual, sizeof lines[2]);
    const struct {
        kvd_h5_spec spec;
        const double *data;
    } all[] = {
        {{"/regression/loss",
          "loss of a setting that is optimal in its sweep",
          "1",
          H5T_IEEE_F64LE,
          1,
          {n},
          {"setting"}},
         loss},
        {{"/regression/cache_share",
          "its bytes over those of an uncompressed 16-bit cache",
          "1",
          H5T_IEEE_F64LE,
          1,
          {n},
          {"setting"}},
         share},
        {{"/regression/set",
          "its g, rise, p_qk, p_v, p_u_qk, p_u_v",
          "1",
          H5T_IEEE_F64LE,
          2,
          {n, KVD_N_SET},
          {"setting", "number"}},
         set},
        {{"/regression/lines",
          "of each number its value at loss 1 for this model, its slope per ln(loss), the root mean square "
          "of what the lines "
          "leaves",
          "1",
          H5T_IEEE_F64LE,
          2,
          {3, KVD_N_SET},
          {"coefficient", "number"}},
         &lines[0][0]},
    };
    int status = 0;
    for (size_t i = 0; !status && i < sizeof all / sizeof *all; i++)
        status = kvd_h5_write(f, &all[i].spec, H5T_NATIVE_DOUBLE, all[i].data, err);
    free(loss);
    return status;
}

int kvd_fit_proposal_write(kvd_h5 *f, const kvd_fit_proposal *x, const kvd_rates *r, kvd_err *err)
{
    return kvd_status(write_rows(f, x, r, err) || write_regression(f, x, err) ||
                      kvd_h5_put_int(f, "/regression", "n_tried", (int64_t)x->n_tried, err) ||
                      kvd_h5_put_int(f, "/regression", "n_sweeps", (int64_t)x->n_sweeps, err) ||
                      kvd_h5_put_int(f, "/regression", "n_models", (int64_t)x->n_models, err) ||
                      kvd_h5_put_int(f, "/regression", "measured", x->target < x->n_models, err) ||
                      kvd_h5_put_double(f, "/regression", "loss_lo", x->fit.loss_lo, err) ||
                      kvd_h5_put_double(f, "/regression", "loss_hi", x->fit.loss_hi, err));
}
