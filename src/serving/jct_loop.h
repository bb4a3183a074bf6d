/* Requests through the batcher and an engine, on the clock of the wall. */
#ifndef KVD_SERVING_JCT_LOOP_H
#define KVD_SERVING_JCT_LOOP_H

#include "serving/energy.h"
#include "serving/engine.h"
#include "serving/jct_file.h"
#include "serving/jct_trace.h"

/* Everything is borrowed. */
typedef struct {
    kvd_engine *engine;
    kvd_batching_limits limits; /* of the batcher: those of the engine or narrower */
    size_t vocab;
    uint64_t seed; /* of the ids of prompts, which are random */
    const kvd_energy *energy;
    kvd_jct_trace *trace; /* NULL: none */
} kvd_jct_loop;

/* What came of n requests. Seconds from the start; gaps of request r are gap[gap_at[r] .. gap_at[r + 1] - 1]. */
typedef struct {
    kvd_jct_run run;
    size_t n;
    double *first, *last; /* [n]                 */
    size_t *gap_at;       /* [n + 1]             */
    double *gap;          /* [sum of output - 1] */
} kvd_jct_served;

/*
 * Serves them until all have their tokens, which the model chooses itself. Requests arrive on time; between the last token of some and the next
 * arrival the loop sleeps, and that time is nobody's. Fails on what the batcher or the engine refuses, and when the user interrupts.
 */
int kvd_jct_serve(const kvd_jct_loop *l, const kvd_requests *requests, kvd_jct_served *out, kvd_err *err);
void kvd_jct_served_release(kvd_jct_served *s);

/* Id of position p of prompt r: the same in every run. */
uint32_t kvd_jct_id(uint64_t seed, size_t r, size_t p, size_t vocab);

double kvd_jct_now(void);

#endif
