/* kvdim-fit: chooses how many dimensions each head keeps, and proposes parameters of compression
 * method ZDC. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "analysis/regression.h"
#include "common/device.h"
#include "common/json.h"
#include "common/options.h"
#include "common/run.h"
#include "formats/rows.h"
#include "methods/widths.h"

static const char program[] = "kvdim-fit";

typedef struct {
    kvd_common_options common;
    const char *spectrum, *error_table;
    /* value of --pair, such as "qk,vw" (Q with K, V with W_O); NULL if not given */
    const char *pairs;
    bool wanted[KVD_N_PAIRS];
    bool energy, by_p, by_loss;
    /* values of --removal-rate, --overall-p (removed fraction of all dimensions) or --loss */
    double *value;
    size_t n_values;
    const char *sweep[KVD_FIT_SWEEPS];
    size_t n_sweeps;
} config;

#define T config
#define VALUES(name, ...)                                                                          \
    {                                                                                              \
        name, .type = KVD_OPT_NUMBERS, .arg = "LIST|A:B:STEP", KVD_INTO_LIST(T, value, n_values),  \
              __VA_ARGS__                                                                          \
    }

static const kvd_option options[] = {
    {.help = "Input"},
    {"SPECTRUM.h5", .positional = true, .type = KVD_OPT_TEXT, KVD_INTO(T, spectrum),
     .help = "Singular values (kvdim-spectrum, kvdim-sensitivity)"},

    {.help = "Kept dimensions"},
    VALUES("removal-rate", .high = 1, .below_high = true, .excludes = "overall-p loss",
           .help =
               "Singular value removal rates r of ZACK's Eq. 6. Each rate applies to all heads and "
               "layers, to queries and keys and to values"),
    VALUES("overall-p", .high = 1, KVD_GIVEN(T, by_p), .excludes = "loss",
           .help =
               "Fractions of all dimensions to remove. For each, the removal rate is searched that "
               "removes the nearest attainable fraction at or above it"),
    {"pair", .type = KVD_OPT_WORDS, .arg = "QK,V", .words = kvd_pair_name, KVD_INTO(T, wanted),
     KVD_TYPED(T, pairs),
     .otherwise =
         "the first of qk, bqk, fqk and the first of vw, wv, bvw, fvw that SPECTRUM.h5 has",
     .help =
         "Matrices that share a rotation: one name for queries and keys (qk, bqk, fqk, q or k) and "
         "one for values (vw, wv, bvw, fvw or v); docs/notation.md explains the names"},
    {"energy", .type = KVD_OPT_FLAG, KVD_INTO(T, energy),
     .help = "Apply Eq. 6 to squared singular values, not to singular values as printed"},
    {"by-loss", .type = KVD_OPT_FLAG, KVD_INTO(T, by_loss), .requires = "overall-p",
     .excludes = "energy error-table",
     .help = "Minimise the loss that the singular values of fqk and fvw predict"},
    {"error-table", .type = KVD_OPT_TEXT, .arg = "T.h5", KVD_INTO(T, error_table),
     .requires = "overall-p", .excludes = "energy pair",
     .help =
         "Minimise the sum of the errors measured in T.h5 (kvdim-eval --scan-errors) in place of "
         "applying Eq. 6. T.h5 says which matrices were cut"},

    {.help = "Settings of ZDC"},
    {"regression", .type = KVD_OPT_TEXTS, .arg = "SWEEP.h5", KVD_INTO_LIST(T, sweep, n_sweeps),
     .requires = "loss", .excludes = "pair energy by-loss error-table",
     .help =
         "Propose parameters of the method zdc by regression over a sweep: a result of kvdim-eval "
         "over a grid of g, rise, p.qk, p.v, p_u.qk and p_u.v. Sweeps of other models may be "
         "added"},
    VALUES("loss", .low = 1e-6, .high = 1000, .requires = "regression",
           .help = "Losses to propose settings for: perplexity divided by that of the uncompressed "
                   "model, minus 1"),
    KVD_OPTIONS_COMMON(T, "OUT.h5", "Write the result to OUT.h5, whole or not at all"),
    {0}};

