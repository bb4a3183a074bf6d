/*
 * What a sweep of kvdim-eval tried of a method with two levels of tokens, ZDC's: of every row the quality lost and the bytes that are
 * left, and the setting behind them. For the regression that proposes settings (regression.h).
 */
#ifndef KVD_ANALYSIS_SWEEP_H
#define KVD_ANALYSIS_SWEEP_H

#include "formats/model_info.h"
#include "formats/spectrum.h"

/* A setting: the share of important tokens in the first layer, what it grows by up to the last, and the four rates of ZDC's Eq. 5, each
 * the fraction removed of the elements of one pair at one level. */
typedef enum {
    KVD_SET_G,
    KVD_SET_RISE,
    KVD_SET_P_QK,
    KVD_SET_P_V,
    KVD_SET_P_U_QK,
    KVD_SET_P_U_V,
    KVD_N_SET
} kvd_set;
extern const char *const kvd_set_name[KVD_N_SET]; /* "g", "rise", "p_qk", "p_v", "p_u_qk", "p_u_v" */

typedef struct {
    double loss;           /* Q_d: perplexity over that of the uncompressed model, less 1 */
    double share;          /* bytes as counted over those of an uncompressed 16-bit cache */
    double set[KVD_N_SET]; /* rates as the widths came to, not as they were asked for */
} kvd_tried;

typedef struct {
    kvd_model_info model;
    char label[64], method[64], rule[16];
    char rest[256];   /* settings that all rows have in common, "importance.overlap=0.95,importance.mean=0" */
    kvd_pair pair[2]; /* of the dims method */
    size_t n;
    kvd_tried *tried; /* [n] */
} kvd_sweep;

/*
 * Reads rows of methods that lower tokens by importance; others are passed over. Fails on a file that is no accuracy file, that has no
 * such row (or was made before rows said p of each pair), no row of the uncompressed model, and where rows differ in more than the setting.
 */
int kvd_sweep_read(kvd_sweep *s, const char *path, kvd_err *err);
void kvd_sweep_release(kvd_sweep *s);

/*
 * The Oracle: of every loss that some setting stays within, the one with the smallest cache, so the tried settings that no other one
 * undercuts in bytes without losing more. By rising share and falling loss into best [n]; returns how many. Settings that lose nothing,
 * loss <= 0, count as 0: the cheapest of them ends the list.
 */
size_t kvd_sweep_oracle(const kvd_tried *tried, size_t n, kvd_tried *best);

#endif
