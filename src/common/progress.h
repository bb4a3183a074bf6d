/* Prints progress on stderr: a bar on a terminal, otherwise a line every few seconds. */
#ifndef KVD_COMMON_PROGRESS_H
#define KVD_COMMON_PROGRESS_H

#include <stdbool.h>

typedef struct {
    const char *what; /* name of the work, such as "collect" */
    const char *unit; /* unit of the work, such as "tokens" */
    /* total: amount of all work in `unit`, at least `done`; 0 if unknown. done: amount of finished
     * work. */
    double total, done;
    double started, shown;
    bool quiet, terminal;
} kvd_progress;

void kvd_progress_start(kvd_progress *p, const char *what, const char *unit, double total,
                        bool quiet);
/* Reports progress. `done` is the amount of work so far, not an increment. */
void kvd_progress_step(kvd_progress *p, double done);
void kvd_progress_end(kvd_progress *p);

#endif
