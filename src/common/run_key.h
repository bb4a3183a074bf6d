/*
 * Run key: text with all options and inputs that affect the results. An interrupted run is resumed
 * only if its key is the same.
 */
#ifndef KVD_COMMON_RUN_KEY_H
#define KVD_COMMON_RUN_KEY_H

#include <stddef.h>

#include "common/err.h"

/* Text of the key: one line "name=value\n" for each option or input. */
typedef struct {
    char text[2048];
    size_t used;
} kvd_run_key;

/* Adds a line to the key; control characters are replaced. Fails if the key is full. */
int kvd_run_key_add(kvd_run_key *k, kvd_err *err, const char *name, const char *fmt, ...)
    KVD_PRINTF(4, 5);

/*
 * Compares the earlier key `then`, which was read from the file `path`, with *now. Returns 0 if
 * they are equal. Otherwise returns -1 with the message "'path' <what>: name was X, is now Y" for
 * the first line that differs.
 */
int kvd_run_key_same(const char *path, const char *what, const char *then, const kvd_run_key *now,
                     kvd_err *err);

#endif
