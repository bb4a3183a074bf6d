#include "methods/points.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int kvd_method_paths_add_inputs(const kvd_method_paths *p, kvd_run *run, kvd_err *err)
{
    return kvd_status(kvd_run_add_inputs(run, p->spectrum, p->n_spectra, err) ||
                      kvd_run_add_inputs(run, p->rates, p->n_rates, err) ||
                      kvd_run_add_inputs(run, &p->calibration, 1, err) ||
                      kvd_run_add_inputs(run, &p->fisher, 1, err) ||
                      kvd_run_add_inputs(run, &p->table, 1, err));
}

int kvd_method_files_load(kvd_method_files *f, const kvd_method_paths *p,
                          const kvd_model_info *info, const char *model, kvd_err *err)
{
    f->path = *p;
    for (size_t i = 0; i < p->n_spectra; i++)
        if (kvd_spectrum_load(&f->spectrum[i], p->spectrum[i], err) ||
            kvd_model_info_same(info, model, &f->spectrum[i].model, p->spectrum[i], err))
            return -1;
    for (size_t i = 0; i < p->n_rates; i++)
        if (kvd_rates_load(&f->rates[i], p->rates[i], err) ||
            kvd_model_info_same(info, model, &f->rates[i].model, p->rates[i], err))
            return -1;
    return kvd_status(
        (p->calibration &&
         (kvd_activations_open(&f->calibration, p->calibration, err) ||
          kvd_model_info_same(info, model, &f->calibration.model, p->calibration, err))) ||
        (p->fisher && (kvd_fisher_open(&f->fisher, p->fisher, err) ||
                       kvd_model_info_same(info, model, &f->fisher.model, p->fisher, err))) ||
        (p->table && (kvd_error_table_load(&f->table, p->table, err) ||
                      kvd_model_info_same(info, model, &f->table.model, p->table, err))));
}

void kvd_method_files_release(kvd_method_files *f)
{
    for (size_t i = 0; i < KVD_METHOD_FILES; i++) {
        kvd_spectrum_release(&f->spectrum[i]);
        kvd_rates_release(&f->rates[i]);
    }
    kvd_error_table_release(&f->table);
    kvd_activations_close(&f->calibration);
    kvd_fisher_close(&f->fisher);
}

static int both_fit(const kvd_dims_method *d, const char *a, const char *b, kvd_err *err)
{
    return kvd_fail(err, "method '%s': both '%s' and '%s' have pairs %s and %s, give one",
                    d->info.name, a, b, kvd_pair_name[d->pair[0]], kvd_pair_name[d->pair[1]]);
}

static int other_pairs(const kvd_dims_method *d, const char *path, const kvd_pair pair[2],
                       kvd_err *err)
{
    return kvd_fail(err, "method '%s' has pairs %s and %s, '%s' is for %s and %s", d->info.name,
                    kvd_pair_name[d->pair[0]], kvd_pair_name[d->pair[1]], path,
                    kvd_pair_name[pair[0]], kvd_pair_name[pair[1]]);
}

static int find_spectrum(kvd_method *m, const kvd_method_files *files, kvd_err *err)
{
    const kvd_dims_method *const d = m->dims;
    for (size_t i = 0; i < files->path.n_spectra; i++) {
        const kvd_spectrum *const x = &files->spectrum[i];
        if (!x->pair[d->pair[0]].present || !x->pair[d->pair[1]].present)
            continue;
        if (m->spectrum)
            return both_fit(d, m->spectrum_path, files->path.spectrum[i], err);
        m->spectrum = x;
        m->spectrum_path = files->path.spectrum[i];
    }
    if (!m->spectrum)
        return kvd_fail(err, "method '%s' needs --spectrum with pairs %s and %s%s%s", d->info.name,
                        kvd_pair_name[d->pair[0]], kvd_pair_name[d->pair[1]],
                        files->path.n_spectra ? ", which is not in " : "",
                        files->path.n_spectra ? files->path.spectrum[files->path.n_spectra - 1]
                                              : "");
    return 0;
}

