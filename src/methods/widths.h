/*
 * Kept dimensions of every head: Eq. 6 of ZACK (Eq. 1 of FDC) over singular values, its inverse
 * F_p, and allocations by measured error and by loss. The kept integer is primary, p follows from
 * it (Z-3 of docs/readings.md).
 */
#ifndef KVD_METHODS_WIDTHS_H
#define KVD_METHODS_WIDTHS_H

#include <stdbool.h>

#include "formats/error_table.h"
#include "formats/rates.h"

/*
 * Returns keep(r): the largest j + 1 with tail(j) > r, where tail(j) = sum_{i >= j} s_i / sum_i
 * s_i, over squares of s_i if `energy`. sigma [d] falls; r is in [0, 1). At least 1 is kept, also
 * if all sigma are 0. r = 0 keeps every dimension with a non-zero tail.
 */
int kvd_keep(const double *sigma, size_t d, double r, bool energy);

/*
 * Writes keep(r) of every layer and KV head of both pairs to *w, which it allocates. Fails if a
 * pair is missing, or has a rotation per query head: widths belong to KV heads (Z-1).
 */
int kvd_widths_eq6(const kvd_spectrum *s, const kvd_pair pair[2], double r, bool energy,
                   kvd_widths *w, kvd_err *err);

/*
 * Tabulates F_p, which is a step function: table_r holds every removal rate at which some width
 * changes, first of all 0, and table_p the overall p from there to the next one. The breakpoints
 * are the tails themselves, so kvd_widths_eq6 at table_r[i] gives table_p[i] to the last bit. Both
 * columns rise strictly; *n >= 1. The caller frees both.
 */
int kvd_rate_table(const kvd_spectrum *s, const kvd_pair pair[2], bool energy, double **table_r,
                   double **table_p, size_t *n, kvd_err *err);

/*
 * Looks up F_p: writes to *r the smallest removal rate whose overall p is at least p - 1e-12 (so
 * that p = 0.6 finds 1 - 0.4). Fails if there is none.
 */
int kvd_table_r_for(const double *table_r, const double *table_p, size_t n, double p, double *r,
                    kvd_err *err);

/*
 * Writes to *r the smallest removal rate whose overall p reaches wanted_p, and the widths there to
 * *w.
 */
int kvd_widths_for_p(const kvd_spectrum *s, const kvd_pair pair[2], double wanted_p, bool energy,
                     double *r, kvd_widths *w, kvd_err *err);

/*
 * Computes the widths at or just above overall p that minimise the sum of sigma^2 of the removed
 * dimensions: the smallest singular values of all heads and both pairs are removed, but not the
 * first of a head. Pairs fqk and fvw alone: half of that sum is the loss in nats per token to
 * second order, written to *loss unless it is NULL.
 */
int kvd_widths_by_loss(const kvd_spectrum *s, const kvd_pair pair[2], double wanted_p, double *loss,
                       kvd_widths *w, kvd_err *err);

/*
 * As the functions above, for one side alone (0: Q-K, 1: V): widths at p of that side's own
 * elements, from its own singular values. The other side keeps d_head. *r, unless NULL, receives
 * the removal rate of Eq. 6 of that pair. ZDC's Eq. 5 has one rate per pair.
 */
int kvd_widths_side_for_p(const kvd_spectrum *s, const kvd_pair pair[2], int side, double wanted_p,
                          bool energy, double *r, kvd_widths *w, kvd_err *err);
int kvd_widths_side_by_loss(const kvd_spectrum *s, const kvd_pair pair[2], int side,
                            double wanted_p, kvd_widths *w, kvd_err *err);

/*
 * Fails if the table was measured with other bases than those of the spectrum, which must have the
 * table's pairs. A table that does not name its bases is accepted.
 */
int kvd_table_matches(const kvd_error_table *t, const char *table_path, const kvd_spectrum *s,
                      const char *spectrum_path, kvd_err *err);

/*
 * Computes the widths at or just above overall p that minimise the sum of tabulated errors: the
 * lower convex hull of every head's curve, interpolated, is cut greedily by error per dimension. No
 * width falls below the smallest in the table. The second function cuts one side alone.
 */
int kvd_widths_by_error(const kvd_error_table *t, double wanted_p, kvd_widths *w, kvd_err *err);
int kvd_widths_side_by_error(const kvd_error_table *t, int side, double wanted_p, kvd_widths *w,
                             kvd_err *err);

#endif
