/* Compares the host memory that a run needs with the available memory. */
#ifndef KVD_COMMON_MEMORY_H
#define KVD_COMMON_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"

typedef struct {
    double bytes;
    const char *limit; /* limit that decides, such as "free memory of the machine" */
} kvd_memory_left;

/* Returns nine tenths of the free memory: the least of MemAvailable, RLIMIT_AS, control groups. */
kvd_memory_left kvd_memory_available(void);

/* Returns true if the peak use of address space was within 32 MB of RLIMIT_AS. */
bool kvd_memory_was_short(void);

/* Returns the bytes left in the control groups of `list` (/proc/self/cgroup), or INFINITY. */
double kvd_memory_cgroup_left(const char *list, const char *root);

typedef struct {
    const char *what; /* purpose of the memory, such as "weights" */
    double bytes;
} kvd_memory_part;

/* Fails if the parts exceed kvd_memory_available. `advice` names options that lower the need. */
int kvd_memory_check(const kvd_memory_part *part, size_t n, const char *advice, kvd_err *err);

#endif