static int find_rates(kvd_method *m, const kvd_method_files *files, kvd_err *err)
{
    const kvd_dims_method *const d = m->dims;
    for (size_t i = 0; i < files->path.n_rates; i++) {
        const kvd_rates *const x = &files->rates[i];
        if (x->pair[0] != d->pair[0] || x->pair[1] != d->pair[1])
            continue;
        if (m->rates)
            return both_fit(d, m->rates_path, files->path.rates[i], err);
        m->rates = x;
        m->rates_path = files->path.rates[i];
    }
    /* None of the given --rates files (numbers of kept dimensions) fits the method. */
    if (!m->rates && files->path.n_rates && !kvd_method_has_point(m))
        return other_pairs(d, files->path.rates[files->path.n_rates - 1],
                           files->rates[files->path.n_rates - 1].pair, err);
    return 0;
}

static int find_table(kvd_method *m, const kvd_method_files *files, kvd_err *err)
{
    const kvd_error_table *const t = &files->table;
    const kvd_dims_method *const d = m->dims;
    if (m->ranks != KVD_WIDTH_RULE_ERROR)
        return 0;
    if (!files->path.table)
        return kvd_fail(err, "method '%s': ranks=error needs --error-table", d->info.name);
    if (t->pair[0] != d->pair[0] || t->pair[1] != d->pair[1])
        return other_pairs(d, files->path.table, t->pair, err);
    m->table = t;
    m->table_path = files->path.table;
    return kvd_table_matches(t, files->path.table, m->spectrum, m->spectrum_path, err);
}

int kvd_method_find_files(kvd_method *m, const kvd_method_files *files, kvd_err *err)
{
    m->spectrum = NULL;
    m->rates = NULL;
    m->table = NULL;
    if (!m->dims)
        return 0;
    return kvd_status(find_spectrum(m, files, err) || find_rates(m, files, err) ||
                      find_table(m, files, err));
}

int kvd_method_warn_bases(const kvd_method *m, const char *program, kvd_err *err)
{
    char hash[KVD_BASES_HASH];
    if (m->table && !m->table->bases_hash[0])
        fprintf(stderr, "%s: warning: '%s' does not say which bases it was measured with\n",
                program, m->table_path);
    if (!m->rates || kvd_method_has_point(m) || m->dims->one_p)
        return 0;
    if (kvd_spectrum_bases_hash(m->spectrum, m->rates->pair, hash, err))
        return -1;
    if (m->rates->bases_hash[0] && strcmp(hash, m->rates->bases_hash))
        fprintf(stderr,
                "%s: warning: '%s' was fitted to other bases of %s and %s than '%s' holds\n",
                program, m->rates_path, kvd_pair_name[m->rates->pair[0]],
                kvd_pair_name[m->rates->pair[1]], m->spectrum_path);
    return 0;
}

void kvd_method_files_say_unused(const kvd_method_files *files, const kvd_method_paths *given,
                                 const kvd_method *method, size_t n, const char *program)
{
    const char *const said = "%s: warning: no method here has a use for %s '%s'\n";
    bool activations = false, gradients = false, table = false;
    for (size_t i = 0; i < n; i++) {
        activations |= (kvd_plan_needs(&method[i].plan) & KVD_NEEDS_ACTIVATIONS) != 0;
        gradients |= kvd_method_reads_fisher(&method[i]);
        table |= method[i].table != NULL;
    }
    for (size_t k = 0; k < given->n_spectra; k++) {
        bool used = false;
        for (size_t i = 0; i < n; i++)
            used |= method[i].spectrum == &files->spectrum[k];
        if (!used)
            fprintf(stderr, said, program, "--spectrum", given->spectrum[k]);
    }
    for (size_t k = 0; k < given->n_rates; k++) {
        bool used = false;
        for (size_t i = 0; i < n; i++)
            used |= method[i].rates == &files->rates[k] && !kvd_method_has_point(&method[i]);
        if (!used)
            fprintf(stderr, said, program, "--rates", given->rates[k]);
    }
    if (given->calibration && !activations)
        fprintf(stderr, said, program, "--calibration", given->calibration);
    if (given->fisher && !gradients)
        fprintf(stderr, said, program, "--fisher", given->fisher);
    if (given->table && !table)
        fprintf(stderr, said, program, "--error-table", given->table);
}

