/* Section of the report: lists of result files, of the commands that wrote them, and of missing
 * measurements. */
#include <stdio.h>
#include <string.h>

#include "report/studies/studies.h"

void kvd_study_missing_points(const kvd_results *r, kvd_result_kind kind, kvd_text *words)
{
    for (size_t i = 0; i < r->n; i++) {
        const kvd_result *const x = &r->item[i];
        const bool some = x->skipped && *x->skipped;
        if (x->kind != kind || (!some && x->points_done >= x->points))
            continue;
        kvd_text_raw(words, "<p><strong>");
        kvd_text_html(words, x->name);
        kvd_text_add(words, " holds %lld of the %lld points of its sweep</strong>",
                     (long long)x->points_done, (long long)x->points);
        kvd_text_raw(words, some ? "; left out: " : "");
        kvd_text_html(words, some ? x->skipped : "");
        kvd_text_raw(words, "</p>\n");
    }
}

void kvd_study_random_weights(const kvd_results *r, kvd_report *report)
{
    size_t n = 0;
    for (size_t i = 0; i < r->n; i++)
        n += kvd_result_random_weights(&r->item[i]);
    if (n == 0)
        return;
    kvd_section *s = kvd_report_section(report, "random-weights", "Random weights");
    kvd_table *t =
        s ? kvd_section_table(s, "random-weights", "Results of models with random weights") : NULL;
    kvd_text_add(
        &s->words,
        "<p>%zu of %zu files are of models with random weights: published shapes without the "
        "published weights. Times and memory are those of such a model; spectra, similarities, "
        "rates and accuracies mean nothing. They are shown under names that say so, and the "
        "ledger leaves them out.</p>\n",
        n, r->n);
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "file", "file");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "schema", "holds");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "model", "model");
    for (size_t i = 0; i < r->n; i++)
        if (kvd_result_random_weights(&r->item[i])) {
            kvd_table_text(t, r->item[i].path);
            kvd_table_text(t, r->item[i].schema);
            kvd_table_text(t, r->item[i].model.name);
        }
}

void kvd_study_provenance(const kvd_results *r, kvd_report *report)
{
    static const char *const facts[][2] = {{"program", "program"},
                                           {"git_revision", "git revision"},
                                           {"started_utc", "started"},
                                           {"elapsed_s", "seconds"},
                                           {"hostname", "host"},
                                           {"cpu", "CPU"},
                                           {"gpu", "GPU"},
                                           {"threads", "threads"},
                                           {"seed", "seed"}};
    const size_t n_facts = sizeof facts / sizeof facts[0];
    kvd_section *s = kvd_report_section(report, "provenance", "Provenance");
    kvd_table *t = kvd_section_table(s, "provenance", "Programs that wrote the files");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "file", "file");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "schema", "holds");
    for (size_t k = 0; k < n_facts; k++)
        kvd_table_add_column(t, KVD_CELL_TEXT, 0, facts[k][0], facts[k][1]);
    for (size_t i = 0; i < r->n; i++) {
        const kvd_result *x = &r->item[i];
        kvd_table_text(t, x->path);
        kvd_table_text(t, x->schema);
        for (size_t k = 0; k < n_facts; k++)
            kvd_table_text(t, kvd_fact_get(&x->provenance, facts[k][0]));
    }

    t = kvd_section_table(s, "commands", "Command lines and models");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "file", "file");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "model", "model");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "model_hash", "model hash");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "weights", "weights");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "compiler", "compiler");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "command_line", "command line");
    for (size_t i = 0; i < r->n; i++) {
        const kvd_result *x = &r->item[i];
        kvd_table_text(t, x->path);
        kvd_table_text(t, x->has_model ? x->model.name : "");
        kvd_table_text(t, x->has_model ? x->model.hash : "");
        kvd_table_text(t, x->has_model ? x->model.dtype : "");
        kvd_table_text(t, kvd_fact_get(&x->provenance, "compiler"));
        kvd_table_text(t, kvd_fact_get(&x->provenance, "command_line"));
    }

    t = kvd_section_table(s, "inputs", "Inputs of the files");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "file", "file");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "input", "input");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "bytes", "bytes");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "hash", "hash of its content");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "schema", "holds");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "git_revision", "made by revision");
    for (size_t i = 0; i < r->n; i++)
        for (size_t k = 0; k < r->item[i].n_inputs; k++) {
            const kvd_facts *f = &r->item[i].input[k];
            kvd_table_text(t, r->item[i].path);
            kvd_table_text(t, kvd_fact_get(f, "path"));
            kvd_table_text(t, kvd_fact_get(f, "bytes"));
            kvd_table_text(t, kvd_fact_get(f, "hash"));
            kvd_table_text(t, kvd_fact_get(f, "schema"));
            kvd_table_text(t, kvd_fact_get(f, "git_revision"));
        }
}
