/* The runs of a sweep, method by method, and its rows on disk after every one. */
#ifndef KVD_SERVING_JCT_SWEEP_H
#define KVD_SERVING_JCT_SWEEP_H

#include "common/progress.h"
#include "serving/jct_loop.h"
#include "serving/jct_methods.h"

typedef struct {
    kvd_jct_options *cfg;
    kvd_run run;
    kvd_checkpoint *checkpoint;
    const kvd_config *config;
    kvd_model_info info;
    char gpu[256]; /* empty: the CPU runs the model */
    kvd_jct_methods methods;
    kvd_requests requests; /* of --requests */
    size_t longest_input, max_len, max_batch, max_tokens;
    kvd_energy energy;
    kvd_jct_trace trace;
    kvd_jct out;
    char *description; /* what a resumed run must have in common */
    char *skipped;     /* lines                                  */
    size_t points, done, left_out, printed;
    size_t saved; /* of done, those that stand in the file */
    kvd_progress progress;
} kvd_jct_sweep;

/* Runs what is not among the rows yet. What does not fit is said on stderr and left out; the first other failure ends the sweep. */
int kvd_jct_sweep_run(kvd_jct_sweep *s, kvd_err *err);

#endif
