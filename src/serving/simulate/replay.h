/* Compares measured times of served requests with their simulation. */
#ifndef KVD_SERVING_SIMULATE_REPLAY_H
#define KVD_SERVING_SIMULATE_REPLAY_H

#include "serving/simulate/serve_rows.h"

typedef struct {
    kvd_requests requests; /* sorted by arrival */
    /* [requests.n] seconds from arrival to first and last token */
    double *ttft, *jct;
    /* limits of the measured engine; 0 if not recorded */
    kvd_batching_limits limits;
    int gpus;
    char engine[256];
} kvd_replay;

/* Reads measured requests that kvdim-jct served with `method` on `gpus` GPUs (-1: any number).
 * Returns 1 if the file has none. */
int kvd_replay_load(kvd_replay *r, const char *path, const char *method, int gpus, kvd_err *err);
void kvd_replay_release(kvd_replay *r);

enum { KVD_REPLAY_COMPARISONS = 6 };
/* Compares measured and simulated latencies of requests. Fails if the simulator refuses one. */
int kvd_replay_compare(const kvd_replay *r, const kvd_serve_setting *s, kvd_serve_comparison *c,
                       kvd_err *err);

#endif
