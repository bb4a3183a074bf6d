#include "analysis/points.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* ---- files of a method ------------------------------------------------------------------------ */

static int find_spectrum(kvd_point_source *s, const kvd_dims_method *m, const kvd_point_files *files,
                         kvd_err *err)
{
    for (size_t i = 0; i < files->n_spectra; i++) {
        const kvd_spectrum *const x = &files->spectrum[i];
        if (!x->pair[m->pair[0]].present || !x->pair[m->pair[1]].present)
            continue;
        if (s->spectrum)
            return kvd_fail(err, "method '%s': both '%s' and '%s' have pairs %s and %s, give one", m->name,
                            s->spectrum_path, files->spectrum_path[i], kvd_pair_name[m->pair[0]],
                            kvd_pair_name[m->pair[1]]);
        s->spectrum = x;
        s->spectrum_path = files->spectrum_path[i];
    }
    if (!s->spectrum)
        return kvd_fail(err, "method '%s' needs --spectrum with pairs %s and %s%s%s", m->name,
                        kvd_pair_name[m->pair[0]], kvd_pair_name[m->pair[1]],
                        files->n_spectra ? ", which is not in " : "",
                        files->n_spectra ? files->spectrum_path[files->n_spectra - 1] : "");
    return 0;
}

static int find_rates(kvd_point_source *s, const kvd_dims_method *m, const kvd_point_files *files,
                      kvd_err *err)
{
    for (size_t i = 0; i < files->n_rates; i++) {
        const kvd_rates *const x = &files->rates[i];
        if (x->pair[0] != m->pair[0] || x->pair[1] != m->pair[1])
            continue;
        if (s->rates)
            return kvd_fail(err, "method '%s': both '%s' and '%s' have pairs %s and %s, give one", m->name,
                            s->rates_path, files->rates_path[i], kvd_pair_name[m->pair[0]],
                            kvd_pair_name[m->pair[1]]);
        s->rates = x;
        s->rates_path = files->rates_path[i];
    }
    /* A file that fits no method that wants one is a mistake, not something to pass over. */
    if (!s->rates && files->n_rates && !kvd_method_has_point(s->method))
        return kvd_fail(err, "method '%s' has pairs %s and %s, '%s' is for %s and %s", m->name,
                        kvd_pair_name[m->pair[0]], kvd_pair_name[m->pair[1]],
                        files->rates_path[files->n_rates - 1],
                        kvd_pair_name[files->rates[files->n_rates - 1].pair[0]],
                        kvd_pair_name[files->rates[files->n_rates - 1].pair[1]]);
    return 0;
}

static int find_table(kvd_point_source *s, const kvd_dims_method *m, const kvd_point_files *files,
                      kvd_err *err)
{
    if (s->method->ranks != KVD_RANKS_ERROR)
        return 0;
    const kvd_error_table *const t = files->table;
    if (!t)
        return kvd_fail(err, "method '%s': ranks=error needs --error-table", m->name);
    if (t->pair[0] != m->pair[0] || t->pair[1] != m->pair[1])
        return kvd_fail(err, "method '%s' has pairs %s and %s, '%s' is for %s and %s", m->name,
                        kvd_pair_name[m->pair[0]], kvd_pair_name[m->pair[1]], files->table_path,
                        kvd_pair_name[t->pair[0]], kvd_pair_name[t->pair[1]]);
    s->table = t;
    s->table_path = files->table_path;
    return kvd_table_matches(t, files->table_path, s->spectrum, s->spectrum_path, err);
}

int kvd_point_source_find(kvd_point_source *s, const kvd_method *method, const kvd_point_files *files,
                          kvd_err *err)
{
    memset(s, 0, sizeof *s);
    s->method = method;
    if (!method->dims)
        return 0;
    return find_spectrum(s, method->dims, files, err) || find_rates(s, method->dims, files, err) ||
                   find_table(s, method->dims, files, err)
               ? -1
               : 0;
}

