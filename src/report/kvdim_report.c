/* kvdim-report: makes tables, figures and a web page from result files. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/datadir.h"
#include "common/files/output_folder.h"
#include "common/json.h"
#include "common/options.h"
#include "common/run.h"
#include "report/measures/ledger.h"
#include "report/measures/measures.h"
#include "report/report.h"
#include "report/rows.h"
#include "report/studies/studies.h"

static const char program[] = "kvdim-report";

enum { MAX_PATHS = 1024 };

typedef struct {
    kvd_common_options common;
    const char *result[MAX_PATHS], *compare[MAX_PATHS];
    size_t n_results, n_compare;
    const char *timeline, *paper, *plots, *paired;
    double link; /* in GB/s */
    bool no_plots, published;
} config;

static const kvd_option options[] = {
    {.help = "Input"},
    {"RESULT", .positional = true, .type = KVD_OPT_TEXTS, KVD_INTO_LIST(config, result, n_results),
     .help = "Spectrum, similarity, rates, error-table, accuracy, tasks, kernels, tokens, jct or "
             "serving file, or a folder of .h5 files"},
    {"compare", .type = KVD_OPT_TEXTS, .arg = "PATH", KVD_INTO_LIST(config, compare, n_compare),
     .requires = "RESULT", .help = "File or folder of a second set of results to compare with"},
    {"paired", .type = KVD_OPT_TEXT, .arg = "METHOD", KVD_INTO(config, paired),
     .requires = "RESULT",
     .help = "Compare METHOD with every other method on the same sequences: the difference of KL, "
             "and the bytes at a KL of 0.01 nats"},
    {"link-bandwidth", .type = KVD_OPT_NUMBER, .arg = "GB/S", KVD_INTO(config, link), .low = 1e-3,
     .high = 1e6, .unit = "GB/s", .requires = "RESULT",
     .help = "Model a cache in a slower memory: add the time that a link of this bandwidth takes "
             "for the bytes that a step reads to the tables of tasks"},
    {"timeline", .type = KVD_OPT_TEXT, .arg = "FILE.json", KVD_INTO(config, timeline),
     .requires = "RESULT", .help = "Draw the first iterations of a trace of kvdim-jct --timeline"},
    {"published", .type = KVD_OPT_FLAG, KVD_INTO(config, published),
     .help = "Add checks of the papers' published tables against each other; needs no RESULT"},
    {"paper", .type = KVD_OPT_TEXT, .arg = "FOLDER", KVD_INTO(config, paper),
     .otherwise = "data/paper", .help = "Folder of the published numbers and ledger.csv"},

    {.help = "Output"},
    KVD_OPTION_OUTPUT(config, "FOLDER", "Write the report into FOLDER"),
    {"plots", .type = KVD_OPT_TEXT, .arg = "FOLDER", KVD_INTO(config, plots), .otherwise = "plots",
     .excludes = "no-plots", .help = "Folder of the gnuplot scripts, to restyle the figures"},
    {"no-plots", .type = KVD_OPT_FLAG, KVD_INTO(config, no_plots), .help = "Draw no figures"},
    KVD_OPTION_QUIET(config),
    KVD_OPTION_JSON(config),

    {.help = "Common options"},
    KVD_OPTION_THREADS(config),
    {0}};

static const kvd_program description = {
    .name = program,
    .summary = "Make tables (CSV, Markdown), figures (SVG, PNG), one HTML page and a ledger of the "
               "papers' claims from result files.",
    .usage = {"RESULT... -o FOLDER [OPTION...]", "--published [RESULT...] -o FOLDER [OPTION...]"},
    .any_of = {"RESULT published", "output"},
    .examples = {"kvdim-report results/kvdim-6m -o results/kvdim-6m/report",
                 "kvdim-report --published results/kvdim-25m -o published"},
    .options = options};

static void headline_of(const kvd_ledger *l, kvd_table *t, size_t *n_unmeasured)
{
    char buf[160];
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
        kvd_ledger_ours(e, buf, sizeof buf);
        kvd_table_text(t, buf);
        kvd_table_text(t, kvd_verdict_name[e->verdict]);
    }
}

