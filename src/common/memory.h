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

/*
 * Returns nine tenths of the memory that is free: the least of MemAvailable, the address space
 * limit (RLIMIT_AS) and the limits of control groups.
 */
kvd_memory_left kvd_memory_available(void);

/* Returns true if the peak use of address space was within 32 MB of RLIMIT_AS. */
bool kvd_memory_was_short(void);

/*
 * Returns the bytes left in the control groups that the file `list` (/proc/self/cgroup) names, or
 * INFINITY.
 */
double kvd_memory_cgroup_left(const char *list, const char *root);

typedef struct {
    const char *what; /* purpose of the memory, such as "weights" */
    double bytes;
} kvd_memory_part;

/*
 * Fails if the sum of the parts of a run's memory exceeds kvd_memory_available. `advice` names
 * options that lower it.
 */
int kvd_memory_check(const kvd_memory_part *part, size_t n, const char *advice, kvd_err *err);

/* List of zeroed allocations that are freed together. Begins as {0}. */
typedef struct {
    struct kvd_pool_block *first;
    unsigned long long bytes;
    bool failed;
} kvd_pool;

/*
 * Returns zeroed memory that kvd_pool_free frees, or NULL if memory is short. After a NULL,
 * kvd_pool_check fails.
 */
void *kvd_pool_new(kvd_pool *p, size_t bytes);
int kvd_pool_check(const kvd_pool *p, const char *what, kvd_err *err);
void kvd_pool_free(kvd_pool *p);

/*
 * kvd_pool_open returns a zeroed structure whose first member is the kvd_pool that holds it, or
 * NULL. kvd_pool_close frees it with the pool. `self` must not be NULL.
 */
void *kvd_pool_open(size_t bytes);
void kvd_pool_close(void *self);
/*
 * Stores the structure `opened` in *self and returns 0. If `failed`, closes it instead and returns
 * -1.
 */
int kvd_pool_give(void *opened, bool failed, void **self);

#endif