/* ---- points ----------------------------------------------------------------------------------- */

static int alloc_widths(const kvd_point_source *s, kvd_widths *w, kvd_err *err)
{
    const kvd_model_info *const m = &s->spectrum->model;
    return kvd_widths_alloc(w, s->spectrum->n_layers, m->n_kv_heads, m->d_head, err);
}

/* The widths at overall p by the method's rule. */
static int widths_at(const kvd_point_source *s, double p, double *removal_rate, kvd_widths *w, kvd_err *err)
{
    const kvd_method *const m = s->method;
    if (m->dims->one_p) {
        if (alloc_widths(s, w, err))
            return -1;
        if (kvd_widths_uniform(w, p))
            return kvd_fail(err, "method '%s': p = %g is not in [0, 1)", m->dims->name, p);
        const double most = 1 - 1.0 / w->d_head;
        return p > most
                   ? kvd_fail(err,
                              "method '%s': p = %g is more than %g, where one dimension of every head stays",
                              m->dims->name, p, most)
                   : 0;
    }
    const int status = m->ranks == KVD_RANKS_LOSS
                           ? kvd_widths_by_loss(s->spectrum, m->dims->pair, p, NULL, w, err)
                       : m->ranks == KVD_RANKS_ERROR
                           ? kvd_widths_by_error(s->table, p, w, err)
                           : kvd_widths_for_p(s->spectrum, m->dims->pair, p, m->ranks == KVD_RANKS_EQ6_ENERGY,
                                              removal_rate, w, err);
    return status ? kvd_in(err, "'%s': method '%s', p = %g", s->table ? s->table_path : s->spectrum_path,
                           m->dims->name, p)
                  : 0;
}

/* The widths of one pair at p of its own elements; *removal_rate as kvd_widths_side_for_p. */
static int side_at(const kvd_point_source *s, int side, double p, double *removal_rate, kvd_widths *w,
                   kvd_err *err)
{
    const kvd_method *const m = s->method;
    const int status = m->ranks == KVD_RANKS_LOSS
                           ? kvd_widths_side_by_loss(s->spectrum, m->dims->pair, side, p, w, err)
                       : m->ranks == KVD_RANKS_ERROR
                           ? kvd_widths_side_by_error(s->table, side, p, w, err)
                           : kvd_widths_side_for_p(s->spectrum, m->dims->pair, side, p,
                                                   m->ranks == KVD_RANKS_EQ6_ENERGY, removal_rate, w, err);
    return status ? kvd_in(err, "'%s': method '%s', p = %g", s->table ? s->table_path : s->spectrum_path,
                           m->dims->name, p)
                  : 0;
}

