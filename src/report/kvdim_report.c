/*
 * kvdim-report: tables, figures, one HTML page and a ledger of the papers' claims from result files.
 *
 * Reads kvdim/spectrum, similarity, rates, error-table, accuracy, kernels, tokens, jct and serving, and traces of kvdim-jct. Writes DIR/tables, DIR/figures,
 * DIR/index.html.
 */
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/args.h"
#include "common/datadir.h"
#include "common/output.h"
#include "common/run.h"
#include "report/compare.h"
#include "report/ledger.h"
#include "report/page.h"
#include "report/plots.h"
#include "report/studies.h"

static const char program[] = "kvdim-report";

enum { MAX_PATHS = 1024, OPT_COMPARE = 1000, OPT_TIMELINE, OPT_PAPER, OPT_PLOTS, OPT_NO_PLOTS };

typedef struct {
    kvd_common_options common;
    const char *result[MAX_PATHS], *compare[MAX_PATHS];
    size_t n_results, n_compare;
    const char *timeline, *paper, *plots;
    bool no_plots;
} config;

static const struct argp_option options[] = {
    {"compare", OPT_COMPARE, "PATH", 0,
     "a file or folder of a second set of results to compare with; may be repeated", 0},
    {"timeline", OPT_TIMELINE, "TRACE.json", 0, "draw the first iterations of a trace of kvdim-jct --trace",
     0},
    {"paper", OPT_PAPER, "DIR", 0, "folder of the published numbers and ledger.csv (default: data/paper)", 0},
    {"plots", OPT_PLOTS, "DIR", 0, "folder of the gnuplot scripts, to restyle the figures (default: plots)",
     0},
    {"no-plots", OPT_NO_PLOTS, NULL, 0, "no figures, so gnuplot is not needed", 0},
    {0}};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    config *cfg = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &cfg->common;
        return 0;
    case OPT_COMPARE:
        if (cfg->n_compare == MAX_PATHS)
            argp_error(state, "more than %d paths to compare", (int)MAX_PATHS);
        cfg->compare[cfg->n_compare++] = arg;
        return 0;
    case OPT_TIMELINE:
        cfg->timeline = arg;
        return 0;
    case OPT_PAPER:
        cfg->paper = arg;
        return 0;
    case OPT_PLOTS:
        cfg->plots = arg;
        return 0;
    case OPT_NO_PLOTS:
        cfg->no_plots = true;
        return 0;
    case ARGP_KEY_ARG:
        if (cfg->n_results == MAX_PATHS)
            argp_error(state, "more than %d results", (int)MAX_PATHS);
        cfg->result[cfg->n_results++] = arg;
        return 0;
    case ARGP_KEY_END:
        if (cfg->n_results == 0)
            argp_error(state, "no result file given");
        if (!cfg->common.output)
            argp_error(state, "no -o DIR given");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* ---- the headline -------------------------------------------------------------------------------- */

/* What these files measure; the page has the rest. */
static void headline_of(const kvd_ledger *l, kvd_table *t, size_t *n_unmeasured)
{
    char buf[96];
    *n_unmeasured = 0;
    kvd_table_init(t, "headline", "Headline");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "what", "what");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "published", "published");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "ours", "ours");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "verdict", "verdict");
    for (size_t i = 0; i < l->n; i++) {
        const kvd_ledger_entry *e = &l->entry[i];
        if (e->verdict == KVD_NOT_MEASURED) {
            ++*n_unmeasured;
            continue;
        }
        kvd_table_text(t, e->id);
        kvd_ledger_range(e->low, e->high, e->unit, buf, sizeof buf);
        kvd_table_text(t, buf);
        kvd_ledger_range(e->least, e->most, e->unit, buf, sizeof buf);
        kvd_table_text(t, buf);
        kvd_table_text(t, kvd_verdict_name[e->verdict]);
    }
}

static json_t *number(double x)
{
    return isnan(x) ? json_null() : json_real(x);
}

