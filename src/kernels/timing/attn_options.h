/* Parses the command line of kvdim-attn. */
#ifndef KVD_KERNELS_TIMING_ATTN_OPTIONS_H
#define KVD_KERNELS_TIMING_ATTN_OPTIONS_H

#include "common/options.h"
#include "formats/kernels.h"
#include "formats/rates.h"
#include "kernels/timing/bench.h"
#include "kernels/timing/impl.h"
#include "kernels/timing/problem.h"

typedef struct {
    char name[KVD_WIDTHS_NAME];
    kvd_attn_heads heads;
} kvd_width_list;

/*
 * Functions that set the widths (kept dimensions of each head) of a benchmark case. The caller sets
 * the head counts and d_head. If a list has fewer widths than there are KV heads, it is repeated.
 * More widths than KV heads are an error; from a file of kept widths (rates.h5) the first ones are
 * used.
 */

/*
 * Sets the widths and the name from `text`, which has one of three forms: "64" or "64:48"
 * (d_qk:d_v), a comma-separated list of these with one item per KV head, or the name of a CSV file
 * with two columns, d_qk and d_v (a first row with these two words is skipped). "FILE.csv:NAME"
 * reads the rows of a file of three columns whose first field is NAME. Widths must be within 1 ..
 * d_head. The name of the list is the text, NAME, or the name of the file without folder and
 * suffix. Returns 0, or -1 and fills *err.
 */
int kvd_width_list_parse(kvd_width_list *list, const char *option, const char *text, kvd_err *err);

/*
 * Returns the path of the file that `text` names, or NULL if `text` gives numbers or no memory is
 * left. The caller frees it.
 */
char *kvd_width_list_path(const char *text);

/*
 * Sets the widths to those (rounded up to 16, kept16) of one removal rate p in a file of kept
 * widths (rates.h5). The heads of the file are taken KV head after KV head, layer after layer,
 * starting at `layer` and wrapping around after the last layer, until n_kv_heads heads are set.
 * d_head must be that of the file. The name contains the file and p. Returns 0, or -1 and fills
 * *err.
 */
int kvd_width_list_rates(kvd_width_list *list, const char *path, const kvd_rates *rates,
                         size_t point, size_t layer, kvd_err *err);

/*
 * Sets *point to the index of the entry of a rates file whose overall p (fraction of removed
 * dimensions) is nearest to `p`. Returns 0. Returns -1 and fills *err if the difference is above
 * 0.01.
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
    double *overall_p; /* [n_overall_p], allocated; NULL: every p of the rates file */
    size_t n_overall_p, layer;
    const char *dims[KVD_ATTN_DIMS];
    size_t n_dims;
    bool phase[KVD_N_ATTN_PHASES];
    const kvd_impl *impl[KVD_ATTN_IMPLS];
    int n_impls; /* 0: the implementations are chosen by the device */
    bool scheduler[KVD_BY_ITSELF];
    bool dtype[3];
    bool dtype_given, scheduler_given;
    /* Allocated; every combination of the two becomes an entry of `size`. */
    size_t *batch, *seq_len;
    size_t n_batches, n_seq_lens;
    kvd_attn_size size[KVD_ATTN_SIZES];
    int n_sizes;
    kvd_lengths lengths;
    size_t n_heads, n_kv_heads, d_head, window;
    bool d_head_given;
    kvd_bench_plan plan;
    kvd_check_mode check;
    bool sharp, cold, hot;
} kvd_attn_options;

/*
 * Reads the command line of kvdim-attn into *cfg, which the caller has set to zero. If the usage is
 * wrong, prints the error and exits with status 2.
 */
void kvd_attn_parse(int argc, char **argv, kvd_attn_options *cfg);
void kvd_attn_options_release(kvd_attn_options *cfg);

/*
 * Measurements of one implementation in one case of kvdim-attn: a row of a kvdim/kernels file,
 * which is also a line of the table on stdout.
 */

typedef struct {
    int number; /* number of the benchmark case, from 0 */
    const kvd_problem *problem;
    const kvd_impl *impl;
    kvd_scheduler scheduler;
    const kvd_bench_plan *plan;
    const kvd_bench_rival *rival;
    const kvd_bench_stats *stats;
    const kvd_floors *floors;
    const kvd_row_error *error;
    const char *engine;
    double plan_us;  /* median planning time per layer in us; NaN if there is nothing to plan */
    int plan_layers; /* number of layers planned in one call */
    double busy_max_us, busy_mean_us, imbalance; /* busy times of the CTAs; NaN if not measured */
    /*
     * Time of `cudnn` in the same case divided by this implementation's time; NaN if `cudnn` was
     * not timed.
     */
    double speedup;
    bool ok; /* true if the error is within the tolerance or was not checked */
} kvd_kernels_row;

/*
 * Adds a copy of *row and of its time samples to a table of kvd_kernels_rows. Returns 0, or -1 and
 * fills *err.
 */
int kvd_kernels_add(kvd_rows *r, const kvd_kernels_row *row, kvd_err *err);

/* Heading of the result table on stdout, and the function that formats one line per row. */
enum { KVD_KERNELS_LINE = 256 };
extern const char kvd_kernels_heading[];
const char *kvd_kernels_line(const kvd_rows *r, size_t row, char line[KVD_KERNELS_LINE]);

enum { KVD_ATTN_ENTRIES = 64, KVD_ATTN_SKIPPED = 256 };

/* One implementation of attention, with one of its schedulers. */
typedef struct {
    const kvd_impl *impl;
    kvd_scheduler scheduler;
} kvd_attn_entry;

typedef struct {
    int number; /* number of the benchmark case, from 0 */
    const kvd_problem *problem;
    const kvd_attn_entry *entry; /* [n] implementations to time */
    int n;
    const kvd_bench_plan *plan;
    kvd_check_mode check;
    const kvd_rate_ceilings *cpu, *gpu;
} kvd_attn_case;

/*
 * Times one benchmark case and adds one row per implementation to *out. If an implementation does
 * not support the case, or if memory or a library is missing, it is left out and `skipped` gets one
 * line that says why. Adds to *n_wrong the number of rows whose error is above the tolerance.
 *
 * Returns 0. Returns -1 and fills *err if a launch fails or the user interrupts; no row of the case
 * is added then.
 */
int kvd_attn_case_run(const kvd_attn_case *c, kvd_bench *bench, kvd_rows *out,
                      void (*skipped)(void *ctx, const char *line), void *ctx, size_t *n_wrong,
                      kvd_err *err);

#endif
