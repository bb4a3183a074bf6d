/* Writes a folder atomically: fills NAME.partial under a lock, then renames it to NAME. */
#ifndef KVD_COMMON_FILES_OUTPUT_FOLDER_H
#define KVD_COMMON_FILES_OUTPUT_FOLDER_H

#include "common/files/output.h"

/* Locks the output folder `path` and creates an empty folder PATH.partial, to be filled. Fails if
 * `path` exists and `replace` is false. */
int kvd_output_folder_begin(kvd_output *out, const char *path, bool replace, kvd_err *err);

/* Locks the output folder `path` and creates an empty folder PATH.partial, which replaces `path`
 * later. `contents`: names that an old folder `path` may hold, ended by NULL; must outlive *out. */
int kvd_output_folder_renew(kvd_output *out, const char *path, const char *const *contents,
                            kvd_err *err);

/* Fails if `input` is in the folder `path`, which will be replaced. */
int kvd_output_folder_spares(const char *path, const char *input, kvd_err *err);

/* Renames the unfinished folder NAME.partial to NAME, and releases the lock. If `replace` is true,
 * removes an old folder NAME. */
int kvd_output_folder_commit(kvd_output *out, bool replace, kvd_err *err);

/* Removes the unfinished folder NAME.partial, and releases the lock. *out may be all zeros. */
void kvd_output_folder_release(kvd_output *out);

/* Write file `name` in the unfinished output folder and flush it to disk. */
int kvd_output_folder_text(const kvd_output *out, const char *name, const char *text, size_t len,
                           kvd_err *err);
int kvd_output_folder_copy(const kvd_output *out, const char *name, const char *from, kvd_err *err);

/* Returns the path of file `name` in the unfinished output folder. The caller frees the path. */
char *kvd_output_folder_file(const kvd_output *out, const char *name, kvd_err *err);

#endif