static const kvd_program description = {
    .name = program,
    .summary = "Compute the kept dimensions of every KV head for one or many compression rates, "
               "and the function F_p between them.",
    .usage = {"SPECTRUM.h5 (--removal-rate LIST | --overall-p LIST) -o OUT.h5 [OPTION...]",
              "SPECTRUM.h5 --regression SWEEP.h5 --loss LIST -o OUT.h5 [OPTION...]"},
    .any_of = {"SPECTRUM.h5", "output", "removal-rate overall-p loss"},
    .examples = {"kvdim-fit results/wiki.spectrum.h5 --overall-p 0.1:0.7:0.1 -o "
                 "results/wiki.rates.h5",
                 "kvdim-fit wiki.spectrum.h5 --regression zdc-sweep.h5 --loss 0.02,0.1 -o "
                 "proposals.h5"},
    .options = options};

static const kvd_pair qk_side[] = {KVD_PAIR_QK, KVD_PAIR_BQK, KVD_PAIR_FQK, KVD_PAIR_K, KVD_PAIR_Q};
static const kvd_pair v_side[] = {KVD_PAIR_VW, KVD_PAIR_WV, KVD_PAIR_BVW, KVD_PAIR_FVW, KVD_PAIR_V};

/* Sets *pair to the decomposition that option --pair names. Without --pair, takes the first entry
 * of `side` that file *s contains, but never the decomposition of Q, K or V alone. */
static int choose_side(const config *cfg, const kvd_spectrum *s, const kvd_pair side[5],
                       const char *what, kvd_pair *pair, kvd_err *err)
{
    int n = 0;
    for (int i = 0; i < 5 && (cfg->pairs || n == 0); i++) {
        const bool single = side[i] == KVD_PAIR_Q || side[i] == KVD_PAIR_K || side[i] == KVD_PAIR_V;
        if (cfg->pairs ? cfg->wanted[side[i]] : s->pair[side[i]].present && !single) {
            *pair = side[i];
            n++;
        }
    }
    if (n == 1)
        return s->pair[*pair].present
                   ? 0
                   : kvd_fail(err, "'%s' has no pair '%s': give it to kvdim-spectrum --pair",
                              cfg->spectrum, kvd_pair_name[*pair]);
    if (cfg->pairs)
        return kvd_fail(err, "--pair: '%s' names %d pairs of the %s side, one is wanted",
                        cfg->pairs, n, what);
    return kvd_fail(err, "'%s' has no pair of the %s side", cfg->spectrum, what);
}

static int alloc_points(kvd_rates *r, size_t n, kvd_err *err)
{
    r->n_points = n;
    r->removal_rate = calloc(n, sizeof *r->removal_rate);
    r->overall_p = calloc(n, sizeof *r->overall_p);
    r->overall_p16 = calloc(n, sizeof *r->overall_p16);
    r->widths = calloc(n, sizeof *r->widths);
    if (!r->removal_rate || !r->overall_p || !r->overall_p16 || !r->widths)
        return kvd_no_memory(err, "the rates", n * (3 * sizeof(double) + sizeof *r->widths));
    return 0;
}

static int fit_eq6(const config *cfg, const kvd_spectrum *s, kvd_rates *r, kvd_err *err)
{
    if (choose_side(cfg, s, qk_side, "Q-K", &r->pair[0], err) ||
        choose_side(cfg, s, v_side, "V", &r->pair[1], err) ||
        kvd_rate_table(s, r->pair, cfg->energy, &r->table_r, &r->table_p, &r->n_table, err))
        return -1;
    for (size_t i = 0; i < r->n_points; i++) {
        r->removal_rate[i] = cfg->value[i];
        if ((cfg->by_p && kvd_table_r_for(r->table_r, r->table_p, r->n_table, cfg->value[i],
                                          &r->removal_rate[i], err)) ||
            kvd_widths_eq6(s, r->pair, r->removal_rate[i], cfg->energy, &r->widths[i], err))
            return -1;
    }
    return 0;
}

