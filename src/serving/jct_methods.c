#include "serving/jct_methods.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int load_files(kvd_jct_methods *m, const kvd_jct_options *cfg, const kvd_model_info *info,
                      kvd_err *err)
{
    const char *const model = cfg->shape ? cfg->shape->name : cfg->model;
    for (size_t i = 0; i < cfg->n_spectra; i++)
        if (kvd_spectrum_load(&m->spectrum[i], cfg->spectrum[i], err) ||
            kvd_model_info_same(info, model, &m->spectrum[i].model, cfg->spectrum[i], err))
            return -1;
    for (size_t i = 0; i < cfg->n_rates; i++)
        if (kvd_rates_load(&m->rates[i], cfg->rates[i], err) ||
            kvd_model_info_same(info, model, &m->rates[i].model, cfg->rates[i], err))
            return -1;
    if (cfg->table && (kvd_error_table_load(&m->table, cfg->table, err) ||
                       kvd_model_info_same(info, model, &m->table.model, cfg->table, err)))
        return -1;
    if (cfg->calibration && (kvd_activations_open(&m->calibration, cfg->calibration, err) ||
                             kvd_model_info_same(info, model, &m->calibration.model, cfg->calibration, err)))
        return -1;
    m->calibrated = cfg->calibration != NULL;
    return 0;
}

static int find_points(kvd_jct_methods *m, const kvd_jct_options *cfg, kvd_err *err)
{
    const kvd_point_files files = {m->spectrum,
                                   cfg->spectrum,
                                   cfg->n_spectra,
                                   m->rates,
                                   cfg->rates,
                                   cfg->n_rates,
                                   cfg->table ? &m->table : NULL,
                                   cfg->table};
    for (size_t i = 0; i < cfg->n_methods; i++) {
        if (kvd_point_source_find(&m->source[i], &cfg->method[i], &files, err) ||
            kvd_points_make(&m->source[i], &m->point[i], &m->n_points[i], err))
            return -1;
        if (!m->n_points[i])
            return kvd_fail(err, "method '%s' has nothing to run: give p=, r= or --rates",
                            cfg->method_text[i]);
        m->n += m->n_points[i];
    }
    return 0;
}

int kvd_jct_methods_load(kvd_jct_methods *m, const kvd_jct_options *cfg, const kvd_config *config,
                         const kvd_model_info *info, kvd_err *err)
{
    memset(m, 0, sizeof *m);
    m->config = config;
    if (load_files(m, cfg, info, err) || find_points(m, cfg, err))
        return -1;
    if (!(m->item = calloc(m->n, sizeof *m->item)))
        return kvd_no_memory(err, "methods", (unsigned long long)m->n * sizeof *m->item);
    for (size_t i = 0, at = 0; i < cfg->n_methods; i++)
        for (size_t k = 0; k < m->n_points[i]; k++, at++) {
            kvd_jct_method *const x = &m->item[at];
            const kvd_method *const method = &cfg->method[i];
            *x = (kvd_jct_method){
                .method = method, .point = &m->point[i][k], .spectrum = m->source[i].spectrum};
            const bool of_file = method->dims && isnan(method->p) && isnan(method->r);
            snprintf(x->label, sizeof x->label, "%.200s", cfg->method_text[i]);
            if (of_file)
                snprintf(x->label, sizeof x->label, "%.200s,p=%.4g", cfg->method_text[i],
                         x->point->overall_p);
            for (size_t j = 0; j < at; j++)
                if (!strcmp(m->item[j].label, x->label))
                    return kvd_fail(err, "method '%s' is given twice", x->label);
        }
    return 0;
}

void kvd_jct_methods_release(kvd_jct_methods *m)
{
    for (size_t i = 0; i < KVD_JCT_METHODS; i++)
        kvd_points_free(m->point[i], m->n_points[i]);
    for (size_t i = 0; i < KVD_JCT_FILES; i++) {
        kvd_spectrum_release(&m->spectrum[i]);
        kvd_rates_release(&m->rates[i]);
    }
    kvd_error_table_release(&m->table);
    kvd_activations_close(&m->calibration);
    free(m->item);
    memset(m, 0, sizeof *m);
}

int kvd_jct_method_plan(kvd_jct_methods *m, size_t i, kvd_dtype type, size_t prompt, uint64_t seed,
                        kvd_plan *plan, kvd_err *err)
{
    const kvd_jct_method *const x = &m->item[i];
    const kvd_method_setup setup = {.config = m->config,
                                    .spectrum = x->spectrum,
                                    .calibration = m->calibrated ? &m->calibration : NULL,
                                    .seed = seed};
    *plan = (kvd_plan){.dims = x->point->cut ? &x->point->dims : NULL,
                       .dims_low = x->point->low.head ? &x->point->low : NULL,
                       .type = type,
                       .seed = seed};
    kvd_method_plan(x->method, plan);
    /* Cutting dimensions alone, prompts attend to what is stored; the others compress a prompt when it has ended. */
    plan->prompt = kvd_plan_beyond_widths(plan) ? prompt : 0;
    return kvd_plan_open(plan, &setup, err);
}
