#include "analysis/regression.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/linalg.h"
#include "formats/accuracy.h"
#include "formats/rows.h"

const char *const kvd_set_name[KVD_N_SET] = {"g", "rise", "p_qk", "p_v", "p_u_qk", "p_u_v"};

/* Returns true if a setting, such as "zack.p_u.qk=0.5", says which fraction of dimensions is
 * removed. */
static bool is_rate(const char *item)
{
    static const char *const key[] = {".p.qk=", ".p.v=", ".p_u=", ".p_u.qk=", ".p_u.v="};
    const char *const dot = strchr(item, '.');
    for (size_t i = 0; dot && i < sizeof key / sizeof *key; i++)
        if (!strncmp(dot, key[i], strlen(key[i])))
            return true;
    return false;
}

/* Splits a list of settings, such as "importance.g=0.2,zack.p_u=0.5". Stores importance.g and
 * importance.rise in *t, and copies other settings to `rest`. Leaves out fractions of removed
 * dimensions, such as zack.p_u. */
static int take_apart(const char *settings, kvd_tried *t, char *rest, size_t size, kvd_err *err)
{
    static const char *const key[] = {"importance.g=", "importance.rise="};
    char copy[400];
    size_t used = 0;
    *rest = '\0';
    t->set[KVD_SET_G] = t->set[KVD_SET_RISE] = NAN;
    if (strlen(settings) >= sizeof copy)
        return kvd_fail(err, "settings of %zu characters", strlen(settings));
    strcpy(copy, settings);
    for (char *at = copy, *item; (item = strsep(&at, ","));) {
        bool taken = is_rate(item);
        for (int i = 0; i < 2; i++)
            if (!strncmp(item, key[i], strlen(key[i]))) {
                t->set[i ? KVD_SET_RISE : KVD_SET_G] = strtod(item + strlen(key[i]), NULL);
                taken = true;
            }
        if (taken)
            continue;
        used += (size_t)snprintf(rest + used, size - used, "%s%s", used ? "," : "", item);
        if (used >= size)
            return kvd_fail(err, "settings '%s' are too long", settings);
    }
    return 0;
}

static int find_pair(const char *name, kvd_pair *pair, kvd_err *err)
{
    for (int i = 0; i < KVD_N_PAIRS; i++)
        if (!strcmp(name, kvd_pair_name[i])) {
            *pair = (kvd_pair)i;
            return 0;
        }
    return kvd_fail(err, "pair '%s' is none of ours", name);
}

static int set_common(kvd_sweep *s, const kvd_rows *r, size_t row, const char *rest, kvd_err *err)
{
    snprintf(s->method, sizeof s->method, "%s", kvd_row_text(r, row, "method"));
    snprintf(s->label, sizeof s->label, "%s", kvd_row_text(r, row, "label"));
    snprintf(s->rule, sizeof s->rule, "%s", kvd_row_text(r, row, "rule"));
    snprintf(s->rest, sizeof s->rest, "%s", rest);
    return kvd_status(find_pair(kvd_row_text(r, row, "pair_qk"), &s->pair[0], err) ||
                      find_pair(kvd_row_text(r, row, "pair_v"), &s->pair[1], err));
}

static bool same(const kvd_sweep *s, const kvd_rows *r, size_t row, const char *rest)
{
    return !strcmp(s->method, kvd_row_text(r, row, "method")) &&
           !strcmp(s->label, kvd_row_text(r, row, "label")) &&
           !strcmp(s->rule, kvd_row_text(r, row, "rule")) && !strcmp(s->rest, rest) &&
           !strcmp(kvd_pair_name[s->pair[0]], kvd_row_text(r, row, "pair_qk")) &&
           !strcmp(kvd_pair_name[s->pair[1]], kvd_row_text(r, row, "pair_v"));
}

static int take_row(kvd_sweep *s, const kvd_rows *r, size_t row, double uncompressed, kvd_err *err)
{
    static const char *const column[KVD_N_SET] = {NULL,          NULL,       "overall_p_qk",
                                                  "overall_p_v", "low_p_qk", "low_p_v"};
    kvd_tried *const t = &s->tried[s->n];
    char rest[sizeof s->rest];
    if (take_apart(kvd_row_text(r, row, "settings"), t, rest, sizeof rest, err))
        return kvd_in(err, "row %zu", row);
    t->loss = kvd_row_real(r, row, "perplexity") / uncompressed - 1;
    t->share = kvd_row_real(r, row, "cache_share");
    for (int i = KVD_SET_P_QK; i < KVD_N_SET; i++)
        t->set[i] = kvd_row_real(r, row, column[i]);
    if (isnan(t->set[KVD_SET_G]) || isnan(t->set[KVD_SET_P_U_QK]))
        return 0;
    if (!isfinite(t->loss) || !isfinite(t->share))
        return kvd_fail(err, "row %zu: perplexity or cache_share is not finite", row);
    if (!s->n && set_common(s, r, row, rest, err))
        return kvd_in(err, "row %zu", row);
    if (!same(s, r, row, rest))
        return kvd_fail(err,
                        "row %zu differs from '%s' in more than rates, g and rise: give one sweep",
                        row, s->method);
    s->n++;
    return 0;
}

