/*
 * Run key: text of all settings that affect the numbers of a run. Files of an interrupted run are
 * continued only by a run with an equal key.
 */
#ifndef KVD_COMMON_RUN_KEY_H
#define KVD_COMMON_RUN_KEY_H

#include <stddef.h>

#include "common/err.h"

/* Text of a run key: lines "name=value\n". Two runs with equal keys write equal datasets. */
typedef struct {
    char text[2048];
    size_t used;
} kvd_run_key;

/*
 * Adds a line "name=value" for one setting of the run to the run key. Control characters of the
 * value are replaced. Fails if the key is full.
 */
int kvd_run_key_add(kvd_run_key *k, kvd_err *err, const char *name, const char *fmt, ...)
    KVD_PRINTF(4, 5);

/*
 * Returns 0 if the run keys `then` (from file `path`) and *now are equal. Otherwise returns -1 with
 * the message "'path' <what>: name was X, is now Y" for the first line that differs.
 */
int kvd_run_key_same(const char *path, const char *what, const char *then, const kvd_run_key *now,
                     kvd_err *err);

#endif
