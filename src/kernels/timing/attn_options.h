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

/* Kept dimensions may be given as a list with one entry per KV head. A shorter list is repeated; a
 * longer one is an error. */

/* Parses kept dimensions: "64", "64:48" (d_qk:d_v), a list of these, or a CSV file. */
int kvd_width_list_parse(kvd_width_list *list, const char *option, const char *text, kvd_err *err);

/* Returns the path FILE.csv in an option value such as "FILE.csv:NAME", or NULL if the value has no
 * path. The caller frees the path. */
char *kvd_width_list_path(const char *text);

/* Fills *list with the kept dimensions of each KV head in a kvdim/rates file, rounded up to
 * multiples of 16. Fails if d_head differs between *list and the file.
 *
 * - path, rates: name and contents of the file
 * - point: index of one of the file's sets of kept dimensions
 * - layer: first layer to read; reads the next layers too if *list has more KV heads */
int kvd_width_list_rates(kvd_width_list *list, const char *path, const kvd_rates *rates,
                         size_t point, size_t layer, kvd_err *err);

/* Finds the entry of a kvdim/rates file whose removed fraction of K and V is nearest to `p`. Fails
 * if the difference exceeds 0.01. */
int kvd_rates_point(const char *path, const kvd_rates *rates, double p, size_t *point,
                    kvd_err *err);

enum { KVD_ATTN_DIMS = 64, KVD_ATTN_IMPLS = 16, KVD_ATTN_SIZES = 256 };

typedef struct {
    size_t batch, seq_len;
} kvd_attn_size;

typedef struct {
    kvd_common_options common;
    const char *rates, *lengths_file;
    /* [n_overall_p] Fractions of K and V that are removed in the timed cases. NULL means all
     * fractions in file `rates`. */
    double *overall_p;
    size_t n_overall_p, layer;
    const char *dims[KVD_ATTN_DIMS];
    size_t n_dims;
    bool phase[KVD_N_ATTN_PHASES];
    const kvd_impl *impl[KVD_ATTN_IMPLS];
    int n_impls; /* number of implementations; 0 selects the defaults of the device */
    bool scheduler[KVD_BY_ITSELF];
    bool dtype[3];
    bool dtype_given, scheduler_given;
    /* Numbers of requests per batch, and sequence lengths in tokens. Every combination is timed. */
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

/* Parses the command line into *cfg, which must be zeroed. Wrong usage exits with status 2. */
void kvd_attn_parse(int argc, char **argv, kvd_attn_options *cfg);
void kvd_attn_options_release(kvd_attn_options *cfg);

enum { KVD_KERNELS_LINE = 256 };
extern const char kvd_kernels_heading[];
const char *kvd_kernels_line(const kvd_rows *r, size_t row, char line[KVD_KERNELS_LINE]);

enum { KVD_ATTN_ENTRIES = 64, KVD_ATTN_SKIPPED = 256 };

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

/* Checks and times one case. Adds a row per implementation to *out, and the number of
 * implementations with wrong output to *n_wrong. */
int kvd_attn_case_run(const kvd_attn_case *c, kvd_bench *bench, kvd_rows *out,
                      void (*skipped)(void *ctx, const char *line), void *ctx, size_t *n_wrong,
                      kvd_err *err);

#endif
