/* Compares the host memory that a run needs with the available memory. */
#ifndef KVD_COMMON_MEMORY_H
#define KVD_COMMON_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"

typedef struct {
    double bytes;
    /* Name of the limit that decides, for messages: "free memory of the machine". */
    const char *limit;
} kvd_memory_left;

/*
 * Returns nine tenths of the memory that this process may still allocate. This memory is the least
 * of MemAvailable and what is left under RLIMIT_AS and under the limits of control groups.
 */
kvd_memory_left kvd_memory_available(void);

/* Returns true if the peak use of address space was within 32 MB of RLIMIT_AS. */
bool kvd_memory_was_short(void);

/*
 * Returns the bytes left under the limits of the process's control groups; INFINITY without a
 * limit. `list` is a file like /proc/self/cgroup, `root` a folder like /sys/fs/cgroup.
 */
double kvd_memory_cgroup_left(const char *list, const char *root);

typedef struct {
    const char *what; /* purpose of the memory, such as "weights" */
    double bytes;
} kvd_memory_part;

/*
 * Fails if the parts together exceed kvd_memory_available. `advice` names options that lower the
 * need.
 */
int kvd_memory_check(const kvd_memory_part *part, size_t n, const char *advice, kvd_err *err);

#endif
