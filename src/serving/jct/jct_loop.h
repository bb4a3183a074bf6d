/* Runs requests through the batcher and an engine in real time. */
#ifndef KVD_SERVING_JCT_JCT_LOOP_H
#define KVD_SERVING_JCT_JCT_LOOP_H

#include "engine/engine.h"
#include "serving/energy.h"
#include "serving/jct/jct_rows.h"
#include "serving/jct/jct_trace.h"

/* Settings of runs in real time; all pointers are borrowed. */
typedef struct {
    kvd_engine *engine;
    /* Limits of the batcher: those of the engine, or lower ones. */
    kvd_batching_limits limits;
    size_t vocab;
    /* Seed of the random token ids of prompts. */
    uint64_t seed;
    const kvd_energy *energy;
    kvd_jct_trace *trace; /* NULL means none */
} kvd_jct_loop;

/*
 * Measured times of n requests, in seconds from the start. The gaps between the tokens of request r
 * are gap[gap_at[r]] .. gap[gap_at[r + 1] - 1].
 */
typedef struct {
    kvd_jct_run run;
    size_t n;
    double *first, *last; /* [n] */
    /* [n]: times that the request was preempted, and tokens that it computed again */
    size_t *preempted, *recomputed;
    size_t *gap_at; /* [n + 1] */
    double *gap;    /* [sum of output - 1] */
} kvd_jct_served;

/*
 * Runs the requests until each has all its tokens; a produced token is the next input. Requests
 * arrive at their arrival times. If no request runs, the loop sleeps until the next arrival; this
 * time is not counted. Fails if the batcher or the engine refuses a request, and if the user
 * interrupts.
 */
int kvd_jct_serve(const kvd_jct_loop *l, const kvd_requests *requests, kvd_jct_served *out,
                  kvd_err *err);
void kvd_jct_served_release(kvd_jct_served *s);

/*
 * Returns the random token id at position p of prompt r; it is the same in every run with this
 * seed.
 */
uint32_t kvd_jct_id(uint64_t seed, size_t r, size_t p, size_t vocab);

double kvd_jct_now(void);

#endif
