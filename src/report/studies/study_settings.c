/* Section of the report: each method's smallest cache within a limit on the loss of accuracy,
 * results with parameters that kvdim-fit proposed, and results with quantised weights. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "report/measures/measures.h"
#include "report/studies/studies.h"

/* Returns true if the loss of top-1 accuracy is at most 1 % and its 95 % interval contains 0. The
 * LeanKV paper calls such a loss "neutral". */
static bool neutral(const kvd_accuracy_entry *e)
{
    return kvd_entry_real(e, "top1_share") >= 0.99 && kvd_entry_real(e, "top1_share_hi") >= 1;
}

static bool under_5_percent(const kvd_accuracy_entry *e)
{
    return kvd_entry_real(e, "top1_share") >= 0.95;
}

static bool under_a_tenth(const kvd_accuracy_entry *e)
{
    return kvd_entry_ratio(e).value <= 1.1;
}

static const struct {
    const char *words;
    bool (*kept)(const kvd_accuracy_entry *e);
} asked[] = {{"top-1 share at least 0.99, interval to 1", neutral},
             {"top-1 share at least 0.95", under_5_percent},
             {"perplexity at most 1.1 times", under_a_tenth}};

/* Counts the results first .. last that have a known cache size. Leaves out results that kvdim-eval
 * --target measured while it searched for the strongest compression that keeps the accuracy. */
static size_t tried(const kvd_accuracy_entries *all, size_t first, size_t last)
{
    size_t n = 0;
    for (size_t i = first; i <= last; i++)
        n += !kvd_entry_is_search_point(&all->item[i]) &&
             !isnan(kvd_entry_real(&all->item[i], "cache_share"));
    return n;
}

static bool settings_differ(const kvd_accuracy_entries *all, size_t first, size_t last)
{
    for (size_t i = first + 1; i <= last; i++)
        if (strcmp(kvd_entry_text(&all->item[i], "settings"),
                   kvd_entry_text(&all->item[first], "settings")))
            return true;
    return false;
}

static const kvd_accuracy_entry *smallest(const kvd_accuracy_entries *all, size_t first,
                                          size_t last, bool (*kept)(const kvd_accuracy_entry *e))
{
    const kvd_accuracy_entry *best = NULL;
    for (size_t i = first; i <= last; i++) {
        const kvd_accuracy_entry *const e = &all->item[i];
        const double share = kvd_entry_real(e, "cache_share");
        if (!kvd_entry_is_search_point(e) && kept(e) &&
            (!best || share < kvd_entry_real(best, "cache_share")))
            best = e;
    }
    return best;
}

static void row(kvd_table *t, const kvd_accuracy_entry *like, size_t n, const char *words,
                const kvd_accuracy_entry *best)
{
    kvd_table_row(t, like->rows, like->row, 1);
    kvd_table_text(t, like->series);
    kvd_table_int(t, (int64_t)n);
    kvd_table_text(t, words);
    if (best) {
        kvd_table_row(t, best->rows, best->row, 6);
        kvd_table_bounded(t, kvd_entry_ratio(best));
        return;
    }
    kvd_table_text(t, "none of them");
    for (int k = 0; k < 8; k++)
        kvd_table_real(t, (double)NAN);
}

static kvd_table *begin(kvd_section *s)
{
    kvd_table *const t =
        kvd_section_table(s, "accuracy-settings",
                          "Smallest cache of each method within a loss, by trying its settings");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "label", "evaluated on");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "series", "method");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "tried", "settings tried");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "asked", "asked");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "settings", "settings");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "overall_p", "overall p");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "cache_share", "share of a 16-bit cache");
    kvd_table_add_interval(t, 4, "top1_share", "top-1 share");
    kvd_table_add_interval(t, 4, "perplexity_ratio", "perplexity ratio");
    kvd_table_note(
        t, "Settings were chosen on the text on which they are judged, so the loss of the one "
           "that was chosen is a little too good. Top-1 share: top-1 accuracy over the "
           "uncompressed model's. Bytes as stored, with scales, indices and masks.");
    return t;
}

void kvd_study_settings(const kvd_accuracy_entries *all, kvd_section *s)
{
    kvd_table *t = NULL;
    for (size_t first = 0, last; first < all->n; first = last + 1) {
        last = all->item[first].last;
        const size_t n = tried(all, first, last);
        if (n < 2 || !settings_differ(all, first, last))
            continue;
        t = t ? t : begin(s);
        for (size_t k = 0; k < sizeof asked / sizeof *asked; k++)
            row(t, &all->item[first], n, asked[k].words, smallest(all, first, last, asked[k].kept));
    }
}