static int print_json(const config *cfg, const kvd_results *r, const kvd_ledger *l, const kvd_report *report,
                      size_t n_outside, kvd_err *err)
{
    json_t *root = json_object(), *ledger = json_array(), *figures = json_array(), *tables = json_array();
    json_t *random = json_array();
    int bad = !root || !ledger || !figures || !tables || !random;
    for (size_t i = 0; i < r->n && !bad; i++)
        if (kvd_result_random_weights(&r->item[i]))
            bad = json_array_append_new(random, json_string(r->item[i].path));
    for (size_t i = 0; i < l->n && !bad; i++) {
        const kvd_ledger_entry *e = &l->entry[i];
        bad = json_array_append_new(
            ledger, json_pack("{s:s, s:s, s:o, s:o, s:o, s:o, s:I, s:s, s:s}", "id", e->id, "unit", e->unit,
                              "published_low", number(e->low), "published_high", number(e->high), "least",
                              number(e->least), "most", number(e->most), "values", (json_int_t)e->n_values,
                              "verdict", kvd_verdict_name[e->verdict], "rule", e->rule));
    }
    for (size_t i = 0; i < report->n && !bad; i++) {
        for (size_t j = 0; j < report->section[i]->n_tables && !bad; j++)
            bad = json_array_append_new(tables, json_string(report->section[i]->table[j]->name));
        for (size_t j = 0; j < report->section[i]->n_figures && !bad && !cfg->no_plots; j++)
            bad = json_array_append_new(figures, json_string(report->section[i]->figure[j].name));
    }
    bad = bad || json_object_set_new(root, "program", json_string(program)) ||
          json_object_set_new(root, "output", json_string(cfg->common.output)) ||
          json_object_set(root, "ledger", ledger) || json_object_set(root, "tables", tables) ||
          json_object_set(root, "figures", figures) || json_object_set(root, "random_weights", random) ||
          (cfg->n_compare && json_object_set_new(root, "outside", json_integer((json_int_t)n_outside)));
    if (!bad) {
        bad = json_dumpf(root, stdout, JSON_INDENT(2));
        putchar('\n');
    }
    json_decref(root);
    json_decref(ledger);
    json_decref(figures);
    json_decref(tables);
    json_decref(random);
    return bad ? kvd_fail(err, "cannot write the JSON summary") : 0;
}

/* Files of models with random weights, when there are any. */
static void say_random(const kvd_results *r, kvd_text *t)
{
    size_t n = 0, at = 0;
    for (size_t i = 0; i < r->n; i++)
        n += kvd_result_random_weights(&r->item[i]);
    if (n == 0)
        return;
    for (size_t i = 0; i < r->n; i++)
        if (kvd_result_random_weights(&r->item[i]))
            kvd_text_item(t, at++, n, 8, r->item[i].path);
    kvd_text_add(t, ": %s\n", kvd_random_weights_note);
}

static int print_plain(const config *cfg, const kvd_results *r, const kvd_table *headline,
                       size_t n_unmeasured, const kvd_report *report, kvd_err *err)
{
    kvd_text t = {0};
    say_random(r, &t);
    if (headline->n_rows)
        kvd_table_plain(headline, &t);
    kvd_text_add(&t, "%zu of the papers' claims are measured by these files, %zu are not\n", headline->n_rows,
                 n_unmeasured);
    for (size_t i = 0; i < report->n; i++)
        for (size_t j = 0; j < report->section[i]->n_tables; j++)
            if (strcmp(report->section[i]->table[j]->name, "target") == 0 &&
                report->section[i]->table[j]->n_rows > 0) {
                kvd_text_raw(&t, "\n");
                kvd_table_plain(report->section[i]->table[j], &t);
            }
    kvd_text_add(&t, "\n%s/index.html\n", cfg->common.output);
    int status = kvd_text_check(&t, err);
    if (!status)
        fputs(kvd_text_get(&t), stdout);
    kvd_text_release(&t);
    return status;
}

/* ---- main ---------------------------------------------------------------------------------------- */

static int write_tables(const kvd_report *report, const char *dir, kvd_err *err)
{
    char *tables = NULL;
    if (asprintf(&tables, "%s/tables", dir) < 0)
        return kvd_no_memory(err, "a path", 0);
    int status = kvd_make_folder(tables, err);
    for (size_t i = 0; i < report->n && !status; i++)
        for (size_t j = 0; j < report->section[i]->n_tables && !status; j++)
            status = kvd_table_write(report->section[i]->table[j], tables, err);
    free(tables);
    return status;
}

