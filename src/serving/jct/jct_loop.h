/* Runs requests on an engine in real time. */
#ifndef KVD_SERVING_JCT_JCT_LOOP_H
#define KVD_SERVING_JCT_JCT_LOOP_H

#include "engine/engine.h"
#include "serving/energy.h"
#include "serving/jct/jct_rows.h"
#include "serving/jct/jct_trace.h"

/* A model engine, and how it serves requests. All pointers are borrowed. */
typedef struct {
    kvd_engine *engine;
    /* Limits of batch size and cache pages: those of the engine, or lower ones. */
    kvd_batching_limits limits;
    size_t vocab;
    uint64_t seed;
    const kvd_energy *energy;
    kvd_jct_trace *trace; /* timeline file; NULL means none */
} kvd_jct_loop;

/*
 * Measured times of n requests, in seconds from the start. The gaps between the tokens of request r
 * are gap[gap_at[r]] .. gap[gap_at[r + 1] - 1].
 */
typedef struct {
    kvd_jct_run run;
    size_t n;
    double *first, *last; /* time of each request's first and last token, [n] */
    /* Number of preemptions of each request, and number of tokens that were computed again, [n]. */
    size_t *preempted, *recomputed;
    size_t *gap_at; /* index in `gap` of each request's first gap, [n + 1] */
    /* Seconds between successive tokens of a request, [sum over requests of output - 1]. */
    double *gap;
} kvd_jct_served;

/*
 * Runs the requests until each has all its output tokens. Requests enter at their arrival times;
 * time without running requests is not counted. Fails if the batcher or the engine refuses a
 * request, and if the user interrupts.
 */
int kvd_jct_serve(const kvd_jct_loop *l, const kvd_requests *requests, kvd_jct_served *out,
                  kvd_err *err);
void kvd_jct_served_release(kvd_jct_served *s);

/*
 * Returns the random token id at position p of the prompt of request r. It depends only on the
 * arguments.
 */
uint32_t kvd_jct_id(uint64_t seed, size_t r, size_t p, size_t vocab);

double kvd_jct_now(void);

#endif
