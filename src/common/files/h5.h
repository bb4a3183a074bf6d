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

/* Fails if `path` is a file that is not empty, not HDF5, and not named *.h5. */
int kvd_h5_check_replaced(const char *path, kvd_err *err);

/* Creates PATH.partial. Fails if PATH is an input or may not be replaced. */
int kvd_h5_create(kvd_h5 *f, const char *path, const kvd_schema *schema, const kvd_run *run,
                  kvd_err *err);

/* Reopens an interrupted PATH.partial under its lock. If there is no such file, f->id is invalid,
 * and the caller must call kvd_h5_create_locked. */
int kvd_h5_reopen(kvd_h5 *f, const char *path, const kvd_schema *schema, const kvd_run *run,
                  kvd_err *err);
int kvd_h5_create_locked(kvd_h5 *f, const kvd_schema *schema, kvd_err *err);

/* Completes the file and renames it to PATH. On failure an older file PATH is unchanged. */
int kvd_h5_finish(kvd_h5 *f, kvd_err *err);

/* Flushes an incomplete file to disk, so that kvd_h5_reopen can continue it. */
int kvd_h5_sync(kvd_h5 *f, kvd_err *err);

/* Opens a complete file for reading. First reads it in a child process, because HDF5 may crash on a
 * damaged file. */
int kvd_h5_open(kvd_h5 *f, const char *path, const kvd_schema *schema, kvd_err *err);

/* Reads only the name of the file's schema, such as "moments". */
int kvd_h5_peek_schema(const char *path, char *name, size_t size, kvd_err *err);

/* Reads schema name, git revision and run time in seconds of the program that wrote the file, or
 * "", "" and 0 if the file is no kvdim file. The caller frees both texts. */
int kvd_h5_identify(const char *path, char **schema, char **made_by, double *seconds, kvd_err *err);

/* Closes *f and removes an unfinished PATH.partial unless keep_partial. *f may be all zeros. */
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

/* Writes a new dataset. mem_type is the number type of `data`. */
int kvd_h5_write(kvd_h5 *f, const kvd_h5_spec *spec, hid_t mem_type, const void *data,
                 kvd_err *err);

/* Creates a dataset that the caller fills later and closes. */
int kvd_h5_reserve(kvd_h5 *f, const kvd_h5_spec *spec, hid_t *dataset, kvd_err *err);
/* Closes a dataset. Fails if HDF5 cannot write its buffers. */
int kvd_h5_close_dataset(kvd_h5 *f, hid_t *dataset, const char *path, kvd_err *err);

/* Writes the lengths of the axes of a dataset to dims [rank]. Fails if the dataset does not have
 * `rank` axes. */
int kvd_h5_shape(kvd_h5 *f, const char *path, int rank, hsize_t *dims, kvd_err *err);
bool kvd_h5_exists(kvd_h5 *f, const char *path);
bool kvd_h5_has_attribute(kvd_h5 *f, const char *where, const char *name);

/* Fails if elements of a dataset were never written to the file. HDF5 would read them as 0. */
int kvd_h5_check_stored(hid_t dataset, const char *file, const char *path, kvd_err *err);

/* Reads a whole dataset of shape `dims`. A number that mem_type cannot hold is an error. */
int kvd_h5_read(kvd_h5 *f, const char *path, int rank, const hsize_t *dims, hid_t mem_type,
                void *data, kvd_err *err);
int kvd_h5_read_finite(kvd_h5 *f, const char *path, int rank, const hsize_t *dims, double *data,
                       kvd_err *err);

/* Read and write a block of a dataset. The caller must convert bfloat16, because HDF5 cannot. */
int kvd_h5_read_slab(hid_t dataset, const char *name, int rank, const hsize_t *start,
                     const hsize_t *count, hid_t mem_type, void *data, kvd_err *err);
int kvd_h5_write_slab(hid_t dataset, const char *name, int rank, const hsize_t *start,
                      const hsize_t *count, hid_t mem_type, const void *data, kvd_err *err);

/* Write an attribute of the group or dataset `where`, in place of an old value. */

int kvd_h5_put_text(kvd_h5 *f, const char *where, const char *name, const char *value,
                    kvd_err *err);
int kvd_h5_put_int(kvd_h5 *f, const char *where, const char *name, int64_t value, kvd_err *err);
int kvd_h5_put_double(kvd_h5 *f, const char *where, const char *name, double value, kvd_err *err);
/* Reads a text attribute, which the caller frees. */
int kvd_h5_get_text(kvd_h5 *f, const char *where, const char *name, char **value, kvd_err *err);
/* Reads a text attribute that the file may lack; *value is then NULL. The caller frees *value. */
int kvd_h5_get_text_or_none(kvd_h5 *f, const char *where, const char *name, char **value,
                            kvd_err *err);
int kvd_h5_get_int(kvd_h5 *f, const char *where, const char *name, int64_t *value, kvd_err *err);
int kvd_h5_get_double(kvd_h5 *f, const char *where, const char *name, double *value, kvd_err *err);

/* Return HDF5 types of 16-bit floats. The caller must not close them. */
hid_t kvd_h5_type_f16(void);
hid_t kvd_h5_type_bf16(void);

#endif
