/*
 * Computes the kept dimensions of every head: Eq. 6 of ZACK (Eq. 1 of FDC) over singular values,
 * its inverse F_p, and allocations by measured error and by loss. The kept integers are primary and
 * p follows from them (Z-3 of docs/readings.md).
 */
#ifndef KVD_METHODS_WIDTHS_H
#define KVD_METHODS_WIDTHS_H

#include <stdbool.h>

#include "formats/error_table.h"
#include "formats/rates.h"

/*
 * Returns keep(r), the number of dimensions kept at removal rate r: the largest j + 1 with tail(j)
 * > r, where tail(j) = sum_{i >= j} s_i / sum_i s_i, over squares of s_i if `energy`. sigma [d]
 * must not increase; r is in [0, 1). At least 1 dimension is kept, also if all sigma are 0. r = 0
 * keeps every dimension with a non-zero tail.
 */
int kvd_keep(const double *sigma, size_t d, double r, bool energy);

/*
 * Writes keep(r) of every layer and KV head of both pairs to *w, which it allocates. Fails if a
 * pair is missing, or has a rotation per query head: widths belong to KV heads (Z-1).
 */
int kvd_widths_eq6(const kvd_spectrum *s, const kvd_pair pair[2], double r, bool energy,
                   kvd_widths *w, kvd_err *err);

/*
 * Tabulates F_p, the overall p as a function of the removal rate r, which is a step function.
 * table_r holds every r at which some width changes, starting with 0; table_p holds p from there to
 * the next r. The breakpoints are the tails themselves, so kvd_widths_eq6 at table_r[i] gives
 * table_p[i] to the last bit. Both columns rise strictly; *n >= 1. The caller frees both.
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
 * dimensions. The smallest singular values of all heads and both pairs are removed, but never the
 * first of a head. For the pairs fqk and fvw, half of that sum is the loss in nats per token to
 * second order, which is written to *loss unless `loss` is NULL.
 */
int kvd_widths_by_loss(const kvd_spectrum *s, const kvd_pair pair[2], double wanted_p, double *loss,
                       kvd_widths *w, kvd_err *err);

/*
 * Computes the widths of one pair (side 0: Q-K, 1: V) at p of that pair's own elements, from its
 * own singular values. The other pair keeps d_head. Writes the removal rate of Eq. 6 to *r unless
 * `r` is NULL. Used for Eq. 5 of ZDC, which has one rate per pair.
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
 * Computes the widths at or just above overall p that minimise the sum of tabulated errors. The
 * lower convex hull of every head's error curve, interpolated, is cut greedily by error per
 * dimension. No width falls below the smallest in the table. The second function cuts one pair
 * alone.
 */
int kvd_widths_by_error(const kvd_error_table *t, double wanted_p, kvd_widths *w, kvd_err *err);
int kvd_widths_side_by_error(const kvd_error_table *t, int side, double wanted_p, kvd_widths *w,
                             kvd_err *err);

#endif
