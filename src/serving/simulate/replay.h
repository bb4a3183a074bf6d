/* Compares the measured times of served requests with simulated times of the same requests. */
#ifndef KVD_SERVING_SIMULATE_REPLAY_H
#define KVD_SERVING_SIMULATE_REPLAY_H

#include "serving/simulate/serve_rows.h"

typedef struct {
    kvd_requests requests; /* sorted by arrival */
    /* [requests.n] seconds from a request's arrival to its first token (ttft) and to its last token
     * (jct) */
    double *ttft, *jct;
    /* batching limits with which kvdim-jct served the requests; a limit that the file does not
     * record is 0 */
    kvd_batching_limits limits;
    int gpus;
    char engine[256];
} kvd_replay;

/* Reads requests that kvdim-jct served with `method` on `gpus` GPUs (-1: any number), and their
 * measured times. Returns 1 if the file has none. */
int kvd_replay_load(kvd_replay *r, const char *path, const char *method, int gpus, kvd_err *err);
void kvd_replay_release(kvd_replay *r);

enum { KVD_REPLAY_COMPARISONS = 6 };
/* Compares measured latencies of requests with simulated ones. Fails if a request can never fit
 * into the simulated cache. */
int kvd_replay_compare(const kvd_replay *r, const kvd_serve_setting *s, kvd_serve_comparison *c,
                       kvd_err *err);

#endif
