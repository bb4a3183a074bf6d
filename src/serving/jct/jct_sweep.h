/*
 * Runs a sweep of kvdim-jct: measures all jobs, iterations or requests, one method after another.
 * Rows are saved in OUT.h5.rows after every run; OUT.h5 is created when all rows exist.
 */
#ifndef KVD_SERVING_JCT_JCT_SWEEP_H
#define KVD_SERVING_JCT_JCT_SWEEP_H

#include "common/progress.h"
#include "serving/jct/jct_loop.h"
#include "serving/jct/jct_methods.h"

typedef struct {
    kvd_jct_options *cfg;
    kvd_run run;
    kvd_checkpoint *checkpoint;
    const kvd_config *config;
    kvd_model_info info;
    char gpu[256]; /* name of the GPU; "" if the CPU runs the model */
    kvd_jct_methods methods;
    kvd_requests requests; /* read from --requests */
    size_t longest_input, max_len, max_batch, max_tokens;
    kvd_energy energy;
    kvd_jct_trace trace;
    kvd_rows *out;
    kvd_h5 file;       /* OUT.h5.partial, open from the start to hold the lock */
    char *rows_path;   /* OUT.h5.rows */
    size_t n_before;   /* number of rows that --resume read */
    bool was_complete; /* true if these rows are from a complete OUT.h5 */
    char *description; /* text of the settings, which must be equal in a resumed run */
    char *skipped;     /* messages of points that were left out, one line each */
    size_t points, done, left_out, printed;
    /* Number of finished measurement points, and number of rows saved in OUT.h5.rows. */
    size_t saved, saved_rows;
    kvd_progress progress;
} kvd_jct_sweep;

/*
 * Runs the measurement points that have no row yet. Points that do not fit into the cache, and
 * those of a method whose engine cannot be opened, are reported on stderr and left out. The first
 * other failure ends the sweep.
 */
int kvd_jct_sweep_run(kvd_jct_sweep *s, kvd_err *err);

/*
 * Creates OUT.h5.partial. With --resume, also reads the rows of OUT.h5.rows or, if that file does
 * not exist, of OUT.h5. Without --resume, the rows that an interrupted run left are replaced when
 * the first new rows are saved, and a line on stderr says so.
 */
int kvd_jct_sweep_open(kvd_jct_sweep *s, kvd_err *err);

/*
 * Completes OUT.h5 and removes OUT.h5.rows. OUT.h5 does not change if the sweep has no row, or only
 * rows that a complete OUT.h5 already has.
 */
int kvd_jct_sweep_finish(kvd_jct_sweep *s, kvd_err *err);

/* Closes the files of the sweep and frees its memory; OUT.h5.rows is kept. */
void kvd_jct_sweep_close(kvd_jct_sweep *s);

#endif
