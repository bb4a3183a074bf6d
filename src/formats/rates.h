/* kvdim/rates: kept dimensions per pair, layer and KV head, for one or many points. */
#ifndef KVD_FORMATS_RATES_H
#define KVD_FORMATS_RATES_H

#include <stdint.h>

#include "formats/spectrum.h"

extern const kvd_schema kvd_schema_rates;

/* One choice of widths: side 0 is the Q-K pair, side 1 the V pair. */
typedef struct {
    int n_layers, n_kv_heads, d_head;
    int32_t *kept[2]; /* [n_layers][n_kv_heads], 1 .. d_head */
} kvd_widths;

/* Widths of 0, to be filled; *w is the caller's on success. */
int kvd_widths_alloc(kvd_widths *w, int n_layers, int n_kv_heads, int d_head, kvd_err *err);
void kvd_widths_release(kvd_widths *w); /* safe on a zeroed struct */
/* Overall p (DESIGN reading 4): 1 - sum(d_qk + d_v) / (2 d_head n). padded: widths rounded up to 16, at most d_head. */
double kvd_widths_p(const kvd_widths *w, int padded);
/* The same of one side alone, 0 or 1; overall p is the mean of both. */
double kvd_widths_side_p(const kvd_widths *w, int side);
/* Rounded up to a multiple of 16, at most d_head: what a kernel computes on. */
int32_t kvd_pad16(int32_t kept, int d_head);

typedef struct {
    kvd_model_info model;
    char label[64];                  /* of the spectrum                                       */
    char rule[16];                   /* "eq6" | "eq6-energy" | "eq6-by-pair" | "error" | "loss" */
    kvd_pair pair[2];                /* e.g. KVD_PAIR_QK, KVD_PAIR_VW                         */
    char bases_hash[KVD_BASES_HASH]; /* of the spectrum that was fitted; "" in files that do not say it */
    size_t n_points;
    double *removal_rate; /* [n_points] r; NaN where the rule has no one r          */
    double *overall_p, *overall_p16;
    kvd_widths *widths;        /* [n_points]                                            */
    size_t n_table;            /* F_p as a step function: p at removal rates just at or above table_r[i] */
    double *table_r, *table_p; /* [n_table], both rising; NULL where the rule has no one r */
} kvd_rates;

int kvd_rates_write(kvd_h5 *f, const kvd_rates *r, kvd_err *err);
/* Refuses widths that are not 1 .. d_head, an overall p that they do not give, and an r where the rule has none. *r is the caller's on success. */
int kvd_rates_load(kvd_rates *r, const char *path, kvd_err *err);
void kvd_rates_release(kvd_rates *r); /* safe on a zeroed struct */

#endif
