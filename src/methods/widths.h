/* Chooses how many dimensions each head keeps, from singular values, measured errors or predicted
 * losses. */
#ifndef KVD_METHODS_WIDTHS_H
#define KVD_METHODS_WIDTHS_H

#include <stdbool.h>

#include "formats/error_table.h"
#include "formats/rates.h"

/* Returns how many of a head's d dimensions are kept at removal rate r in [0, 1), at least 1. The
 * smallest singular values are removed, as long as their sum is at most r times the sum of all. If
 * `energy` is true, squares are summed instead. sigma [d] must be sorted, largest first. */
int kvd_keep(const double *sigma, size_t d, double r, bool energy);

/* Sets *w to the number of dimensions that each head keeps at removal rate r, the fraction that the
 * head may lose of the sum of its singular values. If `energy` is true, squares of singular values
 * are summed instead. Allocates *w. Fails if the spectrum has rotations per query head. */
int kvd_widths_eq6(const kvd_spectrum *s, const kvd_pair pair[2], double r, bool energy,
                   kvd_widths *w, kvd_err *err);

/* Tabulates p, the fraction of dimensions that are removed, for all removal rates r. A head may
 * lose the fraction r of the sum of its singular values. p is table_p[i] for r from table_r[i] up
 * to table_r[i + 1]. The caller must free both tables. */
int kvd_rate_table(const kvd_spectrum *s, const kvd_pair pair[2], bool energy, double **table_r,
                   double **table_p, size_t *n, kvd_err *err);

/* Sets *r to the smallest removal rate in the table at which at least the fraction p - 1e-12 of the
 * dimensions is removed. table_p[i] is the fraction of dimensions that is removed at rate
 * table_r[i]. Fails if there is no such rate. */
int kvd_table_r_for(const double *table_r, const double *table_p, size_t n, double p, double *r,
                    kvd_err *err);

/* Value of `side` for Q, K and V together. Value 0 is for Q and K, value 1 for V. */
enum { KVD_BOTH_SIDES = -1 };

/* Finds the smallest removal rate at which at least the fraction wanted_p of the dimensions of Q
 * and K (`side` 0), V (1) or both (KVD_BOTH_SIDES) is removed. A head may lose this rate times the
 * sum of its singular values. *w gets the kept dimensions and *r, unless NULL, the rate. */
int kvd_widths_for_p(const kvd_spectrum *s, const kvd_pair pair[2], int side, double wanted_p,
                     bool energy, double *r, kvd_widths *w, kvd_err *err);

/* Removes at least the fraction wanted_p of the dimensions of Q and K (`side` 0), V (1) or both
 * (KVD_BOTH_SIDES), those with the smallest singular values. *w gets the kept dimensions. *loss,
 * unless NULL, gets half the sum of the squares of the removed singular values, in nats per token
 * for Fisher-weighted matrices. */
int kvd_widths_by_loss(const kvd_spectrum *s, const kvd_pair pair[2], int side, double wanted_p,
                       double *loss, kvd_widths *w, kvd_err *err);

/* Fails if the errors in table *t were measured with other rotation matrices than spectrum *s
 * has. */
int kvd_table_matches(const kvd_error_table *t, const char *table_path, const kvd_spectrum *s,
                      const char *spectrum_path, kvd_err *err);

/* Removes at least the fraction wanted_p of the dimensions of Q and K (`side` 0), V (1) or both
 * (KVD_BOTH_SIDES), with the smallest total error. The error of a head is interpolated on the lower
 * convex hull of its errors in table *t. No head keeps fewer dimensions than the table's smallest
 * width. */
int kvd_widths_by_error(const kvd_error_table *t, int side, double wanted_p, kvd_widths *w,
                        kvd_err *err);

#endif
