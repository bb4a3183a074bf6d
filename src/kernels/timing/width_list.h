/* Where the widths of a case come from: numbers on the command line, a CSV file, or a rates file. */
#ifndef KVD_KERNELS_WIDTH_LIST_H
#define KVD_KERNELS_WIDTH_LIST_H

#include "formats/rates.h"
#include "kernels/timing/problem.h"

typedef struct {
    char name[KVD_WIDTHS_NAME];
    kvd_attn_heads heads;
} kvd_width_list;

/* Head counts and d_head are the caller's; widths are set by the functions below, and repeated when there are fewer than
 * KV heads. More widths than KV heads are an error; of a rates file the first ones are taken. */

/*
 * text is "64" or "64:48" (d_qk:d_v), a comma list of such, one per KV head, or the name of a CSV file of two columns, d_qk and
 * d_v (a first row of those two words is passed over). Widths lie within 1 .. d_head. The name is the text, or the file's name
 * without folder and ending.
 */
int kvd_width_list_parse(kvd_width_list *list, const char *option, const char *text, kvd_err *err);

/*
 * The padded widths (kept16) of a point: all heads of the file, layer after layer from `layer` on and round again at the
 * last, KV head after KV head; the first n_kv_heads of them. d_head must be that of the file. The name says file and p.
 */
int kvd_width_list_rates(kvd_width_list *list, const char *path, const kvd_rates *rates, size_t point,
                         size_t layer, kvd_err *err);

/* The point whose overall p is nearest, which must be within 0.01. */
int kvd_rates_point(const char *path, const kvd_rates *rates, double p, size_t *point, kvd_err *err);

/* File name without folder and ending, for people. */
void kvd_base_name(const char *path, char *name, size_t size);

#endif
