/*
 * Computes how many dimensions every head keeps. The rules are: Eq. 6 of ZACK (Eq. 1 of FDC) over
 * singular values, for a given removal rate r or for the smallest r that removes a wanted fraction
 * p of all dimensions; measured error; predicted loss. The kept integers are primary and the
 * fraction p follows from them (Z-3 of docs/readings.md).
 */
#ifndef KVD_METHODS_WIDTHS_H
#define KVD_METHODS_WIDTHS_H

#include <stdbool.h>

#include "formats/error_table.h"
#include "formats/rates.h"

/*
 * Returns keep(r), the number of dimensions kept at removal rate r: the largest j + 1 with tail(j)
 * > r, where tail(j) = sum_{i >= j} s_i / sum_i s_i. If `energy`, the sums are over squares of s_i.
 * The singular values sigma [d] must not increase; r is in [0, 1). At least 1 dimension is kept,
 * also if all sigma are 0. r = 0 keeps every dimension with a non-zero tail.
 */
int kvd_keep(const double *sigma, size_t d, double r, bool energy);

/*
 * Writes the number of kept dimensions of every layer and KV head, for Q-K and for V, at removal
 * rate r to *w, which the function allocates. The singular values are those of s->pair[pair[0]] for
 * Q-K and s->pair[pair[1]] for V, such as qk and vw; `energy` is as in kvd_keep. Fails if *s lacks
 * them or has one rotation per query head: widths belong to KV heads (Z-1 of docs/readings.md).
 */
int kvd_widths_eq6(const kvd_spectrum *s, const kvd_pair pair[2], double r, bool energy,
                   kvd_widths *w, kvd_err *err);

/*
 * Tabulates the overall p (fraction of dimensions removed) as a function of the removal rate r.
 * This is a step function. table_r holds every r at which some width changes, starting with 0;
 * table_p holds p from there to the next r. The breakpoints are the tail sums themselves, so
 * kvd_widths_eq6 at table_r[i] gives table_p[i] to the last bit. Both columns rise strictly; *n is
 * at least 1. The caller frees both.
 */
int kvd_rate_table(const kvd_spectrum *s, const kvd_pair pair[2], bool energy, double **table_r,
                   double **table_p, size_t *n, kvd_err *err);

/*
 * Looks up the table of kvd_rate_table: writes to *r the smallest removal rate at which the removed
 * fraction of all dimensions is at least p - 1e-12 (so that p = 0.6 finds 1 - 0.4). Fails if there
 * is none.
 */
int kvd_table_r_for(const double *table_r, const double *table_p, size_t n, double p, double *r,
                    kvd_err *err);

/*
 * Writes to *r the smallest removal rate at which at least the fraction wanted_p of all dimensions
 * of Q-K and V is removed, and the kept widths at that rate to *w.
 */
int kvd_widths_for_p(const kvd_spectrum *s, const kvd_pair pair[2], double wanted_p, bool energy,
                     double *r, kvd_widths *w, kvd_err *err);

/*
 * Computes kept widths that remove the fraction wanted_p of all dimensions of Q-K and V, or
 * slightly more, and minimise the sum of sigma^2 of the removed dimensions. The smallest singular
 * values of all heads, of Q-K and of V, are removed, but never the first one of a head. If the
 * matrices were weighted by Fisher information before their singular value decomposition, half of
 * that sum is the loss in nats per token to second order. It is written to *loss unless `loss` is
 * NULL.
 */
int kvd_widths_by_loss(const kvd_spectrum *s, const kvd_pair pair[2], double wanted_p, double *loss,
                       kvd_widths *w, kvd_err *err);

/*
 * Computes the kept widths of Q-K (side 0) or V (side 1) alone, so that the fraction wanted_p of
 * that side's own elements is removed. The other side keeps d_head dimensions. Writes the removal
 * rate of Eq. 6 to *r unless `r` is NULL. Used for Eq. 5 of ZDC, which has one rate per side.
 */
int kvd_widths_side_for_p(const kvd_spectrum *s, const kvd_pair pair[2], int side, double wanted_p,
                          bool energy, double *r, kvd_widths *w, kvd_err *err);
int kvd_widths_side_by_loss(const kvd_spectrum *s, const kvd_pair pair[2], int side,
                            double wanted_p, kvd_widths *w, kvd_err *err);

/*
 * Fails if the error table was measured with other rotations than those of the spectrum, which must
 * have rotations of the same matrices (pairs such as qk and vw). A table that does not name its
 * rotations is accepted.
 */
int kvd_table_matches(const kvd_error_table *t, const char *table_path, const kvd_spectrum *s,
                      const char *spectrum_path, kvd_err *err);

/*
 * Compute kept widths that remove the fraction wanted_p of the dimensions, or slightly more, and
 * minimise the sum of the heads' errors, which the table gives for some widths. The lower convex
 * hull of every head's error curve is interpolated and reduced greedily, smallest error per
 * dimension first. No width falls below the smallest in the table. kvd_widths_by_error reduces Q-K
 * and V, kvd_widths_side_by_error only Q-K (side 0) or V (side 1).
 */
int kvd_widths_by_error(const kvd_error_table *t, double wanted_p, kvd_widths *w, kvd_err *err);
int kvd_widths_side_by_error(const kvd_error_table *t, int side, double wanted_p, kvd_widths *w,
                             kvd_err *err);

#endif