static int fit_by_error(const config *cfg, const kvd_spectrum *s, kvd_rates *r, kvd_err *err)
{
    kvd_error_table t;
    if (kvd_error_table_load(&t, cfg->error_table, err))
        return -1;
    int status = kvd_model_info_same(&s->model, cfg->spectrum, &t.model, cfg->error_table, err);
    if (!status && s->n_layers != t.n_layers)
        status = kvd_fail(err, "'%s' has %d layers, '%s' %d", cfg->spectrum, s->n_layers,
                          cfg->error_table, t.n_layers);
    for (int side = 0; !status && side < 2; side++) {
        r->pair[side] = t.pair[side];
        if (!s->pair[t.pair[side]].present)
            status = kvd_fail(err, "'%s' is about pair '%s', which '%s' does not hold",
                              cfg->error_table, kvd_pair_name[t.pair[side]], cfg->spectrum);
    }
    if (!status)
        status = kvd_table_matches(&t, cfg->error_table, s, cfg->spectrum, err);
    if (!status && !t.bases_hash[0])
        fprintf(stderr, "%s: warning: '%s' does not say which bases it was measured with\n",
                program, cfg->error_table);
    for (size_t i = 0; !status && i < r->n_points; i++) {
        r->removal_rate[i] = NAN;
        status = kvd_widths_by_error(&t, KVD_BOTH_SIDES, cfg->value[i], &r->widths[i], err);
    }
    kvd_error_table_release(&t);
    return status;
}

static int fit_by_loss(const config *cfg, const kvd_spectrum *s, kvd_rates *r, kvd_err *err)
{
    if (choose_side(cfg, s, qk_side, "Q-K", &r->pair[0], err) ||
        choose_side(cfg, s, v_side, "V", &r->pair[1], err))
        return -1;
    for (size_t i = 0; i < r->n_points; i++) {
        r->removal_rate[i] = NAN;
        if (kvd_widths_by_loss(s, r->pair, KVD_BOTH_SIDES, cfg->value[i], NULL, &r->widths[i], err))
            return -1;
    }
    return 0;
}

static int fit(const config *cfg, const kvd_spectrum *s, kvd_rates *r, kvd_fit_proposal *proposed,
               kvd_err *err)
{
    r->model = s->model;
    memcpy(r->label, s->label, sizeof r->label);
    if (cfg->n_sweeps)
        return kvd_status(kvd_fit_proposal_make(proposed, cfg->sweep, cfg->n_sweeps, cfg->value,
                                                cfg->n_values, s, r, err) ||
                          kvd_spectrum_bases_hash(s, r->pair, r->bases_hash, err));
    snprintf(r->rule, sizeof r->rule, "%s",
             cfg->error_table ? "error"
             : cfg->by_loss   ? "loss"
             : cfg->energy    ? "eq6-energy"
                              : "eq6");
    if (alloc_points(r, cfg->n_values, err) ||
        (cfg->error_table ? fit_by_error
         : cfg->by_loss   ? fit_by_loss
                          : fit_eq6)(cfg, s, r, err) ||
        kvd_spectrum_bases_hash(s, r->pair, r->bases_hash, err))
        return -1;
    for (size_t i = 0; i < r->n_points; i++) {
        r->overall_p[i] = kvd_widths_p(&r->widths[i], 0);
        r->overall_p16[i] = kvd_widths_p(&r->widths[i], 1);
    }
    return 0;
}

static void print_table(const config *cfg, const kvd_rates *r)
{
    char rate[16];
    printf("%s: rule %s, pairs %s and %s of '%s', %s, d_head %d\n", cfg->common.output, r->rule,
           kvd_pair_name[r->pair[0]], kvd_pair_name[r->pair[1]], r->label, r->model.name,
           r->model.d_head);
    if (kvd_model_info_random(&r->model))
        printf("%s: %s\n", r->model.name, kvd_random_weights_note);
    if (cfg->by_p)
        printf("%9s ", "wanted p");
    printf("%10s %9s %9s", "r", "p", "p16");
    for (int side = 0; side < 2; side++)
        printf("   %4s kept: min %6s max", kvd_pair_name[r->pair[side]], "mean");
    putchar('\n');
    for (size_t i = 0; i < r->n_points; i++) {
        if (cfg->by_p)
            printf("%9.6g ", cfg->value[i]);
        printf("%10s %9.6f %9.6f", kvd_real_text(rate, sizeof rate, "%.6g", r->removal_rate[i]),
               r->overall_p[i], r->overall_p16[i]);
        for (int side = 0; side < 2; side++) {
            const kvd_widths_range x = kvd_widths_range_of(&r->widths[i], side);
            printf("   %14d %6.2f %3d", x.least, x.mean, x.most);
        }
        putchar('\n');
    }
    printf(
        "p: fraction of stored elements removed; p16: with widths rounded up to multiples of 16\n");
}

