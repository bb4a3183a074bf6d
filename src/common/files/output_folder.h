/*
 * Writes a folder of files atomically: NAME.partial is filled under a lock, then renamed to NAME.
 */
#ifndef KVD_COMMON_FILES_OUTPUT_FOLDER_H
#define KVD_COMMON_FILES_OUTPUT_FOLDER_H

#include "common/files/output.h"

/*
 * Takes the lock of the folder `path` and creates an empty NAME.partial. Fails if another process
 * holds the lock, the parent is missing, `path` is a file or link, or `path` exists and `replace`
 * is false.
 */
int kvd_output_folder_begin(kvd_output *out, const char *path, bool replace, kvd_err *err);

/*
 * Takes the lock and creates NAME.partial, to be committed with `replace` true. `contents`
 * (NULL-ended, must outlive *out) lists the allowed names; subfolders end in '/'. A link NAME is
 * followed. Fails if an existing folder has an unlisted name.
 */
int kvd_output_folder_renew(kvd_output *out, const char *path, const char *const *contents,
                            kvd_err *err);

/*
 * Fails if the existing file `input` is `path` or in it, which replacing the folder would remove.
 * Links are followed.
 */
int kvd_output_folder_spares(const char *path, const char *input, kvd_err *err);

/*
 * Renames NAME.partial, whose files are on disk, to NAME and releases the lock. If `replace` and
 * NAME exists, exchanges the two in one step and removes the old folder.
 */
int kvd_output_folder_commit(kvd_output *out, bool replace, kvd_err *err);

/* Removes NAME.partial and releases the lock. Safe on a zeroed struct and after a commit. */
void kvd_output_folder_release(kvd_output *out);

/* Write a file in NAME.partial, from `text` or as a copy of the file `from`, and flush it. */
int kvd_output_folder_text(const kvd_output *out, const char *name, const char *text, size_t len,
                           kvd_err *err);
int kvd_output_folder_copy(const kvd_output *out, const char *name, const char *from, kvd_err *err);

/* Returns the path NAME.partial/name, allocated. On failure returns NULL and fills *err. */
char *kvd_output_folder_file(const kvd_output *out, const char *name, kvd_err *err);

#endif