static int alloc_widths(const kvd_method *m, kvd_widths *w, kvd_err *err)
{
    const kvd_spectrum *const s = m->spectrum;
    return kvd_widths_alloc(w, s->n_layers, s->model.n_kv_heads, s->model.d_head, err);
}

static int widths_at(const kvd_method *m, int side, double p, double *removal_rate, kvd_widths *w,
                     kvd_err *err)
{
    if (m->dims->one_p) {
        if (alloc_widths(m, w, err))
            return -1;
        if (kvd_widths_uniform(w, p))
            return kvd_fail(err, "method '%s': p = %g is not in [0, 1)", m->dims->info.name, p);
        const double most = 1 - 1.0 / w->d_head;
        if (p <= most)
            return 0;
        return kvd_fail(err,
                        "method '%s': p = %g is more than %g, where one dimension of every head is "
                        "kept",
                        m->dims->info.name, p, most);
    }
    const int status =
        m->ranks == KVD_WIDTH_RULE_LOSS
            ? kvd_widths_by_loss(m->spectrum, m->dims->pair, side, p, NULL, w, err)
        : m->ranks == KVD_WIDTH_RULE_ERROR
            ? kvd_widths_by_error(m->table, side, p, w, err)
            : kvd_widths_for_p(m->spectrum, m->dims->pair, side, p,
                               m->ranks == KVD_WIDTH_RULE_EQ6_ENERGY, removal_rate, w, err);
    return status ? kvd_in(err, "'%s': method '%s', p = %g",
                           m->table ? m->table_path : m->spectrum_path, m->dims->info.name, p)
                  : 0;
}

/* Computes how many dimensions each head keeps if the fraction p[0] of Q's and K's dimensions is
 * removed, and p[1] of V's. Sets *removal_rate to r, the fraction of its sum of singular values
 * that each head may lose (ZACK paper, Eq. 6), or to NaN if K and V have different r. */
static int widths_of_sides(const kvd_method *m, const double p[2], double *removal_rate,
                           kvd_widths *w, kvd_err *err)
{
    kvd_widths v = {0};
    double r[2] = {NAN, NAN};
    assert(!m->dims->one_p);
    if (widths_at(m, 0, p[0], &r[0], w, err) || widths_at(m, 1, p[1], &r[1], &v, err)) {
        kvd_widths_release(&v);
        return -1;
    }
    int32_t *const whole = w->kept[1];
    w->kept[1] = v.kept[1];
    v.kept[1] = whole;
    kvd_widths_release(&v);
    *removal_rate = r[0] <= r[1] && r[0] >= r[1] ? r[0] : (double)NAN;
    return 0;
}

/* Deletes the projections that are not used, for example those of uncompressed layers. Sets p[0] (Q
 * and K), p[1] (V) and *overall_p to the fractions of dimensions removed. */
static int leave_whole(const kvd_method *m, kvd_dims *dims, double p[2], double *overall_p,
                       kvd_err *err)
{
    kvd_widths w = {0};
    if (m->cut != KVD_CUT_BOTH)
        kvd_dims_leave(dims, m->cut == KVD_CUT_QK ? 1 : 0);
    kvd_dims_leave_layers(dims, m->plan.keep_first, m->plan.keep_last);
    if (alloc_widths(m, &w, err)) {
        kvd_dims_release(dims);
        return -1;
    }
    kvd_dims_widths(dims, &w);
    p[0] = kvd_widths_side_p(&w, 0);
    p[1] = kvd_widths_side_p(&w, 1);
    *overall_p = kvd_widths_p(&w, 0);
    kvd_widths_release(&w);
    return 0;
}

static int build_low(const kvd_method *m, kvd_point *point, kvd_err *err)
{
    kvd_widths w = {0};
    double r, whole;
    const bool both = !isnan(m->p_low);
    const int status = (both ? widths_at(m, KVD_BOTH_SIDES, m->p_low, &r, &w, err)
                             : widths_of_sides(m, m->p_low_side, &r, &w, err)) ||
                       kvd_dims_build(&point->low, m->dims, m->spectrum, &w, err) ||
                       leave_whole(m, &point->low, point->low_p, &whole, err);
    kvd_widths_release(&w);
    return status ? kvd_in(err, "the low level") : 0;
}

