/* Writes result files atomically: writes NAME.partial under a lock, then renames it to NAME. */
#ifndef KVD_COMMON_FILES_OUTPUT_H
#define KVD_COMMON_FILES_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "common/err.h"

typedef struct {
    char *path;
    char *partial; /* NAME.partial, in the folder of NAME. */
    char *lock;    /* NAME.lock, which exists while a program writes NAME. */
    int lock_fd;   /* File descriptor of the lock file; -1 when the lock is not held. */
    /* names of the files that an output folder may contain, ended by NULL; if this is NULL, any
     * file */
    const char *const *contents;
} kvd_output;

/* Takes the lock of an output file. Fails if another process holds the lock, or if `path` is not
 * writable. */
int kvd_output_begin(kvd_output *out, const char *path, kvd_err *err);

/* Fails if `path` exists and is not a regular file with one hard link. */
int kvd_output_check_derived(const char *path, kvd_err *err);

/* kvd_output_clear removes the file `path` if it exists. kvd_output_create does the same, then
 * creates the file and returns it open for writing, or NULL. Both fail if `path` is a link. */
FILE *kvd_output_create(const char *path, kvd_err *err);
int kvd_output_clear(const char *path, kvd_err *err);

/* Removes the output file `path`, its unfinished file (ending .partial) and its lock file (ending
 * .lock). Fails if another process holds the lock. */
int kvd_output_remove(const char *path, kvd_err *err);

/* Flushes the unfinished file NAME.partial to disk, renames it to NAME, and releases the lock on
 * NAME. */
int kvd_output_commit(kvd_output *out, kvd_err *err);

/* Releases the lock on output file NAME. If keep_partial is false, also removes the unfinished file
 * NAME.partial. *out may be all zeros. */
void kvd_output_release(kvd_output *out, bool keep_partial);

/* an output file of a program, and the names of further files that the program writes for it */
typedef struct {
    const char *option; /* option that names this output, such as "--moments" */
    const char *path;   /* NULL if the option was not given */
    /* list of endings, such as ".state": `path` with an ending names a further output file. The
     * list ends with NULL, or is NULL. */
    const char *const *beside;
} kvd_output_name;

/* Fails if two outputs would write the same file. */
int kvd_output_distinct(const kvd_output_name *name, size_t n, kvd_err *err);

/* Writes a file atomically. After a failure an earlier file is unchanged. */
int kvd_output_text(const char *path, const char *text, size_t len, kvd_err *err);

int kvd_make_folder(const char *path, kvd_err *err);

#endif
