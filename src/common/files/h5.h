/*
 * Writes and reads the HDF5 files of kvdim. A file is created under a temporary name and marked as
 * complete at the end. Readers accept only complete files, made by kvdim, in a known version.
 * docs/formats.md describes the attributes and groups of every file.
 */
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
    /* Name of the schema. "moments" gives the attribute schema = "kvdim/moments". */
    const char *name;
    /* Version of the format that is written. A reader refuses larger versions. */
    int version;
    const char *title; /* one sentence for the root attribute `title` */
} kvd_schema;

typedef struct {
    hid_t id; /* H5I_INVALID_HID when closed */
    char *path;
    bool writing;
    kvd_output output; /* temporary name and lock of a file that is being written */
    const kvd_run *run;
    bool resumed;          /* kvd_h5_reopen opened the file */
    double elapsed_before; /* seconds that earlier, interrupted runs spent on this file */
    uint64_t reserved;     /* bytes of disk space that are already claimed for this file */
    /* Number of inputs and of parameters of the run that are already written to the file. */
    int n_inputs, n_parameters;
} kvd_h5;

/*
 * Fails if `path` is a file that the user may still need, such as a text: it has content, is not an
 * HDF5 file, and its name does not end in .h5. Files that do not exist or cannot be read pass.
 */
int kvd_h5_check_replaced(const char *path, kvd_err *err);

/*
 * Creates PATH.partial. Fails if PATH is one of the run's inputs or in an input folder, or if
 * kvd_h5_check_replaced refuses it. If kvd_h5_create, kvd_h5_create_locked or kvd_h5_reopen fails,
 * *f is closed; calling kvd_h5_close afterwards does no harm.
 */
int kvd_h5_create(kvd_h5 *f, const char *path, const kvd_schema *schema, const kvd_run *run,
                  kvd_err *err);

/*
 * Reopens the PATH.partial of an interrupted run, under the lock. Fails if that file has another
 * schema or version. If there is no such file, returns 0 and sets f->id to H5I_INVALID_HID. The
 * lock is then held, and the caller must call kvd_h5_create_locked.
 */
int kvd_h5_reopen(kvd_h5 *f, const char *path, const kvd_schema *schema, const kvd_run *run,
                  kvd_err *err);
int kvd_h5_create_locked(kvd_h5 *f, const kvd_schema *schema, kvd_err *err);

/*
 * Marks the file as complete, flushes it to disk and renames it to PATH. On failure an earlier PATH
 * is unchanged.
 */
int kvd_h5_finish(kvd_h5 *f, kvd_err *err);

/*
 * Flushes an incomplete file to disk. After kvd_h5_reserve, the first call also claims disk space,
 * so that a full disk is found early. A process killed later leaves a file that kvd_h5_reopen
 * accepts.
 */
int kvd_h5_sync(kvd_h5 *f, kvd_err *err);

/*
 * Opens a file to read. Fails if it is not HDF5, not made by kvdim, of another schema, too new or
 * incomplete. A child process reads the file first, because HDF5 may crash or loop on damaged
 * files. After a failure *f is closed; kvd_h5_close is still safe.
 */
int kvd_h5_open(kvd_h5 *f, const char *path, const kvd_schema *schema, kvd_err *err);

/* Reads only the schema name ("moments"), for programs that accept any kvdim file. */
int kvd_h5_peek_schema(const char *path, char *name, size_t size, kvd_err *err);

/*
 * Reads the provenance of an input file: its *schema ("kvdim/moments"), *made_by (git revision of
 * the program), both allocated, and the *seconds that writing it took. If the file is not a valid
 * kvdim file, the results are "", "" and 0. Fails only if memory runs out.
 */
int kvd_h5_identify(const char *path, char **schema, char **made_by, double *seconds, kvd_err *err);

/*
 * Closes *f. If the file is unfinished, removes PATH.partial, unless keep_partial is true. Safe on
 * a zeroed *f.
 */
void kvd_h5_close(kvd_h5 *f, bool keep_partial);