static int check_low(const kvd_method *m, const kvd_point *point, double whole, kvd_err *err)
{
    static const char *const side_name[] = {".qk", ".v"};
    const double high = isnan(point->p_wanted) ? whole : point->p_wanted;
    if (!isnan(m->p_low) && !kvd_method_has_sides(m) && m->p_low < high)
        return kvd_fail(err, "p_u = %g removes less than the %g of the high level", m->p_low, high);
    for (int i = 0; i < 2 && isnan(m->p_low); i++) {
        const double wanted = kvd_method_has_sides(m) ? m->p_side[i] : point->side_p[i];
        if (m->p_low_side[i] < wanted)
            return kvd_fail(err, "p_u%s = %g removes less than the %g of the high level",
                            side_name[i], m->p_low_side[i], wanted);
    }
    return 0;
}

static int build(const kvd_method *m, const kvd_widths *w, kvd_point *point, kvd_err *err)
{
    if (kvd_dims_build(&point->dims, m->dims, m->spectrum, w, err))
        return kvd_in(err, "'%s'", m->spectrum_path);
    const double whole = kvd_widths_p(w, 0);
    if (leave_whole(m, &point->dims, point->side_p, &point->overall_p, err))
        return -1;
    if (!kvd_method_has_low(m))
        return 0;
    return check_low(m, point, whole, err) || build_low(m, point, err) ? -1 : 0;
}

static void clear(const kvd_method *m, kvd_point *point)
{
    memset(point, 0, sizeof *point);
    point->method = m;
    point->rule = "none";
    point->removal_rate = point->p_wanted = NAN;
    for (int side = 0; side < 2; side++)
        point->side_p[side] = point->low_p[side] = NAN;
}

/* If `status` is 0, builds the projections, whose numbers of kept dimensions are in *w. Always
 * releases *w. */
static int finish(const kvd_method *m, int status, kvd_widths *w, kvd_point *point, kvd_err *err)
{
    status = status || build(m, w, point, err);
    kvd_widths_release(w);
    return status ? -1 : 0;
}

int kvd_point_at(const kvd_method *m, double p, kvd_point *point, kvd_err *err)
{
    clear(m, point);
    assert(m->dims);
    kvd_widths w = {0};
    point->rule = m->dims->one_p ? "uniform" : kvd_width_rule_name[m->ranks];
    point->p_wanted = p;
    return finish(m, widths_at(m, KVD_BOTH_SIDES, p, &point->removal_rate, &w, err), &w, point,
                  err);
}

static int point_at_r(const kvd_method *m, double r, kvd_point *point, kvd_err *err)
{
    clear(m, point);
    kvd_widths w = {0};
    point->rule = kvd_width_rule_name[m->ranks];
    point->removal_rate = r;
    const bool energy = m->ranks == KVD_WIDTH_RULE_EQ6_ENERGY;
    const int status = kvd_widths_eq6(m->spectrum, m->dims->pair, r, energy, &w, err);
    if (status)
        kvd_in(err, "'%s': method '%s', r = %g", m->spectrum_path, m->dims->info.name, r);
    return finish(m, status, &w, point, err);
}

static int point_of_sides(const kvd_method *m, kvd_point *point, kvd_err *err)
{
    const double *const p = m->p_side;
    kvd_widths w = {0};
    clear(m, point);
    point->rule = kvd_width_rule_name[m->ranks];
    point->p_wanted = (p[0] + p[1]) / 2;
    return finish(m, widths_of_sides(m, p, &point->removal_rate, &w, err), &w, point, err);
}

int kvd_point_of_keys(const kvd_method *m, kvd_point *point, kvd_err *err)
{
    assert(kvd_method_has_point(m));
    if (kvd_method_has_sides(m))
        return point_of_sides(m, point, err);
    if (isnan(m->p))
        return point_at_r(m, m->r, point, err);
    if (kvd_point_at(m, m->p, point, err))
        return -1;
    if (m->dims->one_p && m->p > 0 && !(point->overall_p > 0) &&
        m->plan.keep_first + m->plan.keep_last < m->spectrum->model.n_layers) {
        kvd_point_release(point);
        return kvd_fail(err, "method '%s': p = %g removes nothing: widths change in steps of 1/%d",
                        m->dims->info.name, m->p, m->spectrum->model.d_head);
    }
    return 0;
}