static int print_json(const config *cfg, const kvd_rates *r, const kvd_fit_proposal *proposed,
                      kvd_err *err)
{
    json_t *points = json_array();
    for (size_t i = 0; i < r->n_points; i++) {
        const double rate = r->removal_rate[i];
        json_t *p = json_pack("{s:o, s:f, s:f}", "removal_rate", kvd_json_real(rate), "overall_p",
                              r->overall_p[i], "overall_p16", r->overall_p16[i]);
        if (cfg->by_p)
            json_object_set_new(p, "wanted_p", json_real(cfg->value[i]));
        for (int side = 0; side < 2; side++) {
            const kvd_widths_range x = kvd_widths_range_of(&r->widths[i], side);
            json_object_set_new(
                p, kvd_pair_name[r->pair[side]],
                json_pack("{s:i, s:f, s:i}", "min", x.least, "mean", x.mean, "max", x.most));
        }
        json_array_append_new(points, p);
    }
    json_t *all = json_pack("{s:s, s:s, s:s, s:b, s:s, s:s, s:[s,s], s:i, s:o}", "program", program,
                            "output", cfg->common.output, "model", r->model.name, "random_weights",
                            (int)kvd_model_info_random(&r->model), "label", r->label, "rule",
                            r->rule, "pairs", kvd_pair_name[r->pair[0]], kvd_pair_name[r->pair[1]],
                            "d_head", r->model.d_head, "points", points);
    json_t *const regression = cfg->n_sweeps ? kvd_fit_proposal_json(proposed, r) : NULL;
    if (cfg->n_sweeps && json_object_set_new(all, "regression", regression)) {
        json_decref(all);
        all = NULL;
    }
    return kvd_json_print(all, err);
}

static int record(const config *cfg, const kvd_rates *r, kvd_run *run, kvd_err *err)
{
    if (kvd_run_parameter(run, "rule", err, "%s", r->rule) ||
        kvd_run_parameter(run, "pair", err, "%s,%s", kvd_pair_name[r->pair[0]],
                          kvd_pair_name[r->pair[1]]))
        return -1;
    for (size_t i = 0; i < cfg->n_values && i < 100; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s[%zu]",
                 cfg->n_sweeps ? "loss"
                 : cfg->by_p   ? "overall_p"
                               : "removal_rate",
                 i);
        if (kvd_run_parameter(run, name, err, "%.17g", cfg->value[i]))
            return -1;
    }
    return 0;
}

static int work(config *cfg, kvd_run *run, kvd_err *err)
{
    kvd_spectrum s = {0};
    kvd_rates r = {0};
    kvd_fit_proposal proposed = {.n = 0};
    kvd_h5 out = {.id = H5I_INVALID_HID};
    int status = -1;
    if (kvd_device_cpu_only(&cfg->common, err) || kvd_run_add_input(run, cfg->spectrum, err) ||
        kvd_run_add_inputs(run, &cfg->error_table, 1, err) ||
        kvd_run_add_inputs(run, cfg->sweep, cfg->n_sweeps, err) ||
        kvd_spectrum_load(&s, cfg->spectrum, err) || fit(cfg, &s, &r, &proposed, err) ||
        record(cfg, &r, run, err) ||
        kvd_h5_create(&out, cfg->common.output, &kvd_schema_rates, run, err) ||
        kvd_rates_write(&out, &r, err) ||
        (cfg->n_sweeps && kvd_fit_proposal_write(&out, &proposed, &r, err)) ||
        kvd_h5_finish(&out, err))
        goto done;
    status = 0;
    if (cfg->common.json)
        status = print_json(cfg, &r, &proposed, err);
    else if (!cfg->common.quiet && cfg->n_sweeps)
        kvd_fit_proposal_print(&proposed, &r, cfg->common.output);
    else if (!cfg->common.quiet)
        print_table(cfg, &r);
done:
    kvd_h5_close(&out, false);
    kvd_fit_proposal_release(&proposed);
    kvd_rates_release(&r);
    kvd_spectrum_release(&s);
    return status;
}

int main(int argc, char **argv)
{
    static config cfg;
    kvd_run run = {0};
    kvd_err err = {""};
    kvd_options_parse(&description, argc, argv, &cfg);
    int status = kvd_run_start(&run, program, argc, argv, &cfg.common, &err);
    if (!status)
        status = work(&cfg, &run, &err);
    kvd_options_release(&description, &cfg);
    kvd_run_release(&run);
    return kvd_run_exit(program, status, &err);
}
