#include "evaluate/point_columns.h"

#include <math.h>

#include "methods/cache.h"

static void put_rate(kvd_rows *r, const kvd_point *point)
{
    const kvd_method *const m = point->method;
    kvd_method_tradeoff rate;
    kvd_err none;
    if (kvd_method_tradeoff_find(m, NULL, &rate, &none))
        return;
    kvd_rows_text(r, "rate_key", rate.name);
    kvd_rows_real(r, "rate_value", rate.p ? point->overall_p : kvd_method_tradeoff_value(m, &rate));
}

void kvd_point_columns_put(kvd_rows *r, const kvd_config *config, const kvd_point *point,
                           const kvd_plan *plan, const char *label, const char *calibrated,
                           const char *purpose)
{
    const kvd_method *const m = point->method;
    kvd_cache_bytes b;
    kvd_rows_text(r, "method", kvd_method_name(m));
    kvd_rows_text(r, "settings", m->settings);
    kvd_rows_text(r, "label", label);
    kvd_rows_text(r, "calibration",
                  m->spectrum                                    ? m->spectrum->label
                  : kvd_plan_needs(plan) & KVD_NEEDS_ACTIVATIONS ? calibrated
                                                                 : "");
    kvd_rows_text(r, "purpose", purpose);
    kvd_rows_text(r, "rule", point->rule);
    kvd_rows_text(r, "pair_qk",
                  m->dims && m->cut != KVD_CUT_V ? kvd_pair_name[m->dims->pair[0]] : "");
    kvd_rows_text(r, "pair_v",
                  m->dims && m->cut != KVD_CUT_QK ? kvd_pair_name[m->dims->pair[1]] : "");
    kvd_rows_text(r, "cache", kvd_dtype_name(plan->type));
    kvd_rows_real(r, "removal_rate", point->removal_rate);
    kvd_rows_real(r, "p_wanted", point->p_wanted);
    put_rate(r, point);
    kvd_cache_count_bytes(config, point->dims.head ? &point->dims : NULL, 1, &b);
    /* false for methods that only drop tokens or bits; p, the removed fraction of dimensions, is
     * NaN for them */
    const bool widths = point->dims.head || !kvd_plan_beyond_widths(plan);
    kvd_rows_real(r, "overall_p", widths ? b.overall_p : (double)NAN);
    kvd_rows_real(r, "overall_p16", widths ? b.overall_p16 : (double)NAN);
    kvd_rows_real(r, "overall_p_qk", point->side_p[0]);
    kvd_rows_real(r, "overall_p_v", point->side_p[1]);
    kvd_rows_real(r, "low_p_qk", point->low_p[0]);
    kvd_rows_real(r, "low_p_v", point->low_p[1]);
}

double kvd_dense_bytes(const kvd_config *c, double n)
{
    const double per_token = 2.0 * (double)c->n_layers * (double)kvd_config_cached(c);
    return n * per_token * kvd_cache_window_share(c, (size_t)n);
}
