/* A replay of a trace that kvdim-jct measured (rows of kind "request"), and what the simulator says of the
 * same requests. */
#ifndef KVD_SERVING_REPLAY_H
#define KVD_SERVING_REPLAY_H

#include "serving/serve_file.h"

typedef struct {
    kvd_requests requests;      /* by arrival */
    double *ttft, *jct;         /* [requests.n] seconds, measured */
    kvd_batching_limits limits; /* of the engine; max_batch and max_tokens 0 where the file does not say */
    int gpus;
    char engine[256];
} kvd_replay;

/*
 * The rows of one method (on `gpus` GPUs, -1: all rows) of a complete jct file. 1: it has none. Fails when
 * rows differ in chunk, GPUs or the size of the cache, and on values that are no times or lengths.
 */
int kvd_replay_load(kvd_replay *r, const char *path, const char *method, int gpus, kvd_err *err);
void kvd_replay_release(kvd_replay *r);

enum { KVD_REPLAY_COMPARISONS = 6 };
/*
 * Means and p90 over requests of the time to the first token, of the mean time between tokens (requests of
 * two tokens or more) and of the JCT. The limits are those of s. Fails when the simulator refuses a
 * request that was served.
 */
int kvd_replay_compare(const kvd_replay *r, const kvd_serve_setting *s, kvd_serve_comparison *c,
                       kvd_err *err);

#endif
