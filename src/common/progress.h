/*
 * Prints the progress of a long loop on stderr: a bar with rate and remaining time on a terminal,
 * one line every few seconds otherwise, nothing when quiet.
 */
#ifndef KVD_COMMON_PROGRESS_H
#define KVD_COMMON_PROGRESS_H

#include <stdbool.h>

typedef struct {
    const char *what; /* name of the work in progress: "collect" */
    const char *unit; /* unit in which the work is counted: "tokens" */
    /* Amount of work in all and done so far, in `unit`; `total` is 0 if unknown. */
    double total, done;
    double started, shown;
    bool quiet, terminal;
} kvd_progress;

void kvd_progress_start(kvd_progress *p, const char *what, const char *unit, double total,
                        bool quiet);
/* Updates the progress display. `done` is the amount of work done so far, not an increment. */
void kvd_progress_step(kvd_progress *p, double done);
void kvd_progress_end(kvd_progress *p);

#endif