static int read_rows(kvd_sweep *s, const kvd_rows *r, kvd_err *err)
{
    const size_t n = kvd_rows_count(r);
    double uncompressed = NAN;
    for (size_t i = 0; i < n && isnan(uncompressed); i++)
        if (!strcmp(kvd_row_text(r, i, "method"), "none"))
            uncompressed = kvd_row_real(r, i, "perplexity");
    if (!(uncompressed > 0))
        return kvd_fail(err, "it has no row of the uncompressed model");
    if (kvd_rows_find(r, "low_p_qk") < 0)
        return kvd_fail(err, "its rows do not say p of each pair: run kvdim-eval anew");
    if (!(s->tried = calloc(n, sizeof *s->tried)))
        return kvd_no_memory(err, "rows of a sweep", n * sizeof *s->tried);
    for (size_t i = 0; i < n; i++)
        if (!strcmp(kvd_row_text(r, i, "purpose"), "point") && take_row(s, r, i, uncompressed, err))
            return -1;
    return s->n ? 0
                : kvd_fail(err, "no row is of a method with two levels of tokens by importance");
}

int kvd_sweep_read(kvd_sweep *s, const char *path, kvd_err *err)
{
    kvd_h5 f;
    *s = (kvd_sweep){.n = 0};
    if (kvd_h5_open(&f, path, &kvd_schema_accuracy, err))
        return -1;
    kvd_rows *const rows = kvd_model_info_read(&f, &s->model, err) ? NULL : kvd_rows_load(&f, err);
    int status = rows ? 0 : -1;
    if (rows && read_rows(s, rows, err))
        status = kvd_in(err, "'%s'", path);
    kvd_rows_free(rows);
    kvd_h5_close(&f, false);
    if (status)
        kvd_sweep_release(s);
    return status;
}

void kvd_sweep_release(kvd_sweep *s)
{
    free(s->tried);
    *s = (kvd_sweep){.n = 0};
}

static int by_share(const void *a, const void *b)
{
    const kvd_tried *const x = a, *const y = b;
    if (x->share < y->share || x->share > y->share)
        return x->share < y->share ? -1 : 1;
    return (x->loss > y->loss) - (x->loss < y->loss);
}

size_t kvd_sweep_oracle(const kvd_tried *tried, size_t n, kvd_tried *best)
{
    size_t kept = 0;
    double least = INFINITY;
    memcpy(best, tried, n * sizeof *best);
    qsort(best, n, sizeof *best, by_share);
    for (size_t i = 0; i < n; i++) {
        const double loss = fmax(0, best[i].loss);
        if (loss < least) {
            least = loss;
            best[kept++] = best[i];
        }
    }
    return kept;
}

/* Fills the matrices a and y of the least squares problem a x = y. Each row is a measurement.
 *
 * - a: a column for each language model (1 if it was measured, else 0), and a column for ln(loss)
 * - y: a column for each parameter of the compression method */
static void put_equations(const kvd_tried *best, const size_t *model, size_t n, size_t n_models,
                          double *a, double *y)
{
    const size_t cols = n_models + 1;
    for (size_t i = 0, k = 0; i < n; i++) {
        if (!(best[i].loss > 0))
            continue;
        for (size_t m = 0; m < n_models; m++)
            a[k * cols + m] = model[i] == m;
        a[k * cols + n_models] = log(best[i].loss);
        memcpy(y + k++ * KVD_N_SET, best[i].set, sizeof best[i].set);
    }
}

static double left(const kvd_regression *r, const double *a, const double *y, int number)
{
    double sum = 0;
    for (size_t k = 0; k < r->n; k++) {
        double line = r->slope[number] * a[k * (r->n_models + 1) + r->n_models];
        for (size_t m = 0; m < r->n_models; m++)
            line += r->at_one[m][number] * a[k * (r->n_models + 1) + m];
        const double off = y[k * KVD_N_SET + (size_t)number] - line;
        sum += off * off;
    }
    return sqrt(sum / (double)r->n);
}

