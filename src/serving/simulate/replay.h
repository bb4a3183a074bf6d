/*
 * Reads a measured replay: the requests of a trace that kvdim-jct served and their times (rows of
 * kind "request"). Compares it with the simulation of the same requests.
 */
#ifndef KVD_SERVING_SIMULATE_REPLAY_H
#define KVD_SERVING_SIMULATE_REPLAY_H

#include "serving/simulate/serve_rows.h"

typedef struct {
    kvd_requests requests; /* sorted by arrival */
    double *ttft, *jct;    /* [requests.n] seconds, measured */
    /*
     * Limits of the engine that served the replay; max_batch and max_tokens are 0 if the file does
     * not have them.
     */
    kvd_batching_limits limits;
    int gpus;
    char engine[256];
} kvd_replay;

/*
 * Reads the rows of one method's requests from a complete jct file, measured on `gpus` GPUs (-1
 * means all rows). Returns 1 if there are none. Fails if rows differ in chunk, GPUs or cache size,
 * and on values that are not valid times or lengths.
 */
int kvd_replay_load(kvd_replay *r, const char *path, const char *method, int gpus, kvd_err *err);
void kvd_replay_release(kvd_replay *r);

enum { KVD_REPLAY_COMPARISONS = 6 };
/*
 * Compares measured and simulated times, by mean and 90 % quantile over requests: time to the first
 * token, mean time between tokens (requests of two tokens or more) and JCT. Uses the limits of *s.
 * Fails if the simulator refuses a request that was served.
 */
int kvd_replay_compare(const kvd_replay *r, const kvd_serve_setting *s, kvd_serve_comparison *c,
                       kvd_err *err);

#endif
