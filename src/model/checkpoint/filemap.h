/* Maps a whole file read-only into memory. */
#ifndef KVD_MODEL_CHECKPOINT_FILEMAP_H
#define KVD_MODEL_CHECKPOINT_FILEMAP_H

#include <stddef.h>

#include "common/err.h"

typedef struct {
    const void *bytes; /* never NULL after kvd_filemap_load, even for an empty file */
    size_t len;
} kvd_filemap;

/* Maps the regular file `path`.
 *
 * If the file shrinks later, access to the lost part ends the process with a message. */
int kvd_filemap_load(kvd_filemap *m, const char *path, kvd_err *err);
void kvd_filemap_release(kvd_filemap *m); /* may be called on a zeroed kvd_filemap */

#endif