static int print_json(const config *cfg, const kvd_results *r, const kvd_ledger *l,
                      const kvd_report *report, size_t n_outside, kvd_err *err)
{
    json_t *root = json_object(), *ledger = json_array(), *figures = json_array(),
           *tables = json_array();
    json_t *random = json_array(), *missing = json_array(), *no_png = json_array();
    int bad = !root || !ledger || !figures || !tables || !random || !missing || !no_png;
    for (size_t i = 0; i < r->n && !bad; i++)
        if (kvd_result_random_weights(&r->item[i]))
            bad = json_array_append_new(random, json_string(r->item[i].path));
    for (size_t i = 0; i < l->n && !bad; i++) {
        const kvd_ledger_entry *e = &l->entry[i];
        bad = json_array_append_new(
            ledger, json_pack("{s:s, s:s, s:o, s:o, s:o, s:o, s:I, s:s, s:s}", "id", e->id, "unit",
                              e->unit, "published_low", kvd_json_real(e->low), "published_high",
                              kvd_json_real(e->high), "least", kvd_json_real(e->least), "most",
                              kvd_json_real(e->most), "values", (json_int_t)e->n_values, "verdict",
                              kvd_verdict_name[e->verdict], "rule", e->rule));
    }
    for (size_t i = 0; i < report->n && !bad; i++) {
        for (size_t j = 0; j < report->section[i]->n_tables && !bad; j++)
            bad = json_array_append_new(tables, json_string(report->section[i]->table[j]->name));
        for (size_t j = 0; j < report->section[i]->n_figures && !bad && !cfg->no_plots; j++) {
            const kvd_figure *f = &report->section[i]->figure[j];
            bad = f->why.len
                      ? json_array_append_new(missing, json_pack("{s:s, s:s}", "name", f->name,
                                                                 "why", kvd_text_get(&f->why)))
                      : json_array_append_new(figures, json_string(f->name)) ||
                            (f->no_png.len &&
                             json_array_append_new(no_png,
                                                   json_pack("{s:s, s:s}", "name", f->name, "why",
                                                             kvd_text_get(&f->no_png))));
        }
    }
    bad = bad || json_object_set_new(root, "program", json_string(program)) ||
          json_object_set_new(root, "output", json_string(cfg->common.output)) ||
          json_object_set(root, "ledger", ledger) || json_object_set(root, "tables", tables) ||
          json_object_set(root, "figures", figures) ||
          json_object_set(root, "not_drawn", missing) || json_object_set(root, "no_png", no_png) ||
          json_object_set(root, "random_weights", random) ||
          (cfg->n_compare &&
           json_object_set_new(root, "outside", json_integer((json_int_t)n_outside)));
    if (!bad) {
        bad = json_dumpf(root, stdout, JSON_INDENT(2));
        putchar('\n');
    }
    json_decref(root);
    json_decref(ledger);
    json_decref(figures);
    json_decref(tables);
    json_decref(random);
    json_decref(missing);
    json_decref(no_png);
    return bad ? kvd_fail(err, "cannot write the JSON summary") : 0;
}

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