static int work(const config *cfg, kvd_text *said, kvd_err *err)
{
    static char paper[2 * PATH_MAX], plots[2 * PATH_MAX];
    const char *dir = cfg->common.output;
    kvd_results r = {0}, other = {0}, counting = {0};
    kvd_report report = {0};
    kvd_ledger ledger = {0};
    kvd_table headline = {0};
    size_t n_outside = 0, n_unmeasured = 0;
    int status = -1;

    if (kvd_data_folder(cfg->paper, "--paper", "data/paper", "paper", "ledger.csv", paper, err) ||
        (!cfg->no_plots && kvd_data_folder(cfg->plots, "--plots", "plots", "plots", "common.gp", plots, err)))
        goto done;
    for (size_t i = 0; i < cfg->n_results; i++)
        if (kvd_results_add(&r, cfg->result[i], err))
            goto done;
    for (size_t i = 0; i < cfg->n_compare; i++)
        if (kvd_results_add(&other, cfg->compare[i], err))
            goto done;
    if (kvd_results_name(&r, err) || kvd_results_name(&other, err))
        goto done;

    if (kvd_results_that_count(&r, &counting, err) || kvd_study_random_weights(&r, &report, err) ||
        kvd_ledger_judge(paper, &counting, &ledger, err) ||
        kvd_ledger_section(&ledger, &counting, &report, err) ||
        (cfg->n_compare && kvd_compare_section(&r, &other, &report, &n_outside, err)) ||
        kvd_study_accuracy(&r, &report, err) || kvd_study_kernels(&r, &report, err) ||
        kvd_study_jct(&r, &report, err) || kvd_study_timeline(cfg->timeline, &report, err) ||
        kvd_study_serving(&r, &report, err) || kvd_study_similarity(&r, &report, err) ||
        kvd_study_spectra(&r, &report, err) || kvd_study_tokens(&r, &report, err) ||
        kvd_study_calibration(&r, &report, err) || kvd_study_rates(&r, &report, err) ||
        kvd_study_provenance(&r, &report, err))
        goto done;
    headline_of(&ledger, &headline, &n_unmeasured);
    if (kvd_table_check(&headline, err) || kvd_make_folder(dir, err) || write_tables(&report, dir, err))
        goto done;
    if (!cfg->no_plots && kvd_plots_write(&report, dir, plots, said, err))
        goto done;
    if (kvd_page_write(&report, "kvdim report", NULL, !cfg->no_plots, dir, err))
        goto done;
    if (cfg->common.json)
        status = print_json(cfg, &r, &ledger, &report, n_outside, err);
    else
        status = cfg->common.quiet ? 0 : print_plain(cfg, &r, &headline, n_unmeasured, &report, err);
done:
    kvd_table_release(&headline);
    kvd_ledger_release(&ledger);
    kvd_report_release(&report);
    free(counting.item);
    kvd_results_release(&other);
    kvd_results_release(&r);
    return status;
}

int main(int argc, char **argv)
{
    const struct argp argp = {
        .options = options,
        .parser = parse,
        .args_doc = "RESULT... -o DIR",
        .children = kvd_common_options_child,
        .doc =
            "Tables (CSV, Markdown), figures (SVG, PNG), one HTML page, and a ledger of the papers' claims "
            "from spectrum, "
            "similarity, rates, error-table, accuracy, kernels, tokens, jct and serving files. RESULT is a "
            "file "
            "or a "
            "folder of .h5 "
            "files.\v"
            "Example:\n  kvdim-report results/kvdim-6m -o results/kvdim-6m/report"};
    static config cfg = {.common = {.seed = 1}};
    kvd_run run = {0};
    kvd_err err = {""};
    kvd_text said = {0};
    kvd_args_parse(program, &argp, argc, argv, &cfg);
    int status = kvd_run_start(&run, program, argc, argv, &cfg.common, &err);
    if (!status)
        status = work(&cfg, &said, &err);
    if (status && said.len)
        fputs(kvd_text_get(&said), stderr);
    kvd_text_release(&said);
    kvd_run_release(&run);
    return kvd_run_exit(program, status, &err);
}
