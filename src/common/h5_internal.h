/* What the files h5*.c share; nothing else includes this. */
#ifndef KVD_COMMON_H5_INTERNAL_H
#define KVD_COMMON_H5_INTERNAL_H

#include "common/h5.h"

/* Releases an id of any kind; safe on an invalid one. */
static inline void kvd_h5_drop(hid_t id)
{
    if (id > 0)
        (void)H5Idec_ref(id);
}

/*
 * kvd_fail with the reason that HDF5 gave at the end. To be called right after
 * the failing call: the next HDF5 call clears the reason.
 */
int kvd_h5_fail(kvd_err *err, const char *fmt, ...) KVD_PRINTF(2, 3);

/* File access properties that every open uses; H5I_INVALID_HID on failure. */
hid_t kvd_h5_access(void);

/* Chunk (or slab) of at most `limit` bytes: the slowest axes are cut first. */
void kvd_h5_slab_dims(int rank, const hsize_t *dims, size_t type_size, size_t limit, hsize_t *slab);

/* Writes all of a new dataset with the filters shuffle, deflate 1 and Fletcher-32, in the type of the file, chunks as kvd_h5_slab_dims. */
int kvd_h5_write_chunks(hid_t dataset, const kvd_h5_spec *spec, const hsize_t *chunk, const void *data,
                        kvd_err *err);

/* Is it one of the number types that kvdim files use (either byte order)? */
bool kvd_h5_known_number(hid_t type);

/* Reads all of `path` in a child process; 0 when that went well. A file that has not changed since is not read again. One thread at a time. */
int kvd_h5_probe(const char *path, kvd_err *err);

/* kvd_h5_put_text with room for `capacity` bytes, so that a longer text fits in place later. */
int kvd_h5_put_text_room(kvd_h5 *f, const char *where, const char *name, const char *value, size_t capacity,
                         kvd_err *err);

/* For a seed, which uses all 64 bits. */
int kvd_h5_put_u64(kvd_h5 *f, const char *where, const char *name, uint64_t value, kvd_err *err);

#endif