static int print_plain(const config *cfg, const kvd_results *r, const kvd_ledger *l,
                       const kvd_table *headline, size_t n_unmeasured, const kvd_report *report,
                       kvd_err *err)
{
    kvd_text t = {0};
    say_random(r, &t);
    if (headline->n_rows)
        kvd_table_plain(headline, &t);
    kvd_text_add(&t, "%zu of the papers' claims are measured by these files, %zu are not\n",
                 headline->n_rows, n_unmeasured);
    char figures[320];
    kvd_figure_counts_say(&l->figures, figures, sizeof figures);
    kvd_text_add(&t, "%s\n", figures);
    for (size_t i = 0; i < report->n; i++)
        for (size_t j = 0; j < report->section[i]->n_tables; j++)
            if (!strncmp(report->section[i]->table[j]->name, "target", strlen("target")) &&
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

static const char *const contents[] = {"index.html", "figures/", "tables/", NULL};

static int write_tables(const kvd_report *report, const kvd_output *out, kvd_err *err)
{
    int status = 0;
    for (size_t i = 0; i < report->n && !status; i++)
        for (size_t j = 0; j < report->section[i]->n_tables && !status; j++)
            status = kvd_table_write(report->section[i]->table[j], out, err);
    return status;
}

/* Fails if an input file is in the output folder, because the report replaces that folder. */
static int check_inputs(const config *cfg, const kvd_results *r, kvd_err *err)
{
    for (size_t i = 0; i < r->n; i++)
        if (kvd_output_folder_spares(cfg->common.output, r->item[i].path, err))
            return -1;
    return cfg->timeline ? kvd_output_folder_spares(cfg->common.output, cfg->timeline, err) : 0;
}

static int begin_output(const char *dir, kvd_output *out, kvd_err *err)
{
    size_t n = strlen(dir);
    while (n > 0 && dir[n - 1] == '/')
        n--;
    while (n > 0 && dir[n - 1] != '/')
        n--;
    char *const parent = strndup(dir, n);
    if (!parent)
        return kvd_no_memory(err, "a path", n);
    const int status =
        (n && kvd_make_folder(parent, err)) || kvd_output_folder_renew(out, dir, contents, err);
    free(parent);
    return kvd_status(status);
}

/* Adds all sections to the report. Without result files, adds only the tables published in the
 * methods' papers. */
static int add_sections(const config *cfg, const char *paper, const kvd_results *r,
                        const kvd_results *other, const kvd_results *counting,
                        const kvd_ledger *ledger, kvd_report *report, size_t *n_outside,
                        kvd_err *err)
{
    if (r->n == 0) {
        kvd_text_raw(&report->title, "kvdim report: the published tables");
        return kvd_study_published(paper, counting, report, err);
    }
    if (kvd_study_summary(counting, ledger, report, err))
        return -1;
    kvd_study_random_weights(r, report);
    kvd_ledger_section(ledger, counting, report);
    if ((cfg->n_compare && kvd_compare_section(r, other, report, n_outside, err)) ||
        kvd_study_accuracy(r, cfg->paired, report, err) ||
        kvd_study_tasks(r, 1e9 * cfg->link, report, err) || kvd_study_kernels(r, report, err) ||
        kvd_study_jct(r, report, err) || kvd_study_timeline(cfg->timeline, report, err) ||
        kvd_study_serving(r, report, err) || kvd_study_similarity(r, report, err) ||
        kvd_study_spectra(r, report, err))
        return -1;
    kvd_study_tokens(r, report);
    if ((cfg->published && kvd_study_published(paper, counting, report, err)) ||
        kvd_study_calibration(r, report, err))
        return -1;
    kvd_study_rates(r, report);
    kvd_study_provenance(r, report);
    return kvd_report_check(report, err);
}

static void warn_of_fonts(const kvd_report *report)
{
    size_t n = 0;
    const char *first = "";
    for (size_t i = 0; i < report->n; i++)
        for (size_t j = 0; j < report->section[i]->n_figures; j++) {
            const kvd_figure *const f = &report->section[i]->figure[j];
            if (f->no_png.len && n++ == 0)
                first = kvd_text_get(&f->no_png);
        }
    if (n)
        fprintf(stderr, "%s: warning: %s%s\n", program, first,
                n > 1 ? " Other figures lack a character, too." : "");
}

static int work(const config *cfg, kvd_err *err)
{
    static char paper[2 * PATH_MAX], plots[2 * PATH_MAX];
    kvd_output out = {.lock_fd = -1};
    kvd_err why;
    kvd_results r = {0}, other = {0}, counting = {0};
    kvd_report report = {0};
    kvd_ledger ledger = {0};
    kvd_table headline = {0};
    size_t n_outside = 0, n_unmeasured = 0, n_failed = 0;
    int status = -1;

    if (kvd_data_folder(cfg->paper, "--paper", "data/paper", "paper", "ledger.csv", paper, err) ||
        (!cfg->no_plots &&
         kvd_data_folder(cfg->plots, "--plots", "plots", "plots", "common.gp", plots, err)))
        goto done;
    for (size_t i = 0; i < cfg->n_results; i++)
        if (kvd_results_add(&r, cfg->result[i], err))
            goto done;
    for (size_t i = 0; i < cfg->n_compare; i++)
        if (kvd_results_add(&other, cfg->compare[i], err))
            goto done;
    if (kvd_results_same_texts(&r, &other, err) || kvd_results_name_means(&r, &other, err) ||
        kvd_results_name(&r, err) || kvd_results_name(&other, err) || check_inputs(cfg, &r, err) ||
        check_inputs(cfg, &other, err) || begin_output(cfg->common.output, &out, err))
        goto done;

    if (kvd_results_that_count(&r, &counting, err) ||
        kvd_ledger_judge(paper, &counting, &ledger, err) ||
        add_sections(cfg, paper, &r, &other, &counting, &ledger, &report, &n_outside, err))
        goto done;
    headline_of(&ledger, &headline, &n_unmeasured);
    if (kvd_table_check(&headline, err) || write_tables(&report, &out, err) ||
        (!cfg->no_plots &&
         kvd_plots_write(&report, &out, plots, cfg->common.quiet, &n_failed, &why, err)) ||
        kvd_page_write(&report, !cfg->no_plots, &out, err) ||
        kvd_output_folder_commit(&out, true, err))
        goto done;
    if (n_failed)
        fprintf(stderr, "%s: warning: %zu figure%s not drawn: %s\n", program, n_failed,
                n_failed == 1 ? " is" : "s are", why.msg);
    warn_of_fonts(&report);
    if (cfg->common.json)
        status = print_json(cfg, &r, &ledger, &report, n_outside, err);
    else
        status = cfg->common.quiet
                     ? 0
                     : print_plain(cfg, &r, &ledger, &headline, n_unmeasured, &report, err);
done:
    kvd_output_folder_release(&out);
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
    static config cfg = {.common = {.seed = 1}};
    kvd_run run = {0};
    kvd_err err = {""};
    kvd_options_parse(&description, argc, argv, &cfg);
    int status = kvd_run_start(&run, program, argc, argv, &cfg.common, &err);
    if (!status)
        status = work(&cfg, &err);
    kvd_run_release(&run);
    return kvd_run_exit(program, status, &err);
}
