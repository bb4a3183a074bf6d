/*
 * A trace that Perfetto and chrome://tracing open: iterations as complete events with their parts below them, requests as asynchronous spans
 * from arrival to last token. The parts of an iteration are sums over layers and stand one after another in the order of kvd_phase: their lengths are
 * measured, their places are not.
 */
#ifndef KVD_SERVING_JCT_TRACE_H
#define KVD_SERVING_JCT_TRACE_H

#include <stdio.h>

#include "common/output.h"
#include "serving/batching.h"
#include "serving/phases.h"

typedef struct {
    kvd_output out;
    FILE *f;
    double zero; /* seconds of the clock at which the trace begins */
    int process; /* one a job */
    bool any;
} kvd_jct_trace;

/* f NULL and all functions do nothing until it is opened. */
int kvd_jct_trace_open(kvd_jct_trace *t, const char *path, kvd_err *err);
/* Completes the file. */
int kvd_jct_trace_close(kvd_jct_trace *t, kvd_err *err);
/* Leaves nothing; safe at any time. */
void kvd_jct_trace_release(kvd_jct_trace *t);

/* What follows belongs to a job of this name. */
void kvd_jct_trace_job(kvd_jct_trace *t, const char *name);
/* begin: seconds of the clock. */
void kvd_jct_trace_iteration(kvd_jct_trace *t, const kvd_iteration *it, double begin,
                             const kvd_phase_times *times);
void kvd_jct_trace_request(kvd_jct_trace *t, size_t request, double arrival, double first, double last);

#endif
