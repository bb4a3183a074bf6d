/* Runs requests on an engine in real time and measures job completion times. */
#ifndef KVD_SERVING_JCT_JCT_LOOP_H
#define KVD_SERVING_JCT_JCT_LOOP_H

#include "engine/engine.h"
#include "serving/energy.h"
#include "serving/jct/jct_rows.h"
#include "serving/jct/jct_trace.h"

/* engine and options with which requests are run; the struct owns none of the pointers */
typedef struct {
    kvd_engine *engine;
    /* limits on the requests and tokens of a batch, at most those of the engine */
    kvd_batching_limits limits;
    size_t vocab;
    uint64_t seed;
    const kvd_energy *energy;
    kvd_jct_trace *trace; /* timeline file, or NULL */
} kvd_jct_loop;

/* Times of n served requests, in seconds from the start of the run. The gaps between tokens of
 * request r begin at gap[gap_at[r]]. */
typedef struct {
    kvd_jct_run run;
    size_t n;
    double *first, *last; /* times of each request's first and last token, [n] */
    /* [n] preempted: how often each request was preempted; recomputed: how many of its tokens had
     * to be computed again */
    size_t *preempted, *recomputed;
    size_t *gap_at; /* index in `gap` of each request's first gap, [n + 1] */
    /* seconds between successive output tokens; a request has (output tokens - 1) such gaps */
    double *gap;
} kvd_jct_served;

/* Runs requests on the engine in real time. Fails if a request can never fit into the cache, or if
 * the user interrupts. */
int kvd_jct_serve(const kvd_jct_loop *l, const kvd_requests *requests, kvd_jct_served *out,
                  kvd_err *err);
void kvd_jct_served_release(kvd_jct_served *s);

/* Returns a pseudo-random token id, below `vocab`, for position p of the prompt of request r. */
uint32_t kvd_jct_id(uint64_t seed, size_t r, size_t p, size_t vocab);

double kvd_jct_now(void);

/* Runs `batch` requests of equal lengths that arrive together, but computes only `steps` of their
 * decode steps. Extrapolates the step times in out->run to all decode steps.
 *
 * Requires room for all requests in the cache. The engine must be able to compute a decode step
 * without computing the steps before it (facts.anywhere). */
int kvd_jct_serve_sampled(const kvd_jct_loop *l, size_t batch, size_t input, size_t output,
                          size_t steps, kvd_jct_served *out, kvd_err *err);

#endif
