/* Compares the host memory that a run needs with the memory that it may take, before allocating. */
#ifndef KVD_COMMON_MEMORY_H
#define KVD_COMMON_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"

typedef struct {
    double bytes;
    /* Source of the limit on memory, for messages: "free memory of the machine". */
    const char *limit;
} kvd_memory_left;

/*
 * Returns nine tenths of the memory that this process may still allocate; libraries and page tables
 * get the rest. That memory is the least of MemAvailable in /proc/meminfo, the address space left
 * under RLIMIT_AS, and what is left under the memory limits of the control groups of the process.
 */
kvd_memory_left kvd_memory_available(void);

/*
 * Returns true if the address space of this process has come within 32 MB of its limit, RLIMIT_AS.
 */
bool kvd_memory_was_short(void);

/*
 * Returns the number of bytes left under the memory limits of the process's control groups;
 * INFINITY without a limit. `list` is a file like /proc/self/cgroup, `root` the folder where the
 * hierarchies are mounted, /sys/fs/cgroup. Page cache of the group counts as free. Versions 1 and 2
 * are known.
 */
double kvd_memory_cgroup_left(const char *list, const char *root);

typedef struct {
    const char *what; /* name of this part of the memory need: "weights" */
    double bytes;
} kvd_memory_part;

/*
 * Fails if the parts of a run's memory together are larger than kvd_memory_available. The message
 * names every part, the sum and what is available in GiB, and ends with `advice`: the options that
 * lower the need.
 */
int kvd_memory_check(const kvd_memory_part *part, size_t n, const char *advice, kvd_err *err);

#endif
