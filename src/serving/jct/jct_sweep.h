/* Times prompts and decode steps for kvdim-jct, which reports job completion times. Appends each
 * measured time to OUT.h5.rows as soon as it is known, and writes OUT.h5 at the end. */
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
    kvd_jct_methods methods;
    kvd_requests requests;
    size_t longest_input, max_len, max_batch, max_tokens;
    kvd_energy energy;
    kvd_jct_trace trace;
    kvd_rows *out;
    kvd_h5 file;     /* OUT.h5.partial, open from the start to lock OUT.h5 */
    char *rows_path; /* path of OUT.h5.rows */
    size_t n_before;
    bool was_complete; /* true if earlier rows come from a complete OUT.h5 */
    /* text of all options that affect results; a resumed run must have the same text */
    char *description;
    char *skipped; /* messages about omitted measurements, one per line */
    size_t points, done, left_out, printed;
    /* number of finished measurements, and number of rows, that are saved in OUT.h5.rows */
    size_t saved, saved_rows;
    kvd_progress progress;
} kvd_jct_sweep;

/* Runs all measurements that have no row in the result file yet. Skips those that need more cache
 * than there is. */
int kvd_jct_sweep_run(kvd_jct_sweep *s, kvd_err *err);

/* Creates OUT.h5.partial, the unfinished output file. With --resume, first reads earlier results
 * from OUT.h5.rows or OUT.h5. */
int kvd_jct_sweep_open(kvd_jct_sweep *s, kvd_err *err);

/* Writes all results to OUT.h5 and then removes OUT.h5.rows, which holds the results of an
 * unfinished run. */
int kvd_jct_sweep_finish(kvd_jct_sweep *s, kvd_err *err);

/* Closes the output files. Keeps OUT.h5.rows, from which a run with --resume continues. */
void kvd_jct_sweep_close(kvd_jct_sweep *s);

#endif
