/*
 * A result file appears whole or not at all. It is written as NAME.partial,
 * under a lock that keeps a second program away from the same NAME, then
 * flushed to disk and renamed over NAME.
 */
#ifndef KVD_COMMON_OUTPUT_H
#define KVD_COMMON_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"

typedef struct {
    char *path;    /* NAME                                                */
    char *partial; /* NAME.partial, in the same folder                    */
    char *lock;    /* NAME.lock, exists while a program writes NAME       */
    int lock_fd;   /* -1 when not held                                    */
} kvd_output;

/*
 * Takes the lock on `path`; fails at once, naming the path, when another
 * process holds it, when the folder is missing or when `path` is a folder.
 * Does not touch NAME.partial.
 */
int kvd_output_begin(kvd_output *out, const char *path, kvd_err *err);

/* fsyncs NAME.partial, renames it to NAME, fsyncs the folder, drops the lock. */
int kvd_output_commit(kvd_output *out, kvd_err *err);

/* Drops the lock; removes NAME.partial unless `keep_partial`. Safe on a zeroed struct. */
void kvd_output_release(kvd_output *out, bool keep_partial);

/* Writes text to `path` through a kvd_output, whole or not at all. */
int kvd_output_text(const char *path, const char *text, size_t len, kvd_err *err);

/* mkdir -p; 0 also when it is there already. */
int kvd_make_folder(const char *path, kvd_err *err);

#endif
