/*
 * Writes a folder of files atomically: it appears complete or not at all. Files are written into
 * NAME.partial, under a lock, and NAME.partial is then renamed to NAME.
 */
#ifndef KVD_COMMON_FILES_OUTPUT_FOLDER_H
#define KVD_COMMON_FILES_OUTPUT_FOLDER_H

#include "common/files/output.h"

/*
 * Takes the lock of the folder `path` and creates an empty folder NAME.partial, after removing one
 * that a killed program left. Fails if another process holds the lock, if the parent folder is
 * missing, if `path` is a file or a link, or if `path` exists and `replace` is false.
 */
int kvd_output_folder_begin(kvd_output *out, const char *path, bool replace, kvd_err *err);

/*
 * Takes the lock and creates NAME.partial, for a folder that every run replaces. The caller must
 * end with kvd_output_folder_commit and `replace` true. `contents` is a list, ending with NULL, of
 * the names that the folder may contain, and must outlive *out. A name that ends in '/' is a
 * subfolder. If NAME is a symbolic link, the folder that it points to is replaced. Fails if an
 * existing folder contains a name that is not listed, because files of the user are never removed.
 */
int kvd_output_folder_renew(kvd_output *out, const char *path, const char *const *contents,
                            kvd_err *err);

/*
 * Fails if the existing file `input` is in the folder `path` or in a subfolder of it, or is `path`
 * itself, because replacing the folder would remove it. Links are followed.
 */
int kvd_output_folder_spares(const char *path, const char *input, kvd_err *err);

/*
 * Renames NAME.partial to NAME and releases the lock. If `replace` is true and NAME exists,
 * NAME.partial and NAME are exchanged in one step, and the old folder is removed. The files must be
 * on disk already.
 */
int kvd_output_folder_commit(kvd_output *out, bool replace, kvd_err *err);

/* Removes NAME.partial and releases the lock. Safe on a zeroed struct and after a commit. */
void kvd_output_folder_release(kvd_output *out);

/*
 * Write a file in NAME.partial and flush it to disk. kvd_output_folder_text writes the bytes
 * `text`; kvd_output_folder_copy copies the file `from`.
 */
int kvd_output_folder_text(const kvd_output *out, const char *name, const char *text, size_t len,
                           kvd_err *err);
int kvd_output_folder_copy(const kvd_output *out, const char *name, const char *from, kvd_err *err);

/* Returns the path NAME.partial/name, allocated. On failure returns NULL and fills *err. */
char *kvd_output_folder_file(const kvd_output *out, const char *name, kvd_err *err);

#endif
