#include "serving/jct_methods.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/linalg.h"
#include "common/rng.h"

/* One random rotation for all heads of the two pairs: times do not depend on its values, and a shape's weights have none that mean
 * something. Singular values are equal, so it is of use to methods alone that give every head the same width. */
static int random_bases(kvd_spectrum *s, const kvd_model_info *info, const kvd_dims_method *method,
                        uint64_t seed, kvd_err *err)
{
    const size_t d = (size_t)info->d_head;
    double *const x = malloc((3 * d * d + d) * sizeof *x);
    kvd_rng r;
    int status = x ? 0 : kvd_no_memory(err, "a random rotation", (3 * d * d + d) * sizeof *x);
    kvd_rng_seed(&r, seed, 0);
    *s = (kvd_spectrum){.model = *info, .pairing = KVD_SHARED, .n_layers = info->n_layers};
    snprintf(s->label, sizeof s->label, "random rotation");
    snprintf(s->rope, sizeof s->rope, "%s", kvd_model_info_rope(info, false));
    for (size_t i = 0; !status && i < 2 * d * d; i++)
        x[i] = kvd_rng_normal(&r);
    double *const R = x + 2 * d * d, *const sigma = R + d * d;
    status = status || kvd_svd_right(x, 2 * d, d, sigma, R, err);
    for (int side = 0; !status && side < 2; side++) {
        status = kvd_spectrum_alloc(s, method->pair[side], err);
        kvd_pair_spectrum *const p = &s->pair[method->pair[side]];
        const size_t heads = (size_t)info->n_layers * (size_t)info->n_kv_heads;
        for (size_t h = 0; !status && h < heads; h++) {
            memcpy(p->R + h * d * d, R, d * d * sizeof *R);
            for (size_t j = 0; j < d; j++)
                p->sigma[h * d + j] = 1;
        }
    }
    free(x);
    return status ? -1 : 0;
}

/* A shape without bases gets random ones, once, for methods that have use for them. */
static int make_bases(kvd_jct_methods *m, const kvd_jct_options *cfg, const kvd_model_info *info,
                      kvd_err *err)
{
    for (size_t i = 0; cfg->shape && !cfg->n_spectra && i < cfg->n_methods; i++) {
        const kvd_dims_method *const dims = cfg->method[i].dims;
        if (!dims)
            continue;
        if (!dims->one_p || dims->biorthogonal)
            return kvd_fail(err, "method '%s' takes widths from singular values: give --spectrum, or uniform",
                            cfg->method_text[i]);
        if (!m->made && random_bases(&m->spectrum[0], info, dims, cfg->common.seed, err))
            return -1;
        m->made = true;
    }
    return 0;
}

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
    m->shape = cfg->shape != NULL;
    if (cfg->fisher && (kvd_fisher_open(&m->fisher, cfg->fisher, err) ||
                        kvd_model_info_same(info, model, &m->fisher.model, cfg->fisher, err)))
        return -1;
    m->weighted = cfg->fisher != NULL;
    return 0;
}

static int find_points(kvd_jct_methods *m, const kvd_jct_options *cfg, kvd_err *err)
{
    static const char *const made = "random rotation";
    const kvd_point_files files = {m->spectrum,
                                   m->made ? &made : cfg->spectrum,
                                   m->made ? 1 : cfg->n_spectra,
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
    if (load_files(m, cfg, info, err) || make_bases(m, cfg, info, err) || find_points(m, cfg, err))
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
    kvd_fisher_close(&m->fisher);
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
                                    .fisher = m->weighted ? &m->fisher : NULL,
                                    .seed = seed,
                                    .made_up = m->shape};
    *plan = (kvd_plan){.dims = x->point->cut ? &x->point->dims : NULL,
                       .dims_low = x->point->low.head ? &x->point->low : NULL,
                       .type = type,
                       .seed = seed};
    kvd_method_plan(x->method, plan);
    /* Cutting dimensions alone, prompts attend to what is stored; the others compress a prompt when it has ended. */
    plan->prompt = kvd_plan_beyond_widths(plan) ? prompt : 0;
    return kvd_plan_open(plan, &setup, err);
}
