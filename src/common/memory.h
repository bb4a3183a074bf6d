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

/* Returns nine tenths of the memory that this process can still allocate. */
kvd_memory_left kvd_memory_available(void);

/* Returns true if the peak use of address space was within 32 MB of RLIMIT_AS. */
bool kvd_memory_was_short(void);

/* Returns how many bytes the control groups of this process still allow it to allocate, or INFINITY
 * if they set no limit. `list`: file that names the groups, such as /proc/self/cgroup. `root`:
 * folder with their limits, such as /sys/fs/cgroup. */
double kvd_memory_cgroup_left(const char *list, const char *root);

typedef struct {
    const char *what; /* purpose of the memory, such as "weights" */
    double bytes;
} kvd_memory_part;

/* Fails if the parts of a run need more memory than is free. `advice`, a part of the message, names
 * options that reduce memory. */
int kvd_memory_check(const kvd_memory_part *part, size_t n, const char *advice, kvd_err *err);

/* list of zeroed allocations that are freed together; begins as {0} */
typedef struct {
    struct kvd_pool_block *first;
    unsigned long long bytes;
    bool failed;
} kvd_pool;

/* Returns zeroed memory that kvd_pool_free frees. If memory runs out, returns NULL, and
 * kvd_pool_check then fails. */
void *kvd_pool_new(kvd_pool *p, size_t bytes);
int kvd_pool_check(const kvd_pool *p, const char *what, kvd_err *err);
void kvd_pool_free(kvd_pool *p);

/* kvd_pool_open returns a zeroed object that begins with a kvd_pool, or NULL. kvd_pool_close frees
 * the object and all other memory of that pool. */
void *kvd_pool_open(size_t bytes);
void kvd_pool_close(void *self);
/* Stores `opened`, which kvd_pool_open returned, in *self and returns 0. If `failed` is true, frees
 * `opened` instead and returns -1. */
int kvd_pool_give(void *opened, bool failed, void **self);

#endif
