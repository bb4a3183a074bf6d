#include "serving/jct/jct_methods.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/stats.h"
#include "serving/jct/spread.h"

/* Returns the pairs of matrices, such as Q and K, whose singular values method i reads, or NULL if
 * it reads none. */
static const kvd_pair *pairs_of(const kvd_jct_options *cfg, size_t i)
{
    const kvd_method *const m = &cfg->method[i];
    const kvd_dims_maker *const maker = m->plan.maker;
    if (m->dims)
        return m->dims->pair;
    return maker && maker->reads_sigma && maker->reads_sigma(&m->plan.maker_values) && cfg->shape &&
                   !cfg->files.calibration
               ? maker->sigma
               : NULL;
}

/* Returns true if random rotation matrices must be made: a method needs rotations, and no file of
 * them was given. */
static bool make_bases_for(const kvd_jct_options *cfg)
{
    bool wanted = false;
    for (size_t i = 0; i < cfg->n_methods; i++)
        wanted = wanted || pairs_of(cfg, i);
    return wanted && !cfg->files.n_spectra && (cfg->shape || cfg->spread);
}

bool kvd_jct_wants_spread(const kvd_jct_options *cfg)
{
    bool unequal = false;
    for (size_t i = 0; i < cfg->n_methods; i++)
        unequal = unequal ||
                  (cfg->method[i].dims ? !cfg->method[i].dims->one_p : pairs_of(cfg, i) != NULL);
    return unequal && make_bases_for(cfg);
}

static int make_bases(kvd_jct_methods *m, const kvd_jct_options *cfg, const kvd_model_info *info,
                      kvd_err *err)
{
    kvd_spread spread = {0};
    static const char made[] = "random rotation";
    kvd_spectrum *const s = &m->files.spectrum[0];
    const bool unequal = kvd_jct_wants_spread(cfg);
    if (!make_bases_for(cfg))
        return 0;
    *s = (kvd_spectrum){.model = *info, .pairing = KVD_SHARED, .n_layers = info->n_layers};
    snprintf(s->label, sizeof s->label, "%s", made);
    snprintf(s->rope, sizeof s->rope, "%s", kvd_model_info_rope(info, false));
    m->files.path.spectrum[0] = made;
    m->files.path.n_spectra = 1;
    m->made = true;
    int status = unequal ? kvd_spread_load(&spread, cfg->spread, err) : 0;
    for (size_t i = 0; !status && i < cfg->n_methods; i++)
        for (int side = 0; !status && pairs_of(cfg, i) && side < 2; side++) {
            const kvd_pair pair = pairs_of(cfg, i)[side];
            if (s->pair[pair].present)
                continue;
            status = kvd_spread_pair(unequal ? &spread : NULL, s, pair, cfg->common.seed, err);
            if (status && unequal)
                kvd_in(err, "method '%s', '%s'", cfg->method_text[i], cfg->spread);
        }
    kvd_spread_release(&spread);
    return status ? -1 : 0;
}

static int find_points(kvd_jct_methods *m, kvd_jct_options *cfg, kvd_err *err)
{
    for (size_t i = 0; i < cfg->n_methods; i++) {
        if (kvd_method_find_files(&cfg->method[i], &m->files, err) ||
            kvd_points_make(&cfg->method[i], &m->point[i], &m->n_points[i], err))
            return -1;
        if (!m->n_points[i])
            return kvd_fail(err, "method '%s' has nothing to run: give p=, r= or --rates",
                            cfg->method_text[i]);
        m->n += m->n_points[i] * cfg->n_weight_bits;
    }
    return 0;
}

static int measure_widths(kvd_jct_method *x, kvd_err *err)
{
    const kvd_dims *const d = &x->point->dims;
    kvd_widths w = {0};
    x->width_min = x->width_max = x->width_cv = NAN;
    if (!d->head)
        return 0;
    const size_t heads = (size_t)d->n_layers * (size_t)d->n_kv_heads;
    double *const width = malloc(2 * heads * sizeof *width);
    if (!width || kvd_widths_alloc(&w, d->n_layers, d->n_kv_heads, d->d_head, err)) {
        free(width);
        return width ? -1 : kvd_no_memory(err, "widths", 2 * heads * sizeof *width);
    }
    kvd_dims_widths(d, &w);
    for (size_t i = 0; i < 2 * heads; i++)
        width[i] = w.kept[i / heads][i % heads];
    x->width_min = kvd_quantile(width, 2 * heads, 0);
    x->width_max = kvd_quantile(width, 2 * heads, 1);
    x->width_cv = kvd_cv(width, 2 * heads);
    kvd_widths_release(&w);
    free(width);
    return 0;
}

