/*
 * Maps a whole file read-only into memory. Checkpoints, configurations and plain texts are read
 * this way.
 */
#ifndef KVD_MODEL_CHECKPOINT_FILEMAP_H
#define KVD_MODEL_CHECKPOINT_FILEMAP_H

#include <stddef.h>

#include "common/err.h"

typedef struct {
    const void *bytes; /* never NULL after kvd_filemap_load, even for an empty file */
    size_t len;
} kvd_filemap;

/*
 * Maps the regular file `path` into *m. Returns 0, or -1 with *err if the file is missing, a
 * folder, a pipe or unreadable. No file descriptor stays open.
 *
 * If the file shrinks while it is mapped, the next access to the lost part, in any thread, ends the
 * process with status 1 and one line that names the file. For that, the first call installs a
 * handler of SIGBUS. Faults in other memory are passed on to the handler that was installed before.
 */
int kvd_filemap_load(kvd_filemap *m, const char *path, kvd_err *err);
void kvd_filemap_release(kvd_filemap *m); /* may be called on a zeroed kvd_filemap */

#endif
