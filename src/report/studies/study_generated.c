/* Report tables with scores of generated text, of finding facts hidden in a text, and of
 * classification. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "report/studies/studies.h"

/* a column of results, shown with its 95 % interval */
typedef struct {
    const char *column, *heading;
    int digits;
} shown;

static void add_names(kvd_table *t)
{
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "label", "evaluated on");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "method", "method");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "settings", "settings");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "overall_p", "overall p");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "free_cache_share", "share of a 16-bit cache");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "n_seeds", "seeds");
}

static void put_names(kvd_table *t, const kvd_accuracy_entry *e)
{
    const double seeds = kvd_entry_real(e, "n_seeds");
    kvd_table_row(t, e->rows, e->row, 1);
    kvd_table_text(t, e->method);
    kvd_table_row(t, e->rows, e->row, 3);
    kvd_table_int(t, isnan(seeds) ? 1 : (int64_t)seeds);
}

/* Adds a table to the section. Appends "-of-eval" to the table's name if kvdim-eval, not
 * kvdim-tasks, wrote the results. */
static kvd_table *free_table(const kvd_accuracy_entries *all, const char *name, const char *title,
                             kvd_section *s)
{
    char own[64];
    snprintf(own, sizeof own, "%s%s", name,
             all->item[0].file->kind == KVD_RESULT_TASKS ? "" : "-of-eval");
    return kvd_section_table(s, own, title);
}

static void measures_table(const kvd_accuracy_entries *all, const char *name, const char *title,
                           const char *note, const shown *x, size_t n, const shown *sd,
                           kvd_section *s)
{
    kvd_table *const t = free_table(all, name, title, s);
    add_names(t);
    for (size_t k = 0; k < n; k++)
        kvd_table_add_interval(t, x[k].digits, x[k].column, x[k].heading);
    kvd_table_add_column(t, KVD_CELL_REAL, sd->digits, sd->column, sd->heading);
    kvd_table_note(t, "%s", note);
    for (size_t i = 0; i < all->n; i++) {
        const kvd_accuracy_entry *const e = &all->item[i];
        if (isnan(kvd_entry_real(e, x[0].column)))
            continue;
        put_names(t, e);
        kvd_table_row(t, e->rows, e->row, 3 * n + 1);
    }
}

static bool seen(const kvd_accuracy_result *a, size_t needle)
{
    for (size_t j = 0; j < needle; j++)
        if (a->needle_depth[j] == a->needle_depth[needle])
            return true;
    return false;
}

static double mean_at(const kvd_accuracy_result *a, const double *value, size_t row, double depth,
                      size_t *n)
{
    double sum = 0;
    *n = 0;
    for (size_t j = 0; j < a->n_needles; j++)
        if (a->needle_depth[j] == depth) {
            sum += value[row * a->n_needles + j];
            ++*n;
        }
    return sum / (double)*n;
}

static void depth_table(const kvd_accuracy_entries *all, kvd_section *s)
{
    kvd_table *const t = free_table(all, "needle-depth", "Hidden pass keys by depth", s);
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "label", "hidden in");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "method", "method");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "settings", "settings");
    kvd_table_add_column(t, KVD_CELL_REAL, 1, "depth", "depth, %");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "needles", "needles");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "needle_nll", "nat per token of the number");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "needle_agree", "as the uncompressed model");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "needle_exact", "every token right");
    for (size_t i = 0; i < all->n; i++) {
        const kvd_accuracy_entry *const e = &all->item[i];
        const kvd_accuracy_result *const a = &e->file->accuracy;
        for (size_t j = 0; j < a->n_needles; j++) {
            size_t n;
            const double nll = mean_at(a, a->needle_nll, e->row, a->needle_depth[j], &n);
            if (seen(a, j) || isnan(nll))
                continue;
            kvd_table_row(t, e->rows, e->row, 1);
            kvd_table_text(t, e->method);
            kvd_table_row(t, e->rows, e->row, 1);
            kvd_table_real(t, 100 * a->needle_depth[j]);
            kvd_table_int(t, (int64_t)n);
            kvd_table_reals(t, nll, mean_at(a, a->needle_agree, e->row, a->needle_depth[j], &n),
                            mean_at(a, a->needle_exact, e->row, a->needle_depth[j], &n));
        }
    }
}

static bool any(const kvd_accuracy_entries *all, const char *column)
{
    for (size_t i = 0; i < all->n; i++)
        if (!isnan(kvd_entry_real(&all->item[i], column)))
            return true;
    return false;
}

void kvd_study_free(const kvd_accuracy_entries *all, kvd_section *s)
{
    static const shown generated[] = {{"exact", "all tokens the same", 3},
                                      {"agree_prefix", "tokens until the first difference", 1},
                                      {"rouge1", "ROUGE-1", 3},
                                      {"edit_similarity", "edit similarity", 3},
                                      {"reference_rouge1", "ROUGE-1 against references", 3},
                                      {"reference_rouge1_change", "its change", 3}};
    static const shown needles[] = {{"needle_agree", "places as the uncompressed model", 3},
                                    {"needle_exact", "every token right", 3},
                                    {"needle_nll", "nat per token of the number", 3},
                                    {"needle_nll_change", "its change", 3}};
    static const shown spread[] = {{"rouge1_sd", "sd of ROUGE-1 over seeds", 3},
                                   {"needle_nll_sd", "sd of nat over seeds", 3},
                                   {"class_correct_sd", "sd of accuracy over seeds", 3}};
    static const shown classes[] = {{"class_correct", "accuracy", 3},
                                    {"class_correct_change", "its change", 3},
                                    {"class_agree", "class as the uncompressed model's", 3}};
    static const shown scores[] = {{"score", "score", 3}, {"score_change", "its change", 3}};
    static const shown step = {"step_s", "seconds per step", 4};
    if (any(all, "score"))
        measures_table(
            all, "benchmarks", "Scores of published benchmarks",
            "Mean score of the items of a task, by the benchmark's own measure. Change: less that "
            "of the uncompressed model, paired by item. 95 % intervals over items.",
            scores, sizeof scores / sizeof *scores, &step, s);
    if (any(all, "exact"))
        measures_table(
            all, "free-running", "Generated text, against the uncompressed model's own",
            "Greedy, with K and V of past tokens as the cache stored them; the first token comes "
            "from the prompt's own rows. ROUGE-1: F1 over words. Edit similarity: 1 - Levenshtein "
            "distance / longer length. Change: against the references, less what the uncompressed "
            "model has there. 95 % intervals over sequences, paired.",
            generated, sizeof generated / sizeof *generated, &spread[0], s);
    if (any(all, "needle_nll")) {
        measures_table(
            all, "needle", "Hidden pass keys",
            "A number of five digits in a text, asked for at its end. Change: less that of the "
            "uncompressed model, paired. 95 % intervals over texts.",
            needles, sizeof needles / sizeof *needles, &spread[1], s);
        depth_table(all, s);
    }
    if (any(all, "class_correct"))
        measures_table(all, "classes", "Classification by label likelihood",
                       "The class whose name is likeliest after the document. 95 % intervals over "
                       "documents, paired.",
                       classes, sizeof classes / sizeof *classes, &spread[2], s);
}
