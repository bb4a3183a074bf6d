/*
 * Report: settings that the regression proposed, their measured loss, and their distance from the
 * Oracle.
 */
#include <math.h>
#include <stdlib.h>

#include "report/measures/measures.h"
#include "report/studies/studies.h"

static kvd_table *begin(kvd_section *s, kvd_err *err)
{
    kvd_table *const t =
        kvd_section_table(s, "accuracy-proposals", "Proposed settings and the Oracle", err);
    if (!t)
        return NULL;
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "model", "model");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "label", "evaluated on");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "proposed_by", "proposed by");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "settings", "settings");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "loss_asked", "loss asked for");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "loss", "measured");
    kvd_table_interval(t);
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "loss_lo", "from");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "loss_hi", "to");
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

static void row(kvd_table *t, const kvd_judged_proposal *p, bool measured)
{
    const kvd_rows *const rows = p->accuracy->accuracy.rows;
    const bool beyond = kvd_row_real(p->file->proposals, p->proposal, "extrapolated") > 0;
    kvd_table_text(t, p->accuracy->model.name);
    kvd_table_text(t, kvd_row_text(rows, p->row, "label"));
    kvd_table_text(t, p->file->name);
    kvd_table_text(t, kvd_row_text(rows, p->row, "settings"));
    kvd_table_real(t, p->asked);
    kvd_table_real(t, p->measured.value);
    kvd_table_real(t, p->measured.lo);
    kvd_table_real(t, p->measured.hi);
    kvd_table_real(t, p->share);
    kvd_table_real(t, p->oracle_asked);
    kvd_table_real(t, p->oracle_measured);
    kvd_table_real(t, 100 * (p->share / p->oracle_measured - 1));
    kvd_table_text(t, beyond && !measured ? "extrapolated; sweeps of other models alone"
                      : beyond            ? "extrapolated"
                      : measured          ? ""
                                          : "sweeps of other models alone");
}

int kvd_study_proposals(const kvd_results *r, kvd_section *s, kvd_err *err)
{
    kvd_judged_proposal *all = NULL;
    kvd_table *t = NULL;
    size_t n;
    int status = kvd_proposals_judge(r, &all, &n, err);
    if (!status && n && !(t = begin(s, err)))
        status = -1;
    for (size_t i = 0; t && i < n; i++)
        row(t, &all[i], all[i].file->proposals_measured);
    free(all);
    return status;
}
