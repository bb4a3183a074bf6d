/*
 * Writes result files atomically: a file NAME appears complete or not at all. It is written as
 * NAME.partial, under a lock that keeps a second program away from the same NAME, then flushed to
 * disk and renamed to NAME.
 */
#ifndef KVD_COMMON_FILES_OUTPUT_H
#define KVD_COMMON_FILES_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "common/err.h"

typedef struct {
    /* Path of the final file. The comments here call it NAME. */
    char *path;
    /* Path of the file while it is written: NAME.partial, in the same folder. */
    char *partial;
    /* Path of the lock file, NAME.lock, which exists while a program writes NAME. */
    char *lock;
    /* File descriptor of the lock file; -1 when the lock is not held. */
    int lock_fd;
    /*
     * Names that an output folder may hold, ended by NULL, as set by kvd_output_folder_renew. A
     * NULL list means any files.
     */
    const char *const *contents;
} kvd_output;

/*
 * Begins writing the output file `path`: takes its lock. Fails immediately, naming the path, if
 * another process holds the lock, if the folder is missing, if `path` is a folder, or if
 * kvd_output_check_derived refuses NAME.partial or NAME.lock. Does not change NAME.partial.
 */
int kvd_output_begin(kvd_output *out, const char *path, kvd_err *err);

/*
 * Fails if `path` exists and is not a regular file with a single hard link; the message says what
 * it is. Succeeds if nothing has that name. Names such as NAME.partial can be guessed, so other
 * users of the folder could put a link there and make a program overwrite another file.
 */
int kvd_output_check_derived(const char *path, kvd_err *err);

/*
 * kvd_output_clear removes the file that a killed program left at `path`; it fails if
 * kvd_output_check_derived refuses the name. kvd_output_create does the same and then creates an
 * empty file for writing. It never opens a file that another program creates meanwhile. On failure
 * it returns NULL and fills *err.
 */
FILE *kvd_output_create(const char *path, kvd_err *err);
int kvd_output_clear(const char *path, kvd_err *err);

/*
 * Completes an output: syncs NAME.partial, renames it to NAME, syncs the folder and releases the
 * lock.
 */
int kvd_output_commit(kvd_output *out, kvd_err *err);

/*
 * Releases the lock of an output, and removes NAME.partial unless `keep_partial`. Safe on a zeroed
 * struct.
 */
void kvd_output_release(kvd_output *out, bool keep_partial);

/*
 * Output of a run that the user named with an option. The last field is a list of the endings of
 * further files that the run keeps next to `path`. The list ends with NULL; a NULL list means none.
 * Every output also has path.partial and path.lock, which are not listed.
 */
typedef struct {
    const char *option; /* option with which the user named the output, such as "--moments" */
    const char *path;   /* path of the output; NULL if the option was not given */
    const char *const *beside;
} kvd_output_name;

/*
 * Fails if two of the n outputs of a run would write to one file. An output writes to its path, to
 * path.partial, to path.lock, and to its further files (path with each listed ending). The message
 * names both outputs. Names are compared after links and folders have been resolved.
 */
int kvd_output_distinct(const kvd_output_name *name, size_t n, kvd_err *err);

/* Writes `text` to the file `path` atomically: after a failure an earlier file is unchanged. */
int kvd_output_text(const char *path, const char *text, size_t len, kvd_err *err);

/* Creates a folder and its parents, like mkdir -p. Succeeds if it exists already. */
int kvd_make_folder(const char *path, kvd_err *err);

#endif
