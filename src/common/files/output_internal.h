/*
 * Functions shared by output.c and output_folder.c: names, locks and syncs of outputs that are
 * written atomically.
 */
#ifndef KVD_COMMON_FILES_OUTPUT_INTERNAL_H
#define KVD_COMMON_FILES_OUTPUT_INTERNAL_H

#include "common/files/output.h"

/* Frees the strings path, partial and lock of *out, without removing any file. */
void kvd_output_forget(kvd_output *out);

/* Returns the folder that contains `path`, allocated; NULL if memory runs out. */
char *kvd_output_parent(const char *path);

/* Takes the lock file out->lock of an output. out->lock and out->path must be set. */
int kvd_output_lock(kvd_output *out, kvd_err *err);

/* Calls fsync on the file or folder `path`; flags are those of open. */
int kvd_output_sync(const char *path, int flags, kvd_err *err);

#endif
