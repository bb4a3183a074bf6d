/*
 * Computes how many dimensions every head keeps: by Eq. 6 of ZACK (Eq. 1 of FDC) over singular
 * values, by measured error, or by predicted loss. The integer numbers of kept dimensions are
 * computed first; the removed fraction p follows from them (reading Z-3 in docs/readings.md).
 */
#ifndef KVD_METHODS_WIDTHS_H
#define KVD_METHODS_WIDTHS_H

#include <stdbool.h>

#include "formats/error_table.h"
#include "formats/rates.h"

/*
 * Returns keep(r), the number of dimensions kept at removal rate r in [0, 1): the largest j + 1 for
 * which tail(j) > r. Here tail(j) is the sum of s_j and all later singular values, divided by the
 * sum of all. If `energy` is true, the sums are over squares. sigma [d] must not increase. At least
 * 1 dimension is kept, even if all singular values are 0.
 */
int kvd_keep(const double *sigma, size_t d, double r, bool energy);

/*
 * Writes the kept dimensions of every layer and KV head at removal rate r to `*w`, which the
 * function allocates. Singular values are those of s->pair[pair[0]] for Q and K, and
 * s->pair[pair[1]] for V. `energy` is as in kvd_keep. Fails if `*s` lacks these singular values, or
 * has one rotation per query head instead of one per KV head (reading Z-1 in docs/readings.md).
 */
int kvd_widths_eq6(const kvd_spectrum *s, const kvd_pair pair[2], double r, bool energy,
                   kvd_widths *w, kvd_err *err);

/*
 * Tabulates the removed fraction p as a step function of the removal rate r. table_r holds 0 and
 * every r at which the number of kept dimensions of some head changes. table_p[i] is p for all r
 * from table_r[i] up to table_r[i + 1]. kvd_widths_eq6 at table_r[i] gives table_p[i] to the last
 * bit. Both arrays rise strictly, and *n is at least 1. The caller must free both arrays.
 */
int kvd_rate_table(const kvd_spectrum *s, const kvd_pair pair[2], bool energy, double **table_r,
                   double **table_p, size_t *n, kvd_err *err);

/*
 * Writes to `*r` the smallest removal rate whose p in the table is at least p - 1e-12. The
 * tolerance is for rounding errors: p = 0.6 must find an entry that was computed as 1 - 0.4. Fails
 * if there is none.
 */
int kvd_table_r_for(const double *table_r, const double *table_p, size_t n, double p, double *r,
                    kvd_err *err);

/*
 * Finds the smallest removal rate that removes at least the fraction wanted_p of all dimensions of
 * Q, K and V. Writes it to `*r`, and the kept dimensions to `*w`.
 */
int kvd_widths_for_p(const kvd_spectrum *s, const kvd_pair pair[2], double wanted_p, bool energy,
                     double *r, kvd_widths *w, kvd_err *err);

/*
 * Removes the fraction wanted_p of all dimensions of Q, K and V, or slightly more. It removes the
 * dimensions whose squared singular values have the smallest sum. The first dimension of a head is
 * never removed. If the matrices were weighted by Fisher information, half of the removed sum is
 * the loss in nats per token, to second order. Unless `loss` is NULL, the loss is written to
 * `*loss`.
 */
int kvd_widths_by_loss(const kvd_spectrum *s, const kvd_pair pair[2], double wanted_p, double *loss,
                       kvd_widths *w, kvd_err *err);

/*
 * Removes the fraction wanted_p of the dimensions of Q and K (side 0) or V (side 1) alone; the
 * other side keeps d_head dimensions. Writes the removal rate of Eq. 6 to `*r` unless `r` is NULL.
 */
int kvd_widths_side_for_p(const kvd_spectrum *s, const kvd_pair pair[2], int side, double wanted_p,
                          bool energy, double *r, kvd_widths *w, kvd_err *err);
int kvd_widths_side_by_loss(const kvd_spectrum *s, const kvd_pair pair[2], int side,
                            double wanted_p, kvd_widths *w, kvd_err *err);

/*
 * Fails if the error table was measured with other rotations than those of the spectrum. A table
 * that does not name its rotations is accepted. Otherwise the spectrum must have rotations of the
 * same pairs of matrices, such as qk and vw.
 */
int kvd_table_matches(const kvd_error_table *t, const char *table_path, const kvd_spectrum *s,
                      const char *spectrum_path, kvd_err *err);

/*
 * Each function removes the fraction wanted_p of the dimensions, or slightly more, such that the
 * sum of the errors in the table is smallest. kvd_widths_by_error reduces Q, K and V. Errors are
 * interpolated on the lower convex hull of every head's error curve. No head falls below the
 * smallest width in the table. kvd_widths_side_by_error reduces only Q and K (side 0) or V (side
 * 1).
 */
int kvd_widths_by_error(const kvd_error_table *t, double wanted_p, kvd_widths *w, kvd_err *err);
int kvd_widths_side_by_error(const kvd_error_table *t, int side, double wanted_p, kvd_widths *w,
                             kvd_err *err);

#endif