typedef struct {
    const char *path; /* such as "/qk/sigma"; missing groups are created */
    /* Attribute long_name: one sentence, never empty. */
    const char *long_name;
    /* Unit of the numbers: "us", "byte", "nat", ...; "1" for a number without a unit. */
    const char *units;
    hid_t type; /* type in the file, e.g. H5T_IEEE_F64LE */
    int rank;   /* 0 means a single number */
    hsize_t dims[KVD_MAX_RANK];
    /* Names of the axes, one per dimension: "layer", "kv_head", "token", "dim", ... */
    const char *axes[KVD_MAX_RANK];
} kvd_h5_spec;

/* Writes a new dataset from data[], whose number type in memory is mem_type. */
int kvd_h5_write(kvd_h5 *f, const kvd_h5_spec *spec, hid_t mem_type, const void *data,
                 kvd_err *err);

/*
 * Creates a contiguous dataset that is filled later. The caller must close *dataset with
 * kvd_h5_close_dataset. A process that is killed while it fills the dataset leaves the file
 * readable.
 */
int kvd_h5_reserve(kvd_h5 *f, const kvd_h5_spec *spec, hid_t *dataset, kvd_err *err);
/*
 * Closes a dataset and sets *dataset to H5I_INVALID_HID. Fails if HDF5 cannot write the slabs that
 * it still holds in memory. Does nothing if *dataset is no identifier.
 */
int kvd_h5_close_dataset(kvd_h5 *f, hid_t *dataset, const char *path, kvd_err *err);

/* Stores the length of each axis in dims [rank]. Fails if the dataset has another rank. */
int kvd_h5_shape(kvd_h5 *f, const char *path, int rank, hsize_t *dims, kvd_err *err);
bool kvd_h5_exists(kvd_h5 *f, const char *path);

/*
 * Reads a complete dataset whose shape must be exactly `dims`. A number that mem_type cannot hold
 * is an error. kvd_h5_read_finite also refuses NaN and infinity; its mem_type must be
 * H5T_NATIVE_DOUBLE.
 */
int kvd_h5_read(kvd_h5 *f, const char *path, int rank, const hsize_t *dims, hid_t mem_type,
                void *data, kvd_err *err);
int kvd_h5_read_finite(kvd_h5 *f, const char *path, int rank, const hsize_t *dims, double *data,
                       kvd_err *err);

/*
 * Read and write a slab of a dataset. If the dataset is bfloat16, mem_type must be the type in the
 * file, and the caller must convert the data with common/half.h, because HDF5's own conversion is
 * slow.
 */
int kvd_h5_read_slab(hid_t dataset, const char *name, int rank, const hsize_t *start,
                     const hsize_t *count, hid_t mem_type, void *data, kvd_err *err);
int kvd_h5_write_slab(hid_t dataset, const char *name, int rank, const hsize_t *start,
                      const hsize_t *count, hid_t mem_type, const void *data, kvd_err *err);

/*
 * Write an attribute of the object `where`: "/" or the path of a dataset or group. A missing group
 * is created. An existing attribute gets the new value.
 */

int kvd_h5_put_text(kvd_h5 *f, const char *where, const char *name, const char *value,
                    kvd_err *err);
int kvd_h5_put_int(kvd_h5 *f, const char *where, const char *name, int64_t value, kvd_err *err);
int kvd_h5_put_double(kvd_h5 *f, const char *where, const char *name, double value, kvd_err *err);
/* Reads a text attribute. The caller must free *value. A missing attribute is an error. */
int kvd_h5_get_text(kvd_h5 *f, const char *where, const char *name, char **value, kvd_err *err);
int kvd_h5_get_int(kvd_h5 *f, const char *where, const char *name, int64_t *value, kvd_err *err);
int kvd_h5_get_double(kvd_h5 *f, const char *where, const char *name, double *value, kvd_err *err);

/* Return HDF5 types for the 16-bit floats of kvdim files. The caller must not close them. */
hid_t kvd_h5_type_f16(void);
hid_t kvd_h5_type_bf16(void);

#endif
