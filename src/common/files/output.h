/*
 * Writes result files atomically: NAME.partial is written under a lock, flushed and renamed to
 * NAME.
 */
#ifndef KVD_COMMON_FILES_OUTPUT_H
#define KVD_COMMON_FILES_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "common/err.h"

typedef struct {
    /* The final file, NAME. */
    char *path;
    /* NAME.partial, in the folder of NAME. */
    char *partial;
    /* NAME.lock, which exists while a program writes NAME. */
    char *lock;
    /* File descriptor of the lock file; -1 when the lock is not held. */
    int lock_fd;
    /* Names that an output folder may contain, ended by NULL; a NULL pointer allows any files. */
    const char *const *contents;
} kvd_output;

/*
 * Takes the lock of the output `path`. Fails if another process holds the lock; if `path` is "-", a
 * folder, or not writable; if the folder is missing; if kvd_output_check_derived refuses
 * NAME.partial or NAME.lock. Does not change NAME.partial.
 */
int kvd_output_begin(kvd_output *out, const char *path, kvd_err *err);

/*
 * Fails if `path` exists and is not a regular file with one hard link: other users could put a link
 * there.
 */
int kvd_output_check_derived(const char *path, kvd_err *err);

/*
 * kvd_output_clear removes a file that a killed program left at `path`; kvd_output_create also
 * creates it anew, and never opens another program's file. Both fail if kvd_output_check_derived
 * does. On failure kvd_output_create returns NULL and fills *err.
 */
FILE *kvd_output_create(const char *path, kvd_err *err);
int kvd_output_clear(const char *path, kvd_err *err);

/*
 * Removes the file `path`, NAME.partial and NAME.lock, if they exist. Fails if another process
 * holds the lock.
 */
int kvd_output_remove(const char *path, kvd_err *err);

/* Flushes NAME.partial to disk, renames it to NAME and releases the lock. */
int kvd_output_commit(kvd_output *out, kvd_err *err);

/* Releases the lock, and removes NAME.partial unless `keep_partial`. Safe on a zeroed struct. */
void kvd_output_release(kvd_output *out, bool keep_partial);

/*
 * One output of a run. The last field lists the endings of further files, ended by NULL; it may be
 * NULL.
 */
typedef struct {
    const char *option; /* option that names this output, such as "--moments" */
    const char *path;   /* NULL if the option was not given */
    const char *const *beside;
} kvd_output_name;

/*
 * Fails if two outputs would write to one file, among `path`, path.partial, path.lock and `path`
 * with a listed ending. Symbolic links are resolved.
 */
int kvd_output_distinct(const kvd_output_name *name, size_t n, kvd_err *err);

/* Writes a file atomically: after a failure an earlier file is unchanged. */
int kvd_output_text(const char *path, const char *text, size_t len, kvd_err *err);

int kvd_make_folder(const char *path, kvd_err *err);

#endif