static kvd_table *begin_proposals(kvd_section *s)
{
    kvd_table *const t =
        kvd_section_table(s, "accuracy-proposals", "Proposed settings and the Oracle");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "model", "model");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "label", "evaluated on");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "proposed_by", "proposed by");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "settings", "settings");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "loss_asked", "loss asked for");
    kvd_table_add_interval(t, 3, "loss", "measured");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "cache_share", "share of a 16-bit cache");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "oracle_asked", "Oracle within the loss asked for");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "oracle_measured", "Oracle within the loss measured");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "over_oracle", "proposal over that, %");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "note", "note");
    kvd_table_note(
        t,
        "Loss: perplexity over the uncompressed model's, less 1. Oracle: the smallest cache among "
        "all other settings of the method that were measured on the same text. A proposal is no "
        "grid point, so it may take fewer bytes than the Oracle.");
    return t;
}

static void proposal_row(kvd_table *t, const kvd_judged_proposal *p, bool measured)
{
    const kvd_rows *const rows = p->accuracy->accuracy.rows;
    const bool beyond = kvd_row_real(p->file->proposals, p->proposal, "extrapolated") > 0;
    kvd_table_text(t, p->accuracy->model.name);
    kvd_table_text(t, kvd_row_text(rows, p->row, "label"));
    kvd_table_text(t, p->file->name);
    kvd_table_text(t, kvd_row_text(rows, p->row, "settings"));
    kvd_table_real(t, p->asked);
    kvd_table_bounded(t, p->measured);
    kvd_table_reals(t, p->share, p->oracle_asked, p->oracle_measured,
                    100 * (p->share / p->oracle_measured - 1));
    kvd_table_text(t, beyond && !measured ? "extrapolated; sweeps of other models alone"
                      : beyond            ? "extrapolated"
                      : measured          ? ""
                                          : "sweeps of other models alone");
}

int kvd_study_proposals(const kvd_results *r, kvd_section *s, kvd_err *err)
{
    kvd_judged_proposal *all = NULL;
    size_t n;
    if (kvd_proposals_judge(r, &all, &n, err))
        return -1;
    kvd_table *const t = n ? begin_proposals(s) : NULL;
    for (size_t i = 0; i < n; i++)
        proposal_row(t, &all[i], all[i].file->proposals_measured);
    free(all);
    return 0;
}

bool kvd_row_is_weights(const kvd_rows *rows, size_t row)
{
    return strcmp(kvd_row_text(rows, row, "purpose"), "weights") == 0;
}

static bool has_weights(const kvd_result *x)
{
    bool any = false;
    for (size_t i = 0; x->kind == KVD_RESULT_ACCURACY && i < kvd_rows_count(x->accuracy.rows); i++)
        any = any || kvd_row_is_weights(x->accuracy.rows, i);
    return any;
}

static kvd_table *begin_weights(kvd_section *s)
{
    kvd_table *const t =
        kvd_section_table(s, "accuracy-weights", "Weights of few bits and caches of few bits");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "model", "model");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "label", "evaluated on");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "prompt", "prompt");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "shortened", "what has fewer bytes");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "method", "method");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "settings", "settings");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "weights_mb", "weights, MB");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "cache_share", "cache / 16-bit cache");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "perplexity", "perplexity");
    kvd_table_add_interval(t, 4, "perplexity_ratio", "perplexity ratio");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "top1_share", "top-1 share");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "kl", "KL, nat");
    kvd_table_note(
        t, "All against the model with its stored weights and a whole cache. Of weights: the "
           "matrices of the layers, to the nearest, with a 16-bit scale and zero point for every "
           "group; embeddings, head and norms stay. Prompt: rows of a sequence that attend to each "
           "other uncompressed; 0 means that every row reads the compressed cache. ZDC Fig. 3 also "
           "quantises activations; here weights alone are quantised.");
    return t;
}

static void weight_row(kvd_table *t, const kvd_result *x, size_t i)
{
    const kvd_rows *const rows = x->accuracy.rows;
    const bool none = !strcmp(kvd_row_text(rows, i, "method"), "none");
    kvd_table_text(t, x->model.name);
    kvd_table_row(t, rows, i, 2);
    kvd_table_text(t, none ? "nothing" : kvd_row_is_weights(rows, i) ? "weights" : "cache");
    kvd_table_row(t, rows, i, 2);
    kvd_table_real(t, kvd_row_real(rows, i, "weight_bytes") * 1e-6);
    kvd_table_row(t, rows, i, 2);
    kvd_table_bounded(t, x->accuracy.ratio[i]);
    kvd_table_row(t, rows, i, 2);
}

void kvd_study_weights(const kvd_results *r, kvd_section *s)
{
    kvd_table *t = NULL;
    for (size_t f = 0; f < r->n; f++) {
        const kvd_result *const x = &r->item[f];
        if (!has_weights(x))
            continue;
        t = t ? t : begin_weights(s);
        for (size_t i = 0; i < kvd_rows_count(x->accuracy.rows); i++)
            if (kvd_row_is_weights(x->accuracy.rows, i) ||
                !strcmp(kvd_row_text(x->accuracy.rows, i, "purpose"), "point"))
                weight_row(t, x, i);
    }
}
