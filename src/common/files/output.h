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
    char *path;    /* path of the final file, NAME */
    char *partial; /* path of the file while it is written, NAME.partial in the same folder */
    char *lock;    /* path of the lock file, NAME.lock, which exists while a program writes NAME */
    int lock_fd;   /* file descriptor of the lock file; -1 when the lock is not held */
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
 * Creates an empty file `path` for writing; kvd_output_check_derived must accept the name. First
 * removes the file that a killed program left there. Never opens a file that another program
 * creates meanwhile. On failure returns NULL and fills *err. kvd_output_clear only checks and
 * removes.
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
 * Output of a run that the user named with an option. The list holds the endings of further files
 * that the run keeps next to `path`, up to a NULL; a NULL list means none. NAME.partial and
 * NAME.lock, which every output has, are not listed.
 */
typedef struct {
    const char *option; /* option with which the user named the output, such as "--moments" */
    const char *path;   /* path of the output; NULL if the option was not given */
    const char *const *beside;
} kvd_output_name;

/*
 * Fails if two outputs of one run would write to one file. This includes NAME.partial, NAME.lock
 * and the further files in the list. The message names both outputs. Names are compared after
 * links and folders have been resolved.
 */
int kvd_output_distinct(const kvd_output_name *name, size_t n, kvd_err *err);

/* Writes `text` to the file `path` atomically: after a failure an earlier file is unchanged. */
int kvd_output_text(const char *path, const char *text, size_t len, kvd_err *err);

/* Creates a folder and its parents, like mkdir -p. Succeeds if it exists already. */
int kvd_make_folder(const char *path, kvd_err *err);

#endif
