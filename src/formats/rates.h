/*
 * kvdim/rates: kept dimensions per pair, layer and KV head, for one or more points of compression.
 */
#ifndef KVD_FORMATS_RATES_H
#define KVD_FORMATS_RATES_H

#include <stdint.h>

#include "formats/spectrum.h"

extern const kvd_schema kvd_schema_rates;

/* Kept widths of all heads at one point: side 0 is the Q-K pair, side 1 the V pair. */
typedef struct {
    int n_layers, n_kv_heads, d_head;
    int32_t *kept[2]; /* [n_layers][n_kv_heads], 1 .. d_head */
} kvd_widths;

/* Allocates the kept widths of all heads, set to 0. On success the caller releases *w. */
int kvd_widths_alloc(kvd_widths *w, int n_layers, int n_kv_heads, int d_head, kvd_err *err);
void kvd_widths_release(kvd_widths *w); /* safe on a zeroed *w */
/*
 * Returns overall p: 1 - sum(d_qk + d_v) / (2 d_head n), n being the number of (layer, KV head). If
 * `padded`, widths count as rounded up to 16, at most d_head.
 */
double kvd_widths_p(const kvd_widths *w, int padded);
/* Returns p of one side alone, 0 or 1. Overall p is the mean of the two sides. */
double kvd_widths_side_p(const kvd_widths *w, int side);
/*
 * Returns `kept` rounded up to a multiple of 16, at most d_head: the width that a kernel computes
 * on.
 */
int32_t kvd_pad16(int32_t kept, int d_head);

typedef struct {
    kvd_model_info model;
    char label[64];   /* label of the spectrum */
    char rule[16];    /* "eq6" | "eq6-energy" | "eq6-by-pair" | "error" | "loss" */
    kvd_pair pair[2]; /* e.g. KVD_PAIR_QK, KVD_PAIR_VW */
    char bases_hash
        /* hash of the bases of the spectrum; "" if the file does not have the hash */
        [KVD_BASES_HASH];
    size_t n_points;
    double *removal_rate; /* [n_points] removal rate r; NaN if the rule has no single r */
    double *overall_p, *overall_p16;
    kvd_widths *widths; /* [n_points] */
    /* F_p as a step function: table_p[i] is p at removal rates just at or above table_r[i] */
    size_t n_table;
    /* [n_table], both rising; NULL if the rule has no single r */
    double *table_r, *table_p;
} kvd_rates;

int kvd_rates_write(kvd_h5 *f, const kvd_rates *r, kvd_err *err);
/*
 * Reads a kvdim/rates file. Refuses widths outside 1 .. d_head, an overall p that does not follow
 * from them, and a removal rate r if the rule has none. On success the caller releases *r.
 */
int kvd_rates_load(kvd_rates *r, const char *path, kvd_err *err);
void kvd_rates_release(kvd_rates *r); /* safe on a zeroed *r */

#endif
