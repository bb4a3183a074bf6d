/* Writes the iterations of kvdim-jct to a timeline file for the viewers Perfetto and
 * chrome://tracing. */
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

/* Creates the timeline file. If this function is never called, functions that add to the timeline
 * do nothing. */
int kvd_jct_trace_open(kvd_jct_trace *t, const char *path, kvd_err *err);
int kvd_jct_trace_close(kvd_jct_trace *t, kvd_err *err);
/* Closes the timeline file and removes it if it is incomplete. May be called at any time. */
void kvd_jct_trace_release(kvd_jct_trace *t);

/* Begins a job (a measured batch or request trace). Iterations added later belong to it. */
void kvd_jct_trace_job(kvd_jct_trace *t, const char *name);
/* Adds an iteration to the timeline. `begin`: clock reading at its start, in seconds. */
void kvd_jct_trace_iteration(kvd_jct_trace *t, const kvd_iteration *it, double begin,
                             const kvd_phase_times *times);
void kvd_jct_trace_request(kvd_jct_trace *t, size_t request, double arrival, double first,
                           double last);

#endif
