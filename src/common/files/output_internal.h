/* Functions that output.c and output_folder.c share. */
#ifndef KVD_COMMON_FILES_OUTPUT_INTERNAL_H
#define KVD_COMMON_FILES_OUTPUT_INTERNAL_H

#include "common/files/output.h"

/* Frees the strings in *out. Removes no file. */
void kvd_output_forget(kvd_output *out);

/* Returns the folder that contains `path`, allocated, or NULL if memory runs out. */
char *kvd_output_parent(const char *path);

/* Fails if `path` is "-", which users take for standard output. */
int kvd_output_check_name(const char *path, kvd_err *err);

/* Takes the lock of an output. The caller has set out->lock and out->path. */
int kvd_output_lock(kvd_output *out, kvd_err *err);

/* Opens a file or folder with `flags`, such as O_RDONLY, and calls fsync on it. */
int kvd_output_sync(const char *path, int flags, kvd_err *err);

#endif
