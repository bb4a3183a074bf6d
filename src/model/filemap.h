/* A whole file, mapped read-only. What opens checkpoints and configurations. */
#ifndef KVD_MODEL_FILEMAP_H
#define KVD_MODEL_FILEMAP_H

#include <stddef.h>

#include "common/err.h"

typedef struct {
    const void *bytes; /* never NULL after kvd_filemap_load; an empty file has len 0 */
    size_t len;
} kvd_filemap;

/*
 * Maps the regular file `path`; fails, naming it, when it is missing, a folder, a pipe or
 * unreadable. The map holds no file descriptor. A file that shrinks while it is mapped kills
 * the process (SIGBUS), as with every map.
 */
int kvd_filemap_load(kvd_filemap *m, const char *path, kvd_err *err);
void kvd_filemap_release(kvd_filemap *m); /* safe when zeroed */

#endif
