/* Runs requests on an engine in real time and measures job completion times. */
#ifndef KVD_SERVING_JCT_JCT_LOOP_H
#define KVD_SERVING_JCT_JCT_LOOP_H

#include "engine/engine.h"
#include "serving/energy.h"
#include "serving/jct/jct_rows.h"
#include "serving/jct/jct_trace.h"

/* engine and options of a run; all pointers are borrowed */
typedef struct {
    kvd_engine *engine;
    /* limits of the batch, at most those of the engine */
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
    /* [n] number of preemptions of each request, and of its tokens that were computed again */
    size_t *preempted, *recomputed;
    size_t *gap_at; /* index in `gap` of each request's first gap, [n + 1] */
    /* seconds between successive tokens of each request, which has (output tokens - 1) gaps */
    double *gap;
} kvd_jct_served;

/* Runs requests in real time. Fails on refused requests or an interrupt. */
int kvd_jct_serve(const kvd_jct_loop *l, const kvd_requests *requests, kvd_jct_served *out,
                  kvd_err *err);
void kvd_jct_served_release(kvd_jct_served *s);

/* Returns a pseudo-random token id for position p of prompt r. */
uint32_t kvd_jct_id(uint64_t seed, size_t r, size_t p, size_t vocab);

double kvd_jct_now(void);

/* Runs `batch` requests of equal lengths that arrive together, but only `steps` of their output - 1
 * decode steps.
 *
 * Step times in out->run are multiplied by (output - 1) / steps. Requires an engine that can step
 * without having processed earlier tokens (facts.anywhere), and room for all requests. */
int kvd_jct_serve_sampled(const kvd_jct_loop *l, size_t batch, size_t input, size_t output,
                          size_t steps, kvd_jct_served *out, kvd_err *err);

#endif