static int least_squares(kvd_regression *r, const kvd_tried *best, const size_t *model, size_t n,
                         kvd_err *err)
{
    const size_t cols = r->n_models + 1;
    double *const a = malloc(r->n * cols * sizeof *a), *const y =
                                                           malloc(r->n * KVD_N_SET * sizeof *y);
    double c[(KVD_REGRESSION_MODELS + 1) * KVD_N_SET];
    int status = -1;
    if (!a || !y) {
        kvd_no_memory(err, "a regression", r->n * (cols + KVD_N_SET) * sizeof *a);
        goto done;
    }
    put_equations(best, model, n, r->n_models, a, y);
    if (kvd_least_squares(a, r->n, cols, y, KVD_N_SET, c, err))
        goto done;
    memcpy(r->at_one, c, r->n_models * sizeof *r->at_one);
    memcpy(r->slope, c + r->n_models * KVD_N_SET, sizeof r->slope);
    for (int j = 0; j < KVD_N_SET; j++)
        r->residual[j] = left(r, a, y, j);
    status = 0;
done:
    free(a);
    free(y);
    return status;
}

int kvd_regression_fit(kvd_regression *r, const kvd_tried *best, const size_t *model, size_t n,
                       size_t n_models, kvd_err *err)
{
    double lo[KVD_REGRESSION_MODELS], hi[KVD_REGRESSION_MODELS];
    bool spread = false;
    *r = (kvd_regression){.n_models = n_models, .loss_lo = INFINITY, .loss_hi = -INFINITY};
    assert(n_models >= 1 && n_models <= KVD_REGRESSION_MODELS);
    for (size_t m = 0; m < n_models; m++) {
        lo[m] = INFINITY;
        hi[m] = -INFINITY;
    }
    for (size_t i = 0; i < n; i++)
        if (best[i].loss > 0) {
            lo[model[i]] = fmin(lo[model[i]], best[i].loss);
            hi[model[i]] = fmax(hi[model[i]], best[i].loss);
            r->n++;
        }
    for (size_t m = 0; m < n_models; m++) {
        if (hi[m] < 0)
            return kvd_fail(err,
                            "no setting of model %zu of %zu loses anything: sweep settings that do",
                            m + 1, n_models);
        spread = spread || hi[m] > lo[m];
        r->loss_lo = fmin(r->loss_lo, lo[m]);
        r->loss_hi = fmax(r->loss_hi, hi[m]);
    }
    if (r->n < 2 * (n_models + 1))
        return kvd_fail(
            err,
            "a regression over %zu model%s wants at least %zu settings that are optimal for some "
            "loss above 0, "
            "there are %zu: sweep more settings",
            n_models, n_models > 1 ? "s" : "", 2 * (n_models + 1), r->n);
    if (!spread)
        return kvd_fail(err, "all optimal settings of a model lose the same, %g", r->loss_lo);
    return least_squares(r, best, model, n, err);
}

double kvd_regression_at_one(const kvd_regression *r, size_t model, kvd_set number)
{
    double sum = 0;
    if (model < r->n_models)
        return r->at_one[model][number];
    for (size_t m = 0; m < r->n_models; m++)
        sum += r->at_one[m][number];
    return sum / (double)r->n_models;
}

/* Limits *x to lo .. hi and rounds it to four decimals. Returns true if *x was outside. */
static bool put(double *x, double lo, double hi)
{
    const double wanted = *x, within = fmin(fmax(wanted, lo), hi);
    *x = nearbyint(within * 1e4) / 1e4;
    if (*x > hi)
        *x = floor(within * 1e4) / 1e4;
    return fabs(within - wanted) > 0;
}

void kvd_regression_propose(const kvd_regression *r, size_t model, double loss, double most,
                            kvd_proposal *out)
{
    double *const x = out->set;
    bool *const moved = out->moved;
    out->loss = loss;
    out->extrapolated = loss < r->loss_lo || loss > r->loss_hi;
    for (int j = 0; j < KVD_N_SET; j++)
        x[j] = kvd_regression_at_one(r, model, (kvd_set)j) + r->slope[j] * log(loss);
    moved[KVD_SET_G] = put(&x[KVD_SET_G], 0, 1);
    moved[KVD_SET_RISE] = put(&x[KVD_SET_RISE], 0, 1 - x[KVD_SET_G]);
    for (int pair = 0; pair < 2; pair++) {
        const int high = KVD_SET_P_QK + pair, low = KVD_SET_P_U_QK + pair;
        moved[high] = put(&x[high], 0, most);
        moved[low] = put(&x[low], x[high], most);
    }
}

void kvd_proposal_method(const kvd_sweep *like, const kvd_proposal *p, char *text, size_t size)
{
    const double *const x = p->set;
    snprintf(text, size, "%s,g=%.4g,rise=%.4g,p.qk=%.4g,p.v=%.4g,p_u.qk=%.4g,p_u.v=%.4g%s%s",
             like->method, x[KVD_SET_G], x[KVD_SET_RISE], x[KVD_SET_P_QK], x[KVD_SET_P_V],
             x[KVD_SET_P_U_QK], x[KVD_SET_P_U_V], *like->rest ? "," : "", like->rest);
}
