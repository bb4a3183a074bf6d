/* Reads the widths of a case from the command line, a CSV file or a rates file. */
#ifndef KVD_KERNELS_TIMING_WIDTH_LIST_H
#define KVD_KERNELS_TIMING_WIDTH_LIST_H

#include "formats/rates.h"
#include "kernels/timing/problem.h"

typedef struct {
    char name[KVD_WIDTHS_NAME];
    kvd_attn_heads heads;
} kvd_width_list;

/*
 * The caller sets the head counts and d_head; the functions below set the widths. If a list has
 * fewer widths than there are KV heads, it is repeated. More widths than KV heads are an error;
 * from a rates file the first ones are used.
 */

/*
 * Sets the widths and the name from `text`, which has one of three forms: "64" or "64:48"
 * (d_qk:d_v), a comma-separated list of these with one item per KV head, or the name of a CSV file
 * with two columns, d_qk and d_v (a first row with these two words is skipped). Widths must be
 * within 1 .. d_head. The name is the text, or the name of the file without folder and suffix.
 * Returns 0, or -1 and fills *err.
 */
int kvd_width_list_parse(kvd_width_list *list, const char *option, const char *text, kvd_err *err);

/*
 * Sets the widths to the padded widths (kept16) of a point of the rates file. The heads of the file
 * are taken KV head after KV head, layer after layer, starting at `layer` and wrapping around after
 * the last layer, until n_kv_heads heads are set. d_head must be that of the file. The name
 * contains the file and p. Returns 0, or -1 and fills *err.
 */
int kvd_width_list_rates(kvd_width_list *list, const char *path, const kvd_rates *rates,
                         size_t point, size_t layer, kvd_err *err);

/*
 * Sets *point to the point whose overall p is nearest to `p`. Returns 0. Returns -1 and fills *err
 * if the difference is above 0.01.
 */
int kvd_rates_point(const char *path, const kvd_rates *rates, double p, size_t *point,
                    kvd_err *err);

#endif
