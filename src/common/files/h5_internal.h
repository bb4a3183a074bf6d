/* Functions that the files h5*.c share. No other file includes this header. */
#ifndef KVD_COMMON_FILES_H5_INTERNAL_H
#define KVD_COMMON_FILES_H5_INTERNAL_H

#include "common/files/h5.h"

static inline void kvd_h5_drop(hid_t id)
{
    if (id > 0)
        (void)H5Idec_ref(id);
}

/*
 * Stores a formatted message with HDF5's reason at the end, and returns -1. Call it right after the
 * failing HDF5 call, because the next call clears the reason.
 */
int kvd_h5_fail(kvd_err *err, const char *fmt, ...) KVD_PRINTF(2, 3);

/*
 * Returns the file access properties with which kvdim opens every file; H5I_INVALID_HID on failure.
 */
hid_t kvd_h5_access(void);

/*
 * Returns creation properties of class `kind` (H5P_FILE_CREATE or H5P_GROUP_CREATE) that keep all
 * attributes in the object header, which has a checksum. By default HDF5 moves more than 8
 * attributes into a heap, and attribute texts above 4 KiB have no checksum in a heap. Returns
 * H5I_INVALID_HID on failure.
 */
hid_t kvd_h5_creation(hid_t kind);

/*
 * Returns 0 if the free memory suffices to open the HDF5 file `path`, else -1. Call it before
 * H5Fopen and H5Fcreate: HDF5 1.10 crashes if it cannot allocate the tables of a file, which take
 * some 3 MB.
 */
int kvd_h5_room(const char *path, kvd_err *err);

/*
 * Computes dimensions of chunks (or slabs) of a dataset that take at most `limit` bytes each; the
 * slowest axes are cut first.
 */
void kvd_h5_slab_dims(int rank, const hsize_t *dims, size_t type_size, size_t limit, hsize_t *slab);

/*
 * Returns creation properties of a dataset of `bytes` bytes: in the object header if it is small,
 * reserved in one piece if `reserve` is true, else in compressed chunks with checksums. Returns
 * H5I_INVALID_HID on failure.
 */
hid_t kvd_h5_layout(const kvd_h5_spec *s, size_t bytes, bool reserve);

/*
 * Writes all values of a new dataset in the type of the file, with the filters shuffle, deflate 1
 * and Fletcher-32, in the chunks of kvd_h5_slab_dims.
 */
int kvd_h5_write_chunks(hid_t dataset, const kvd_h5_spec *spec, const hsize_t *chunk,
                        const void *data, kvd_err *err);

/* Returns true if `type` is a number type that kvdim files use, in either byte order. */
bool kvd_h5_known_number(hid_t type);

/*
 * Reads the complete file `path` in a child process; returns 0 if the child succeeded. A file that
 * has not changed since the last call is not read again. Not thread-safe.
 */
int kvd_h5_probe(const char *path, kvd_err *err);

/*
 * Writes a text attribute with room for `capacity` bytes, so that a longer text fits in place
 * later.
 */
int kvd_h5_put_text_room(kvd_h5 *f, const char *where, const char *name, const char *value,
                         size_t capacity, kvd_err *err);

/* Writes an unsigned 64-bit attribute, such as a seed. */
int kvd_h5_put_u64(kvd_h5 *f, const char *where, const char *name, uint64_t value, kvd_err *err);

/*
 * Attaches a dimension scale to every axis of `dataset`, with the names in `s`; makes the scales
 * that the file lacks (h5_chunks.c). Returns 0, or -1 without a message if HDF5 fails.
 */
int kvd_h5_put_axes(kvd_h5 *f, hid_t dataset, const kvd_h5_spec *s);

#endif
