/*
 * Kept dimensions from singular values: Eq. 6 of ZACK (Eq. 1 of FDC), its inverse F_p, and the
 * allocation by measured error. Reading 3 of DESIGN: the integer is primary.
 */
#ifndef KVD_ANALYSIS_WIDTHS_H
#define KVD_ANALYSIS_WIDTHS_H

#include <stdbool.h>

#include "formats/error_table.h"
#include "formats/rates.h"

/*
 * keep(r): the largest j + 1 with tail(j) > r, tail(j) = sum_{i >= j} s_i / sum_i s_i; squares of s_i
 * when energy. sigma [d] falling; r in [0, 1). At least 1 is kept (also when all sigma are 0).
 * r = 0 keeps every dimension with a non-zero tail.
 */
int kvd_keep(const double *sigma, size_t d, double r, bool energy);

/* keep(r) for every layer and KV head of both pairs. w is allocated for the spectrum's shape. Fails when
 * a pair is missing or has another rotation per query head: widths belong to KV heads (reading 1). */
int kvd_widths_eq6(const kvd_spectrum *s, const kvd_pair pair[2], double r, bool energy, kvd_widths *w,
                   kvd_err *err);

/*
 * F_p as a step function: every removal rate at which some width changes, first of all 0, with the overall p
 * that holds from there up to the next one. Exact: the breakpoints are the tails themselves, so kvd_widths_eq6
 * at table_r[i] gives table_p[i] to the last bit. Both columns rise strictly.
 * *table_r, *table_p [*n] allocated, the caller frees; *n >= 1.
 */
int kvd_rate_table(const kvd_spectrum *s, const kvd_pair pair[2], bool energy, double **table_r,
                   double **table_p, size_t *n, kvd_err *err);

/* F_p looked up: the overall p at removal rate r, and the smallest removal rate whose overall p is at least
 * p (by bisection; within 1e-12, so that p = 0.6 finds 1 - 0.4). The second fails when no rate reaches p. */
double kvd_table_p_at(const double *table_r, const double *table_p, size_t n, double r);
int kvd_table_r_for(const double *table_r, const double *table_p, size_t n, double p, double *r,
                    kvd_err *err);

/* The smallest r whose overall p reaches wanted_p, by way of the table; *r and the widths there. */
int kvd_widths_for_p(const kvd_spectrum *s, const kvd_pair pair[2], double wanted_p, bool energy, double *r,
                     kvd_widths *w, kvd_err *err);

/*
 * Widths at overall p (at or just above) that minimise sum sigma^2 of what goes: the smallest singular values of all heads and both pairs,
 * but the first of each head. Pairs fqk and fvw alone, where half of that sum is the loss in nats per token to second order. *loss, unless
 * NULL, receives it.
 */
int kvd_widths_by_loss(const kvd_spectrum *s, const kvd_pair pair[2], double wanted_p, double *loss,
                       kvd_widths *w, kvd_err *err);

/*
 * The same three for one pair by itself, side 0 the Q-K pair, 1 the V pair: widths of that side alone at p of its own elements, from its own
 * singular values or errors; the other side keeps d_head. *r, unless NULL, receives the removal rate of Eq. 6 of that pair. ZDC's Eq. 5 has rates of
 * one pair each.
 */
int kvd_widths_side_for_p(const kvd_spectrum *s, const kvd_pair pair[2], int side, double wanted_p,
                          bool energy, double *r, kvd_widths *w, kvd_err *err);
int kvd_widths_side_by_loss(const kvd_spectrum *s, const kvd_pair pair[2], int side, double wanted_p,
                            kvd_widths *w, kvd_err *err);

/* Fails when the table says that it was measured with other bases than these. Its pairs must be in the spectrum. */
int kvd_table_matches(const kvd_error_table *t, const char *table_path, const kvd_spectrum *s,
                      const char *spectrum_path, kvd_err *err);

/*
 * Widths at overall p (at or just above) that minimise the sum of tabulated errors: the lower convex hull of
 * every head's curve, interpolated, cut greedily by error per dimension. No width falls below the smallest
 * in the table.
 */
int kvd_widths_by_error(const kvd_error_table *t, double wanted_p, kvd_widths *w, kvd_err *err);
int kvd_widths_side_by_error(const kvd_error_table *t, int side, double wanted_p, kvd_widths *w,
                             kvd_err *err);

#endif
