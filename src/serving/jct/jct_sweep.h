/*
 * Runs a sweep of kvdim-jct: all jobs, iterations or requests, one method after another. Results
 * are saved in OUT.h5.rows after every run; OUT.h5 is created when all results exist.
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
    char gpu[256]; /* "" if the CPU runs the model */
    kvd_jct_methods methods;
    kvd_requests requests;
    size_t longest_input, max_len, max_batch, max_tokens;
    kvd_energy energy;
    kvd_jct_trace trace;
    kvd_rows *out;
    kvd_h5 file;     /* OUT.h5.partial, open from the start to hold the lock on OUT.h5 */
    char *rows_path; /* path of OUT.h5.rows */
    size_t n_before;
    bool was_complete; /* true if the rows of an earlier run are from a complete OUT.h5 */
    /* Text of all options of the sweep, which must be equal in a resumed run. */
    char *description;
    char *skipped; /* messages about measurements that were left out, one line each */
    size_t points, done, left_out, printed;
    /* Number of finished measurements, and number of result rows saved in OUT.h5.rows. */
    size_t saved, saved_rows;
    kvd_progress progress;
} kvd_jct_sweep;

/*
 * Runs the measurements that have no result yet. Measurements that do not fit into the cache are
 * reported on stderr and left out. A method whose engine cannot be opened is also left out. The
 * first failure of another kind ends the sweep.
 */
int kvd_jct_sweep_run(kvd_jct_sweep *s, kvd_err *err);

/*
 * Creates OUT.h5.partial. With --resume, also reads the results in OUT.h5.rows or, if that file
 * does not exist, in OUT.h5. Without --resume, the first new results replace the results of an
 * interrupted run, and a message on stderr says so.
 */
int kvd_jct_sweep_open(kvd_jct_sweep *s, kvd_err *err);

/* Completes OUT.h5 and removes OUT.h5.rows. OUT.h5 does not change if there are no new results. */
int kvd_jct_sweep_finish(kvd_jct_sweep *s, kvd_err *err);

/* Closes the files of the sweep. OUT.h5.rows is kept. */
void kvd_jct_sweep_close(kvd_jct_sweep *s);

#endif
