/* Writes and reads kvdim's HDF5 files (docs/formats.md). Readers accept only complete files. */
#ifndef KVD_COMMON_FILES_H5_H
#define KVD_COMMON_FILES_H5_H

#include <hdf5.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "common/files/output.h"
#include "common/run.h"

enum { KVD_MAX_RANK = 5 };

typedef struct {
    const char *name;  /* "moments" gives the attribute schema = "kvdim/moments". */
    int version;       /* Version that is written. A reader refuses larger versions. */
    const char *title; /* one sentence for the root attribute `title` */
} kvd_schema;

typedef struct {
    hid_t id; /* H5I_INVALID_HID when closed */
    char *path;
    bool writing;
    kvd_output output; /* temporary name and lock of a file that is being written */
    const kvd_run *run;
    bool resumed;               /* true if kvd_h5_reopen opened the file */
    double elapsed_before;      /* seconds that earlier, interrupted runs spent on the file */
    uint64_t reserved;          /* bytes of disk space already claimed for this file */
    int n_inputs, n_parameters; /* number of inputs and of parameters already written to the file */
} kvd_h5;

/*
 * Fails if `path` exists and is not a file that may be replaced: empty, HDF5, or with a name that
 * ends in .h5.
 */
int kvd_h5_check_replaced(const char *path, kvd_err *err);

/* Creates PATH.partial. Fails if PATH is an input or kvd_h5_check_replaced refuses it. */
int kvd_h5_create(kvd_h5 *f, const char *path, const kvd_schema *schema, const kvd_run *run,
                  kvd_err *err);

/*
 * Reopens an interrupted PATH.partial, under the lock. If there is none, sets f->id to
 * H5I_INVALID_HID; the caller must then call kvd_h5_create_locked.
 */
int kvd_h5_reopen(kvd_h5 *f, const char *path, const kvd_schema *schema, const kvd_run *run,
                  kvd_err *err);
int kvd_h5_create_locked(kvd_h5 *f, const kvd_schema *schema, kvd_err *err);

/* Marks the file as complete and renames it to PATH. On failure an earlier PATH is unchanged. */
int kvd_h5_finish(kvd_h5 *f, kvd_err *err);

/*
 * Flushes an incomplete file to disk, so that kvd_h5_reopen can continue it. The first call claims
 * the reserved disk space.
 */
int kvd_h5_sync(kvd_h5 *f, kvd_err *err);

/*
 * Opens a complete kvdim file of the given schema for reading. Reads it in a child process first,
 * because HDF5 may crash on a damaged file. On failure *f is closed.
 */
int kvd_h5_open(kvd_h5 *f, const char *path, const kvd_schema *schema, kvd_err *err);

/* Reads only the schema name ("moments") of any kvdim file. */
int kvd_h5_peek_schema(const char *path, char *name, size_t size, kvd_err *err);

/*
 * Reads schema name, git revision (both allocated) and run time in seconds of a file. If it is no
 * kvdim file, returns "", "" and 0.
 */
int kvd_h5_identify(const char *path, char **schema, char **made_by, double *seconds, kvd_err *err);

/* Closes *f. Removes an unfinished PATH.partial unless keep_partial. Safe on a zeroed *f. */
void kvd_h5_close(kvd_h5 *f, bool keep_partial);

typedef struct {
    const char *path;      /* path such as "/qk/sigma"; missing groups are created */
    const char *long_name; /* attribute long_name: one sentence, never empty */
    const char *units;     /* unit such as "us", "byte", "nat"; "1" for a number without a unit */
    hid_t type;            /* type in the file, such as H5T_IEEE_F64LE */
    int rank;              /* 0 means a single number */
    hsize_t dims[KVD_MAX_RANK];
    const char *axes[KVD_MAX_RANK]; /* names of the axes: "layer", "kv_head", "token", "dim", ... */
} kvd_h5_spec;

/* Writes a new dataset from data[], whose number type in memory is mem_type. */
int kvd_h5_write(kvd_h5 *f, const kvd_h5_spec *spec, hid_t mem_type, const void *data,
                 kvd_err *err);

/* Creates a contiguous dataset that the caller fills later and closes with kvd_h5_close_dataset. */
int kvd_h5_reserve(kvd_h5 *f, const kvd_h5_spec *spec, hid_t *dataset, kvd_err *err);
/* Closes a dataset and sets *dataset to H5I_INVALID_HID. Fails if HDF5 cannot write its buffers. */
int kvd_h5_close_dataset(kvd_h5 *f, hid_t *dataset, const char *path, kvd_err *err);

/*
 * Writes the dimensions of a dataset to dims [rank]. Fails if the dataset has another number of
 * axes.
 */
int kvd_h5_shape(kvd_h5 *f, const char *path, int rank, hsize_t *dims, kvd_err *err);
bool kvd_h5_exists(kvd_h5 *f, const char *path);

/*
 * Reads a whole dataset, whose shape must be `dims`. A number that mem_type cannot hold is an
 * error.
 */
int kvd_h5_read(kvd_h5 *f, const char *path, int rank, const hsize_t *dims, hid_t mem_type,
                void *data, kvd_err *err);
int kvd_h5_read_finite(kvd_h5 *f, const char *path, int rank, const hsize_t *dims, double *data,
                       kvd_err *err);

/*
 * Read and write a block of a dataset. In a bfloat16 dataset the caller must convert, because HDF5
 * cannot.
 */
int kvd_h5_read_slab(hid_t dataset, const char *name, int rank, const hsize_t *start,
                     const hsize_t *count, hid_t mem_type, void *data, kvd_err *err);
int kvd_h5_write_slab(hid_t dataset, const char *name, int rank, const hsize_t *start,
                      const hsize_t *count, hid_t mem_type, const void *data, kvd_err *err);

/*
 * Write an attribute of the object `where` ("/" or a path). Replace an old value, and create a
 * missing group.
 */

int kvd_h5_put_text(kvd_h5 *f, const char *where, const char *name, const char *value,
                    kvd_err *err);
int kvd_h5_put_int(kvd_h5 *f, const char *where, const char *name, int64_t value, kvd_err *err);
int kvd_h5_put_double(kvd_h5 *f, const char *where, const char *name, double value, kvd_err *err);
/* Reads a text attribute, which the caller frees. A missing attribute is an error. */
int kvd_h5_get_text(kvd_h5 *f, const char *where, const char *name, char **value, kvd_err *err);
int kvd_h5_get_int(kvd_h5 *f, const char *where, const char *name, int64_t *value, kvd_err *err);
int kvd_h5_get_double(kvd_h5 *f, const char *where, const char *name, double *value, kvd_err *err);

/* Return HDF5 types of 16-bit floats. The caller must not close them. */
hid_t kvd_h5_type_f16(void);
hid_t kvd_h5_type_bf16(void);

#endif
