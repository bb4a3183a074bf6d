/*
 * Compares the measured times of requests that kvdim-jct served with a simulation of the same
 * requests.
 */
#ifndef KVD_SERVING_SIMULATE_REPLAY_H
#define KVD_SERVING_SIMULATE_REPLAY_H

#include "serving/simulate/serve_rows.h"

typedef struct {
    kvd_requests requests; /* sorted by arrival */
    /* Measured time to the first token and to the last token, in seconds, [requests.n]. */
    double *ttft, *jct;
    /*
     * Limits of the engine that served the requests. max_batch and max_tokens are 0 if the file
     * does not have them.
     */
    kvd_batching_limits limits;
    int gpus;
    char engine[256];
} kvd_replay;

/*
 * Reads the requests of one method from a complete file of kvdim-jct, measured on `gpus` GPUs (-1
 * means any number). Returns 1 if there are none. Fails if result rows differ in the chunk of
 * prompts (--chunk), the number of GPUs or the cache size, or have invalid times or lengths.
 */
int kvd_replay_load(kvd_replay *r, const char *path, const char *method, int gpus, kvd_err *err);
void kvd_replay_release(kvd_replay *r);

enum { KVD_REPLAY_COMPARISONS = 6 };
/*
 * Compares measured and simulated times: the mean and 90 % quantile of time to the first token,
 * mean time between tokens, and JCT. Fails if the simulator refuses a request that was served.
 */
int kvd_replay_compare(const kvd_replay *r, const kvd_serve_setting *s, kvd_serve_comparison *c,
                       kvd_err *err);

#endif