/* The widths at a rate for each pair. One r stands behind them only where both pairs come to the same. */
static int widths_of_sides(const kvd_point_source *s, const double p[2], double *removal_rate, kvd_widths *w,
                           kvd_err *err)
{
    kvd_widths v = {0};
    double r[2] = {NAN, NAN};
    assert(!s->method->dims->one_p);
    if (side_at(s, 0, p[0], &r[0], w, err) || side_at(s, 1, p[1], &r[1], &v, err)) {
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

/* Key cut of the method; p and *overall_p are what is removed then. */
static int leave_side(const kvd_point_source *s, kvd_dims *dims, double p[2], double *overall_p, kvd_err *err)
{
    kvd_widths w = {0};
    if (s->method->cut != KVD_CUT_BOTH)
        kvd_dims_leave(dims, s->method->cut == KVD_CUT_QK ? 1 : 0);
    if (alloc_widths(s, &w, err)) {
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

/* The narrower widths of entries at the low level, of the same bases. */
static int build_low(const kvd_point_source *s, kvd_point *point, kvd_err *err)
{
    kvd_widths w = {0};
    double r, whole;
    const bool both = !isnan(s->method->p_low);
    const int status = (both ? widths_at(s, s->method->p_low, &r, &w, err)
                             : widths_of_sides(s, s->method->p_low_side, &r, &w, err)) ||
                       kvd_dims_build(&point->low, s->method->dims, s->spectrum, &w, err) ||
                       leave_side(s, &point->low, point->low_p, &whole, err);
    kvd_widths_release(&w);
    return status ? kvd_in(err, "the low level") : 0;
}

/* The low level keeps no more than the high one, whose widths are built: rates of the same pairs are compared as they were asked for, widths
 * of heads when the plan is opened. */
static int check_low(const kvd_point_source *s, const kvd_point *point, double whole, kvd_err *err)
{
    const kvd_method *const m = s->method;
    static const char *const side_name[] = {".qk", ".v"};
    const double high = isnan(point->p_wanted) ? whole : point->p_wanted;
    if (!isnan(m->p_low) && !kvd_method_has_sides(m) && m->p_low < high)
        return kvd_fail(err, "p_u = %g removes less than the %g of the high level", m->p_low, high);
    for (int i = 0; i < 2 && isnan(m->p_low); i++) {
        const double wanted = kvd_method_has_sides(m) ? m->p_side[i] : point->side_p[i];
        if (m->p_low_side[i] < wanted)
            return kvd_fail(err, "p_u%s = %g removes less than the %g of the high level", side_name[i],
                            m->p_low_side[i], wanted);
    }
    return 0;
}

static int build(const kvd_point_source *s, const kvd_widths *w, kvd_point *point, kvd_err *err)
{
    if (kvd_dims_build(&point->dims, s->method->dims, s->spectrum, w, err))
        return kvd_in(err, "'%s'", s->spectrum_path);
    point->cut = 1;
    const double whole = kvd_widths_p(w, 0); /* of both sides */
    if (leave_side(s, &point->dims, point->side_p, &point->overall_p, err))
        return -1;
    if (!kvd_method_has_low(s->method))
        return 0;
    return check_low(s, point, whole, err) || build_low(s, point, err) ? -1 : 0;
}

/* Points start without anything that has to be released. */
static void clear(kvd_point *point)
{
    memset(point, 0, sizeof *point);
    point->rule = "none";
    point->removal_rate = point->p_wanted = NAN;
    for (int side = 0; side < 2; side++)
        point->side_p[side] = point->low_p[side] = NAN;
}

int kvd_point_at(const kvd_point_source *s, double p, kvd_point *point, kvd_err *err)
{
    clear(point);
    assert(s->method->dims);
    kvd_widths w = {0};
    point->rule = s->method->dims->one_p ? "uniform" : kvd_ranks_name[s->method->ranks];
    point->p_wanted = p;
    int status = widths_at(s, p, &point->removal_rate, &w, err);
    if (!status)
        status = build(s, &w, point, err);
    kvd_widths_release(&w);
    return status;
}

int kvd_point_at_r(const kvd_point_source *s, double r, kvd_point *point, kvd_err *err)
{
    clear(point);
    const kvd_method *const m = s->method;
    kvd_widths w = {0};
    point->rule = kvd_ranks_name[m->ranks];
    point->removal_rate = r;
    int status = kvd_widths_eq6(s->spectrum, m->dims->pair, r, m->ranks == KVD_RANKS_EQ6_ENERGY, &w, err);
    if (status)
        kvd_in(err, "'%s': method '%s', r = %g", s->spectrum_path, m->dims->name, r);
    else
        status = build(s, &w, point, err);
    kvd_widths_release(&w);
    return status;
}

/* p.qk and p.v; the overall p that they ask for is their mean. */
static int point_of_sides(const kvd_point_source *s, kvd_point *point, kvd_err *err)
{
    const double *const p = s->method->p_side;
    kvd_widths w = {0};
    clear(point);
    point->rule = kvd_ranks_name[s->method->ranks];
    point->p_wanted = (p[0] + p[1]) / 2;
    int status = widths_of_sides(s, p, &point->removal_rate, &w, err);
    if (!status)
        status = build(s, &w, point, err);
    kvd_widths_release(&w);
    return status;
}

int kvd_point_of_keys(const kvd_point_source *s, kvd_point *point, kvd_err *err)
{
    const kvd_method *const m = s->method;
    assert(kvd_method_has_point(m));
    if (kvd_method_has_sides(m))
        return point_of_sides(s, point, err);
    if (isnan(m->p))
        return kvd_point_at_r(s, m->r, point, err);
    if (kvd_point_at(s, m->p, point, err))
        return -1;
    if (m->dims->one_p && m->p > 0 && !(point->overall_p > 0)) {
        kvd_point_release(point);
        return kvd_fail(err, "method '%s': p = %g removes nothing, it moves in steps of 1/%d", m->dims->name,
                        m->p, s->spectrum->model.d_head);
    }
    return 0;
}

int kvd_point_of_rates(const kvd_point_source *s, size_t i, kvd_point *point, kvd_err *err)
{
    const kvd_rates *const r = s->rates;
    clear(point);
    if (s->method->dims->one_p)
        return kvd_point_at(s, r->overall_p[i], point, err);
    point->rule = r->rule;
    point->removal_rate = r->removal_rate[i];
    if (build(s, &r->widths[i], point, err))
        return kvd_in(err, "'%s', point %zu", s->rates_path, i);
    return 0;
}

int kvd_points_make(const kvd_point_source *s, kvd_point **points, size_t *n, kvd_err *err)
{
    const kvd_method *const m = s->method;
    const bool by_keys = kvd_method_has_point(m);
    *n = 0;
    *points = NULL;
    const size_t count = !m->dims || by_keys ? 1 : s->rates ? s->rates->n_points : 0;
    if (count == 0)
        return 0;
    kvd_point *const list = calloc(count, sizeof *list);
    if (!list)
        return kvd_no_memory(err, "points", (unsigned long long)count * sizeof *list);
    for (size_t i = 0; i < count; i++) {
        int failed = 0;
        if (!m->dims) {
            clear(&list[i]);
            list[i].overall_p = list[i].side_p[0] = list[i].side_p[1] = kvd_method_is_none(m) ? 0 : NAN;
        } else if (by_keys)
            failed = kvd_point_of_keys(s, &list[i], err);
        else
            failed = kvd_point_of_rates(s, i, &list[i], err);
        if (failed) {
            kvd_points_free(list, i + 1); /* of the last what was made */
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

int kvd_point_largest(const kvd_point_source *s, double *p, kvd_err *err)
{
    const kvd_method *const m = s->method;
    if (m->ranks == KVD_RANKS_ERROR) {
        *p = 1 - (double)s->table->width[0] / s->table->d_head;
        return 0;
    }
    if (m->dims->one_p || m->ranks == KVD_RANKS_LOSS) {
        *p = 1 - 1.0 / s->spectrum->model.d_head;
        return 0;
    }
    double *table_r = NULL, *table_p = NULL;
    size_t n;
    if (kvd_rate_table(s->spectrum, m->dims->pair, m->ranks == KVD_RANKS_EQ6_ENERGY, &table_r, &table_p, &n,
                       err))
        return -1;
    *p = table_p[n - 1];
    free(table_r);
    free(table_p);
    return 0;
}

int kvd_point_full(const kvd_point_source *s, kvd_dims *dims, kvd_err *err)
{
    kvd_widths w = {0};
    double p[2], whole;
    if (alloc_widths(s, &w, err))
        return -1;
    int status = kvd_widths_uniform(&w, 0);
    assert(!status);
    status = kvd_dims_build(dims, s->method->dims, s->spectrum, &w, err);
    if (status)
        kvd_in(err, "'%s'", s->spectrum_path);
    else
        status = leave_side(s, dims, p, &whole, err);
    kvd_widths_release(&w);
    return status;
}
