/* Parses the command line of kvdim-attn. */
#ifndef KVD_KERNELS_TIMING_ATTN_OPTIONS_H
#define KVD_KERNELS_TIMING_ATTN_OPTIONS_H

#include "common/options.h"
#include "formats/rates.h"
#include "kernels/timing/bench.h"
#include "kernels/timing/impl.h"
#include "kernels/timing/problem.h"
#include "kernels/timing/row_check.h"

/* Reads the widths of a case from the command line, a CSV file or a rates file. */

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

enum { KVD_ATTN_DIMS = 64, KVD_ATTN_IMPLS = 16, KVD_ATTN_SIZES = 256 };

typedef struct {
    size_t batch, seq_len;
} kvd_attn_size;

typedef struct {
    kvd_common_options common;
    const char *rates, *lengths_file;
    double *overall_p; /* [n_overall_p], allocated; NULL selects every point of the rates file */
    size_t n_overall_p, layer;
    const char *dims[KVD_ATTN_DIMS];
    size_t n_dims;
    bool phase[KVD_N_ATTN_PHASES];
    const kvd_impl *impl[KVD_ATTN_IMPLS];
    int n_impls; /* 0 means the implementations are chosen by device */
    bool scheduler[KVD_BY_ITSELF];
    bool dtype[3];
    bool dtype_given, scheduler_given;
    size_t *batch, *seq_len; /* allocated; every pair of them becomes an entry of `size` */
    size_t n_batches, n_seq_lens;
    kvd_attn_size size[KVD_ATTN_SIZES];
    int n_sizes;
    kvd_lengths lengths;
    size_t n_heads, n_kv_heads, d_head;
    bool d_head_given;
    kvd_bench_plan plan;
    kvd_check_mode check;
    bool sharp, cold, hot;
} kvd_attn_options;

/*
 * Reads argv into *cfg, which the caller has set to zero. If the usage is wrong, prints the error
 * and exits with status 2.
 */
void kvd_attn_parse(int argc, char **argv, kvd_attn_options *cfg);
/* Frees the allocated lists of *cfg. */
void kvd_attn_options_release(kvd_attn_options *cfg);

#endif
