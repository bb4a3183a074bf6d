#include "report/measures/measures.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "report/measures/same.h"

/*
 * Returns true if the settings contain NAME.KEY=VALUE for some name. Values are compared at four
 * digits, the precision of proposals.
 */
static bool set_to(const char *settings, const char *key, double value)
{
    char wanted[64];
    const int n = snprintf(wanted, sizeof wanted, ".%s=%.4g", key, value);
    for (const char *at = settings; (at = strstr(at, wanted)); at += n)
        if (!at[n] || at[n] == ',')
            return true;
    return false;
}

static bool is_proposal(const kvd_rows *proposals, size_t i, const kvd_rows *rows, size_t row)
{
    static const char *const key[] = {"g", "rise", "p.qk", "p.v", "p_u.qk", "p_u.v"};
    static const char *const column[] = {"g", "rise", "p_qk", "p_v", "p_u_qk", "p_u_v"};
    const char *const settings = kvd_row_text(rows, row, "settings");
    for (size_t k = 0; k < sizeof key / sizeof *key; k++)
        if (!set_to(settings, key[k], kvd_row_real(proposals, i, column[k])))
            return false;
    return !strcmp(kvd_row_text(rows, row, "purpose"), "point");
}

static bool is_any(const kvd_results *r, const kvd_rows *rows, size_t row)
{
    for (size_t f = 0; f < r->n; f++)
        for (size_t i = 0; r->item[f].proposals && i < kvd_rows_count(r->item[f].proposals); i++)
            if (is_proposal(r->item[f].proposals, i, rows, row))
                return true;
    return false;
}

static double loss_of(const kvd_result *x, size_t row)
{
    return x->accuracy.ratio[row].value - 1;
}

/* Returns true if the rows differ in nothing but settings of two levels. */
static bool comparable(const kvd_result *a, size_t i, const kvd_result *b, size_t j)
{
    return !isnan(kvd_row_real(b->accuracy.rows, j, "low_p_qk")) &&
           !kvd_rows_differ(a, i, b, j, "settings,widths");
}

static void find_oracle(const kvd_results *r, kvd_judged_proposal *p)
{
    p->oracle_asked = p->oracle_measured = p->oracle_lo = p->oracle_hi = NAN;
    for (size_t f = 0; f < r->n; f++) {
        const kvd_result *const x = &r->item[f];
        for (size_t i = 0; x->kind == KVD_RESULT_ACCURACY && i < kvd_rows_count(x->accuracy.rows);
             i++) {
            if (!comparable(p->accuracy, p->row, x, i) || is_any(r, x->accuracy.rows, i))
                continue;
            const double share = kvd_row_real(x->accuracy.rows, i, "cache_share"),
                         loss = loss_of(x, i);
            if (loss <= p->asked)
                p->oracle_asked = fmin(share, p->oracle_asked); /* fmin(NaN, x) is x */
            if (loss <= p->measured.value)
                p->oracle_measured = fmin(share, p->oracle_measured);
            if (loss <= p->measured.lo)
                p->oracle_lo = fmin(share, p->oracle_lo);
            if (loss <= p->measured.hi)
                p->oracle_hi = fmin(share, p->oracle_hi);
        }
    }
}

/*
 * Counts the rows of accuracy files that are proposals, and writes as many of them as there is room
 * for.
 */
static size_t list(const kvd_results *r, kvd_judged_proposal *all)
{
    size_t n = 0;
    for (size_t f = 0; f < r->n; f++)
        for (size_t i = 0; r->item[f].proposals && i < kvd_rows_count(r->item[f].proposals); i++)
            for (size_t a = 0; a < r->n; a++) {
                const kvd_result *const x = &r->item[a];
                if (x->kind != KVD_RESULT_ACCURACY || strcmp(x->model.hash, r->item[f].model.hash))
                    continue;
                for (size_t k = 0; k < kvd_rows_count(x->accuracy.rows); k++) {
                    if (!is_proposal(r->item[f].proposals, i, x->accuracy.rows, k))
                        continue;
                    const kvd_interval *const ratio = &x->accuracy.ratio[k];
                    if (all)
                        all[n] = (kvd_judged_proposal){
                            .file = &r->item[f],
                            .proposal = i,
                            .accuracy = x,
                            .row = k,
                            .asked = kvd_row_real(r->item[f].proposals, i, "loss"),
                            .measured = {ratio->value - 1, ratio->lo - 1, ratio->hi - 1},
                            .share = kvd_row_real(x->accuracy.rows, k, "cache_share")};
                    n++;
                }
            }
    return n;
}

int kvd_proposals_judge(const kvd_results *r, kvd_judged_proposal **all, size_t *n, kvd_err *err)
{
    *n = list(r, NULL);
    *all = calloc(*n ? *n : 1, sizeof **all);
    if (!*all)
        return kvd_no_memory(err, "proposals", *n * sizeof **all);
    list(r, *all);
    for (size_t i = 0; i < *n; i++)
        find_oracle(r, *all + i);
    return 0;
}

int kvd_proposals_measure(const kvd_results *r, kvd_measured *out, kvd_err *err)
{
    kvd_judged_proposal *all = NULL;
    size_t n;
    int status = kvd_proposals_judge(r, &all, &n, err);
    for (size_t i = 0; !status && i < n; i++) {
        const kvd_judged_proposal *const p = &all[i];
        const double over = 100 * (p->share / p->oracle_measured - 1);
        if (isnan(over) || !p->file->proposals_measured ||
            kvd_row_real(p->file->proposals, p->proposal, "extrapolated") > 0)
            continue;
        status = kvd_values_put(
            out, over, err, "%s on %s, asked for a loss of %g", p->accuracy->model.name,
            kvd_row_text(p->accuracy->accuracy.rows, p->row, "label"), p->asked);
        /* If more loss is allowed, the Oracle needs fewer bytes, so the ends swap. */
        kvd_values_interval(out, isnan(p->oracle_lo) ? -100 : 100 * (p->share / p->oracle_lo - 1),
                            100 * (p->share / p->oracle_hi - 1));
    }
    free(all);
    return status;
}
