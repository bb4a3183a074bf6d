/* Text of all options and inputs that affect results. Resuming a run requires an equal text. */
#ifndef KVD_COMMON_RUN_KEY_H
#define KVD_COMMON_RUN_KEY_H

#include <stddef.h>

#include "common/err.h"

/* identity of a run, as text: a line "name=value" for each option or input file that affects the
 * results */
typedef struct {
    char text[2048];
    size_t used;
} kvd_run_key;

/* Adds a line "name=value" to *k. Fails if its text is full. */
int kvd_run_key_add(kvd_run_key *k, kvd_err *err, const char *name, const char *fmt, ...)
    KVD_PRINTF(4, 5);

/* Fails unless `then`, the options and inputs recorded in file `path`, equals *now. The message
 * names the first difference. */
int kvd_run_key_same(const char *path, const char *what, const char *then, const kvd_run_key *now,
                     kvd_err *err);
/* Fails unless `then`, the options and inputs of an unfinished run saved in `path`, equals *now.
 * The error message names the first difference and says what to do. */
int kvd_run_key_resume(const char *path, const char *then, const kvd_run_key *now, kvd_err *err);

#endif