int kvd_point_of_rates(const kvd_method *m, size_t i, kvd_point *point, kvd_err *err)
{
    const kvd_rates *const r = m->rates;
    clear(m, point);
    if (m->dims->one_p)
        return kvd_point_at(m, r->overall_p[i], point, err);
    point->rule = r->rule;
    point->removal_rate = r->removal_rate[i];
    if (build(m, &r->widths[i], point, err))
        return kvd_in(err, "'%s', point %zu", m->rates_path, i);
    return 0;
}

int kvd_points_make(const kvd_method *m, kvd_point **points, size_t *n, kvd_err *err)
{
    const bool by_keys = kvd_method_has_point(m);
    *n = 0;
    *points = NULL;
    const size_t count = !m->dims || by_keys ? 1 : m->rates ? m->rates->n_points : 0;
    if (count == 0)
        return 0;
    kvd_point *const list = calloc(count, sizeof *list);
    if (!list)
        return kvd_no_memory(err, "points", (unsigned long long)count * sizeof *list);
    for (size_t i = 0; i < count; i++) {
        int failed = 0;
        if (!m->dims) {
            clear(m, &list[i]);
            list[i].overall_p = list[i].side_p[0] = list[i].side_p[1] =
                kvd_method_is_none(m) ? 0 : NAN;
        } else if (by_keys)
            failed = kvd_point_of_keys(m, &list[i], err);
        else
            failed = kvd_point_of_rates(m, i, &list[i], err);
        if (failed) {
            kvd_points_free(list, i + 1);
            return -1;
        }
    }
    *points = list;
    *n = count;
    return 0;
}

void kvd_point_release(kvd_point *point)
{
    kvd_dims_release(&point->dims);
    kvd_dims_release(&point->low);
}

void kvd_points_free(kvd_point *points, size_t n)
{
    for (size_t i = 0; i < n; i++)
        kvd_point_release(&points[i]);
    free(points);
}

kvd_plan kvd_point_plan(const kvd_point *point)
{
    kvd_plan plan = point->method->plan;
    plan.dims = point->dims.head ? &point->dims : NULL;
    plan.dims_low = point->low.head ? &point->low : NULL;
    if (plan.channels) {
        plan.widths = plan.dims;
        plan.widths_low = plan.dims_low;
        plan.dims = plan.dims_low = NULL;
    }
    return plan;
}

int kvd_point_largest(const kvd_method *m, double *p, kvd_err *err)
{
    if (m->ranks == KVD_WIDTH_RULE_ERROR) {
        *p = 1 - (double)m->table->width[0] / m->table->d_head;
        return 0;
    }
    if (m->dims->one_p || m->ranks == KVD_WIDTH_RULE_LOSS) {
        *p = 1 - 1.0 / m->spectrum->model.d_head;
        return 0;
    }
    double *table_r = NULL, *table_p = NULL;
    size_t n;
    if (kvd_rate_table(m->spectrum, m->dims->pair, m->ranks == KVD_WIDTH_RULE_EQ6_ENERGY, &table_r,
                       &table_p, &n, err))
        return -1;
    *p = table_p[n - 1];
    free(table_r);
    free(table_p);
    return 0;
}

int kvd_point_full(const kvd_method *m, kvd_dims *dims, kvd_err *err)
{
    kvd_widths w = {0};
    double p[2], whole;
    if (alloc_widths(m, &w, err))
        return -1;
    int status = kvd_widths_uniform(&w, 0);
    assert(!status);
    status = kvd_dims_build(dims, m->dims, m->spectrum, &w, err);
    if (status)
        kvd_in(err, "'%s'", m->spectrum_path);
    else
        status = leave_whole(m, dims, p, &whole, err);
    kvd_widths_release(&w);
    return status;
}
