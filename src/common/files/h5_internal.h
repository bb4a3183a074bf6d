/* Functions that the files h5*.c share. */
#ifndef KVD_COMMON_FILES_H5_INTERNAL_H
#define KVD_COMMON_FILES_H5_INTERNAL_H

#include "common/files/h5.h"

static inline void kvd_h5_drop(hid_t id)
{
    if (id > 0)
        (void)H5Idec_ref(id);
}

/* Stores HDF5's reason for the last failure and returns -1. Call right after the failure. */
int kvd_h5_fail(kvd_err *err, const char *fmt, ...) KVD_PRINTF(2, 3);

/* Returns the properties with which files are opened, or H5I_INVALID_HID. */
hid_t kvd_h5_access(void);

/* Returns an HDF5 property list of class `kind`. It keeps attributes in the object header, which
 * has a checksum. */
hid_t kvd_h5_creation(hid_t kind);

/* Fails if memory is short. Call before opening a file: HDF5 1.10 crashes without memory. */
int kvd_h5_room(const char *path, kvd_err *err);

/* Divides an array of shape `dims` into chunks, each a contiguous part of the array with at most
 * `limit` bytes. slab [rank] receives the shape of a chunk. */
void kvd_h5_slab_dims(int rank, const hsize_t *dims, size_t type_size, size_t limit, hsize_t *slab);

/* Returns HDF5 creation properties for a dataset: contiguous storage, allocated at once, if
 * `reserve` is true; else compact storage for small data and compressed chunks for large data. */
hid_t kvd_h5_layout(const kvd_h5_spec *s, size_t bytes, bool reserve);

/* Writes `data` chunk by chunk, through the filters shuffle, deflate and Fletcher-32. */
int kvd_h5_write_chunks(hid_t dataset, const kvd_h5_spec *spec, const hsize_t *chunk,
                        const void *data, kvd_err *err);

/* Returns true for number types of kvdim files, in either byte order. */
bool kvd_h5_known_number(hid_t type);

/* Reads the file in a child process, as damage may crash HDF5. Not thread-safe. */
int kvd_h5_probe(const char *path, kvd_err *err);

/* Writes a text attribute with space for `capacity` bytes, for longer texts later. */
int kvd_h5_put_text_room(kvd_h5 *f, const char *where, const char *name, const char *value,
                         size_t capacity, kvd_err *err);

int kvd_h5_put_u64(kvd_h5 *f, const char *where, const char *name, uint64_t value, kvd_err *err);

/* Attaches a dimension scale to every axis. On failure returns -1 without a message. */
int kvd_h5_put_axes(kvd_h5 *f, hid_t dataset, const kvd_h5_spec *s);

#endif
