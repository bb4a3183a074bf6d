/* Run key: all settings that affect the results. A run is resumed only with an equal key. */
#ifndef KVD_COMMON_RUN_KEY_H
#define KVD_COMMON_RUN_KEY_H

#include <stddef.h>

#include "common/err.h"

/* Lines "name=value\n" of all settings. */
typedef struct {
    char text[2048];
    size_t used;
} kvd_run_key;

/* Adds a line to the key, without control characters. Fails if the key is full. */
int kvd_run_key_add(kvd_run_key *k, kvd_err *err, const char *name, const char *fmt, ...)
    KVD_PRINTF(4, 5);

/*
 * Compares the key `then`, from file `path`, with *now. The message is "'path' <what>: name was X,
 * is now Y" for the first line that differs.
 */
int kvd_run_key_same(const char *path, const char *what, const char *then, const kvd_run_key *now,
                     kvd_err *err);

#endif