static void name_method(kvd_jct_method *x, const kvd_method *method, const char *text)
{
    const bool of_file = method->dims && !kvd_method_has_point(method);
    const char *const suffix = x->weight_bits ? "@w4" : "";
    const int name = (int)strcspn(text, ",");
    snprintf(x->name, sizeof x->name, "%.64s%s", kvd_method_name(method), suffix);
    const int used =
        snprintf(x->label, sizeof x->label, "%.*s%s%.180s", name, text, suffix, text + name);
    if (of_file && used > 0 && (size_t)used < sizeof x->label)
        snprintf(x->label + used, sizeof x->label - (size_t)used, ",p=%.4g", x->point->overall_p);
}

int kvd_jct_methods_load(kvd_jct_methods *m, kvd_jct_options *cfg, const kvd_config *config,
                         const kvd_model_info *info, kvd_err *err)
{
    memset(m, 0, sizeof *m);
    m->config = config;
    m->info = info;
    m->model_path = cfg->shape ? cfg->shape->name : cfg->model;
    m->drawn = cfg->shape != NULL;
    if (kvd_method_files_load(&m->files, &cfg->files, info, m->model_path, err) ||
        make_bases(m, cfg, info, err) || find_points(m, cfg, err))
        return -1;
    const size_t bits = cfg->n_weight_bits;
    if (!(m->item = calloc(m->n, sizeof *m->item)))
        return kvd_no_memory(err, "methods", (unsigned long long)m->n * sizeof *m->item);
    for (size_t i = 0, at = 0; i < cfg->n_methods; i++)
        for (size_t k = 0; k < m->n_points[i] * bits; k++, at++) {
            kvd_jct_method *const x = &m->item[at];
            *x = (kvd_jct_method){.point = &m->point[i][k / bits],
                                  .weight_bits = cfg->weight_bits[k % bits] == 4 ? 4 : 0};
            name_method(x, &cfg->method[i], cfg->method_text[i]);
            if (measure_widths(x, err))
                return -1;
            for (size_t j = 0; j < at; j++)
                if (!strcmp(m->item[j].label, x->label))
                    return kvd_fail(err, "method '%s' is given twice", x->label);
        }
    return 0;
}

int kvd_jct_methods_warn(kvd_jct_methods *m, const kvd_jct_options *cfg, const char *program,
                         kvd_err *err)
{
    kvd_method_files_say_unused(&m->files, &cfg->files, cfg->method, cfg->n_methods, program);
    if (cfg->spread && !kvd_jct_wants_spread(cfg))
        fprintf(stderr, "%s: warning: no method here has a use for --spread '%s'\n", program,
                cfg->spread);
    /* Warns if a file of each head's kept dimensions was made for other rotation matrices. */
    for (size_t i = 0; !m->made && i < cfg->n_methods; i++)
        if (kvd_method_warn_bases(&cfg->method[i], program, err))
            return -1;
    return 0;
}

void kvd_jct_methods_release(kvd_jct_methods *m)
{
    for (size_t i = 0; i < KVD_JCT_METHODS; i++)
        kvd_points_free(m->point[i], m->n_points[i]);
    kvd_method_files_release(&m->files);
    free(m->item);
    memset(m, 0, sizeof *m);
}

int kvd_jct_method_plan(kvd_jct_methods *m, size_t i, const kvd_checkpoint *weights, bool gpu,
                        kvd_dtype type, size_t prompt, uint64_t seed, kvd_plan *plan, kvd_err *err)
{
    const kvd_jct_method *const x = &m->item[i];
    *plan = kvd_point_plan(x->point);
    const bool factors = !gpu && plan->channels && plan->channels->stacks;
    const kvd_method_setup setup = {
        .config = m->config,
        .model = m->info,
        .model_path = m->model_path,
        .checkpoint = factors || (kvd_plan_needs(plan) & KVD_NEEDS_INPUT) ? weights : NULL,
        /* Selects rotation matrices: the method's matrices if it removes dimensions, else random
         * matrices if there are any. */
        .spectrum = x->point->method->dims ? x->point->method->spectrum
                    : m->made              ? &m->files.spectrum[0]
                                           : NULL,
        .calibration = m->files.path.calibration ? &m->files.calibration : NULL,
        .fisher = m->files.path.fisher ? &m->files.fisher : NULL,
        .seed = seed,
        .drawn = m->drawn};
    plan->type = type;
    plan->seed = seed;
    plan->prompt = kvd_plan_beyond_widths(plan) ? prompt : 0;
    return kvd_plan_open(plan, &setup, err);
}
