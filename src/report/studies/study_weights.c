/*
 * Report: weights of few bits compared with caches of few bits (ZDC Fig. 3). Rows of weights have
 * their own table, because they are not methods of the cache.
 */
#include <stdio.h>
#include <string.h>

#include "report/measures/measures.h"
#include "report/studies/studies.h"

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

static kvd_table *begin(kvd_section *s, kvd_err *err)
{
    kvd_table *const t =
        kvd_section_table(s, "accuracy-weights", "Weights of few bits and caches of few bits", err);
    if (!t)
        return NULL;
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "model", "model");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "label", "evaluated on");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "prompt", "prompt");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "shortened", "what has fewer bytes");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "method", "method");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "settings", "settings");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "weights_mb", "weights, MB");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "cache_share", "cache / 16-bit cache");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "perplexity", "perplexity");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "perplexity_ratio", "perplexity ratio");
    kvd_table_interval(t);
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "perplexity_ratio_lo", "from");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "perplexity_ratio_hi", "to");
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

static void row(kvd_table *t, const kvd_result *x, size_t i)
{
    const kvd_rows *const rows = x->accuracy.rows;
    const kvd_interval *const ratio = &x->accuracy.ratio[i];
    const bool none = !strcmp(kvd_row_text(rows, i, "method"), "none");
    kvd_table_text(t, x->model.name);
    kvd_table_text(t, kvd_row_text(rows, i, "label"));
    kvd_table_count(t, kvd_row_real(rows, i, "prompt"));
    kvd_table_text(t, none ? "nothing" : kvd_row_is_weights(rows, i) ? "weights" : "cache");
    kvd_table_text(t, kvd_row_text(rows, i, "method"));
    kvd_table_text(t, kvd_row_text(rows, i, "settings"));
    kvd_table_real(t, kvd_row_real(rows, i, "weight_bytes") * 1e-6);
    kvd_table_real(t, kvd_row_real(rows, i, "cache_share"));
    kvd_table_real(t, kvd_row_real(rows, i, "perplexity"));
    kvd_table_real(t, ratio->value);
    kvd_table_real(t, ratio->lo);
    kvd_table_real(t, ratio->hi);
    kvd_table_real(t, kvd_row_real(rows, i, "top1_share"));
    kvd_table_real(t, kvd_row_real(rows, i, "kl"));
}

int kvd_study_weights(const kvd_results *r, kvd_section *s, kvd_err *err)
{
    kvd_table *t = NULL;
    for (size_t f = 0; f < r->n; f++) {
        const kvd_result *const x = &r->item[f];
        if (!has_weights(x))
            continue;
        if (!t && !(t = begin(s, err)))
            return -1;
        for (size_t i = 0; i < kvd_rows_count(x->accuracy.rows); i++)
            if (kvd_row_is_weights(x->accuracy.rows, i) ||
                !strcmp(kvd_row_text(x->accuracy.rows, i, "purpose"), "point"))
                row(t, x, i);
    }
    return 0;
}
