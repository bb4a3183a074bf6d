/* Writes iterations as a timeline for Perfetto and chrome://tracing. */
#ifndef KVD_SERVING_JCT_JCT_TRACE_H
#define KVD_SERVING_JCT_JCT_TRACE_H

#include <stdio.h>

#include "common/files/output.h"
#include "formats/phases.h"
#include "serving/batching.h"

typedef struct {
    kvd_output out;
    FILE *f;
    double zero; /* clock reading at the begin of the timeline, in seconds */
    int process; /* process number of the current job in the viewer */
    bool any;
} kvd_jct_trace;

/* Creates the timeline file. While no file is open, t->f is NULL and all functions do nothing. */
int kvd_jct_trace_open(kvd_jct_trace *t, const char *path, kvd_err *err);
int kvd_jct_trace_close(kvd_jct_trace *t, kvd_err *err);
/* Closes and removes an incomplete file; safe at any time. */
void kvd_jct_trace_release(kvd_jct_trace *t);

/* Begins a job (a measured batch or request trace), to which later iterations belong. */
void kvd_jct_trace_job(kvd_jct_trace *t, const char *name);
/* Adds an iteration that began at `begin` seconds. */
void kvd_jct_trace_iteration(kvd_jct_trace *t, const kvd_iteration *it, double begin,
                             const kvd_phase_times *times);
void kvd_jct_trace_request(kvd_jct_trace *t, size_t request, double arrival, double first,
                           double last);

#endif
