/* Compares the host memory that a run needs with the available memory. */
#ifndef KVD_COMMON_MEMORY_H
#define KVD_COMMON_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"

typedef struct {
    double bytes;
    /* limit that decides, for messages: "free memory of the machine" */
    const char *limit;
} kvd_memory_left;

/* Returns nine tenths of the least of MemAvailable and what RLIMIT_AS and control groups leave. */
kvd_memory_left kvd_memory_available(void);

/* Returns true if the peak use of address space was within 32 MB of RLIMIT_AS. */
bool kvd_memory_was_short(void);

/*
 * Returns the bytes left in the process's control groups, or INFINITY. `list`: like
 * /proc/self/cgroup; `root`: like /sys/fs/cgroup.
 */
double kvd_memory_cgroup_left(const char *list, const char *root);

typedef struct {
    const char *what; /* such as "weights" */
    double bytes;
} kvd_memory_part;

/*
 * Fails if the parts together exceed kvd_memory_available. `advice` names options that lower the
 * need.
 */
int kvd_memory_check(const kvd_memory_part *part, size_t n, const char *advice, kvd_err *err);

#endif
