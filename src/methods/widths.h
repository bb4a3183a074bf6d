/* Chooses how many dimensions each head keeps, from singular values, measured errors or predicted
 * losses. */
#ifndef KVD_METHODS_WIDTHS_H
#define KVD_METHODS_WIDTHS_H

#include <stdbool.h>

#include "formats/error_table.h"
#include "formats/rates.h"

/* Returns how many of a head's d dimensions are kept at removal rate r in [0, 1), at least 1. The
 * removed singular values (if `energy`: their squares) sum to at most r times the sum of all. sigma
 * [d] must be sorted, largest first. */
int kvd_keep(const double *sigma, size_t d, double r, bool energy);

/* Sets *w to the number of dimensions that each head keeps at removal rate r. Each head loses at
 * most the fraction r of the sum of its singular values or, if `energy` is true, of the sum of
 * their squares. Allocates *w. Fails if the spectrum has a rotation matrix per query head. */
int kvd_widths_eq6(const kvd_spectrum *s, const kvd_pair pair[2], double r, bool energy,
                   kvd_widths *w, kvd_err *err);

/* Tabulates removal rates (table_r) and the fractions of the dimensions that they remove (table_p).
 * At removal rate r, each head loses at most the fraction r of the sum of its singular values.
 * table_p[i] holds from table_r[i] up to table_r[i + 1]. The caller must free both tables. */
int kvd_rate_table(const kvd_spectrum *s, const kvd_pair pair[2], bool energy, double **table_r,
                   double **table_p, size_t *n, kvd_err *err);

/* Sets *r to the smallest removal rate in table_r that removes at least the fraction p - 1e-12 of
 * the dimensions. Rate table_r[i] removes the fraction table_p[i]. Fails if no rate removes
 * enough. */
int kvd_table_r_for(const double *table_r, const double *table_p, size_t n, double p, double *r,
                    kvd_err *err);

/* Value of `side` for Q, K and V together. Value 0 is for Q and K, value 1 for V. */
enum { KVD_BOTH_SIDES = -1 };

/* Removes at least the fraction wanted_p of the dimensions. Each head loses at most the fraction r
 * of the sum of its singular values, for the smallest r that suffices.
 *
 * - side: dimensions of Q and K (0), of V (1), or of Q, K and V (KVD_BOTH_SIDES)
 * - r: receives r; may be NULL
 * - w: receives the number of dimensions that each head keeps */
int kvd_widths_for_p(const kvd_spectrum *s, const kvd_pair pair[2], int side, double wanted_p,
                     bool energy, double *r, kvd_widths *w, kvd_err *err);

/* Removes the dimensions with the smallest singular values, at least the fraction wanted_p of all
 * dimensions.
 *
 * - side: dimensions of Q and K (0), of V (1), or of Q, K and V (KVD_BOTH_SIDES)
 * - loss: receives half the sum of the squared removed singular values, in nats per token for
 *   Fisher-weighted matrices; may be NULL
 * - w: receives the number of dimensions that each head keeps */
int kvd_widths_by_loss(const kvd_spectrum *s, const kvd_pair pair[2], int side, double wanted_p,
                       double *loss, kvd_widths *w, kvd_err *err);

/* Fails if the errors in table *t were measured with other rotation matrices than spectrum *s
 * has. */
int kvd_table_matches(const kvd_error_table *t, const char *table_path, const kvd_spectrum *s,
                      const char *spectrum_path, kvd_err *err);

/* Removes at least the fraction wanted_p of the dimensions, with the smallest total error. Errors
 * between the widths of table *t are interpolated on their lower convex hull.
 *
 * - side: dimensions of Q and K (0), of V (1), or of Q, K and V (KVD_BOTH_SIDES)
 * - w: receives the number of dimensions that each head keeps, at least the table's smallest
 *   width */
int kvd_widths_by_error(const kvd_error_table *t, int side, double wanted_p, kvd_widths *w,
                        kvd_err *err);

#endif
