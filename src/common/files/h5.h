/*
 * Writes and reads the HDF5 files of kvdim. A file is created under a temporary name, described by
 * attributes, and marked complete at the end. A reader accepts it only if it is complete, made by
 * kvdim, and of a known version.
 *
 * Every file has the root attributes schema ("kvdim/<name>"), schema_version, title, history and
 * complete, the groups /provenance (with /provenance/inputs/<n>) and /parameters, and /model if a
 * model was involved. docs/formats.md is the reference for users.
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
    /* Name of the file format: "moments" gives the schema attribute "kvdim/moments". */
    const char *name;
    /* Version of the format that is written; a reader refuses files of a larger version. */
    int version;
    const char *title; /* title of the file for its root attribute: one sentence */
} kvd_schema;

typedef struct {
    hid_t id;   /* HDF5 id of the file; H5I_INVALID_HID when closed */
    char *path; /* path of the file, for messages */
    bool writing;
    kvd_output output; /* temporary name and lock of a file that is being written */
    const kvd_run *run;
    bool resumed;          /* true if kvd_h5_reopen opened the file */
    double elapsed_before; /* seconds that the earlier, interrupted runs spent on this file */
    uint64_t reserved;     /* bytes of disk space that the file system has granted to this file */
    /* Numbers of the run's inputs and parameters that the file already holds. */
    int n_inputs, n_parameters;
} kvd_h5;

/* ---- opening, creating and closing files ---------------------------- */

/*
 * Before a file is opened for reading or resuming, a child process reads it under limits of time
 * and memory, because the HDF5 library may crash or loop on damaged files. A crash of the child
 * becomes an error message. If a function of this group fails, *f is closed afterwards; calling
 * kvd_h5_close then is allowed.
 */

/*
 * Creates PATH.partial with schema, title, history, /provenance and complete = 0. Fails if PATH is
 * one of the run's inputs or is in an input folder.
 */
int kvd_h5_create(kvd_h5 *f, const char *path, const kvd_schema *schema, const kvd_run *run,
                  kvd_err *err);

/*
 * Reopens the PATH.partial of an interrupted run for writing, under the lock. Checks that it has
 * this schema and version. If there is no such file, returns 0 with f->id == H5I_INVALID_HID and
 * holds the lock; the caller must then call kvd_h5_create_locked.
 */
int kvd_h5_reopen(kvd_h5 *f, const char *path, const kvd_schema *schema, const kvd_run *run,
                  kvd_err *err);
int kvd_h5_create_locked(kvd_h5 *f, const kvd_schema *schema, kvd_err *err);

/*
 * Completes the file: writes elapsed_s and complete = 1, closes it, calls fsync and renames it to
 * PATH. On failure an earlier PATH is unchanged.
 */
int kvd_h5_finish(kvd_h5 *f, kvd_err *err);

/*
 * Flushes all data to disk without completing the file (a checkpoint of a long run). After
 * kvd_h5_reserve, the first call also claims the reserved space from the file system, so that a
 * full disk is found before the work. From then on a killed process leaves a file that
 * kvd_h5_reopen accepts.
 */
int kvd_h5_sync(kvd_h5 *f, kvd_err *err);

/*
 * Opens a kvdim file of this schema for reading. Refuses, by name, files that are not HDF5, not
 * made by kvdim, too new or incomplete.
 */
int kvd_h5_open(kvd_h5 *f, const char *path, const kvd_schema *schema, kvd_err *err);

/*
 * Reads only the schema name ("moments") of a file into `name`, for programs that accept any kvdim
 * file.
 */
int kvd_h5_peek_schema(const char *path, char *name, size_t size, kvd_err *err);

/*
 * Reads what /provenance records about an input file: *schema ("kvdim/moments"), *made_by (git
 * revision of the program that wrote the file), both allocated, and *seconds that writing it took.
 * For a folder, a damaged file or one not made by kvdim these are "", "" and 0. Fails only if
 * memory runs out or reading fails.
 */
int kvd_h5_identify(const char *path, char **schema, char **made_by, double *seconds, kvd_err *err);

/*
 * Closes the file. If it was being written and is not finished, removes PATH.partial unless
 * keep_partial. Safe on a zeroed *f.
 */
void kvd_h5_close(kvd_h5 *f, bool keep_partial);

/* ---- creating, reading and writing datasets ------------------------ */

typedef struct {
    const char *path; /* path such as "/qk/sigma"; missing groups are created */
    /* Description of the dataset for its attribute long_name: one sentence, never empty. */
    const char *long_name;
    /* Unit of the numbers: "us", "byte", "nat", ...; "1" for a number without a unit. */
    const char *units;
    hid_t type; /* HDF5 type of the elements in the file, e.g. H5T_IEEE_F64LE */
    int rank;   /* number of axes; 0 means that the dataset is a single number */
    hsize_t dims[KVD_MAX_RANK];
    /* Name of each axis: "layer", "kv_head", "token", "dim", ... */
    const char *axes[KVD_MAX_RANK];
} kvd_h5_spec;

/* Creates a dataset and writes all of its elements. mem_type is the type of data[]. */
int kvd_h5_write(kvd_h5 *f, const kvd_h5_spec *spec, hid_t mem_type, const void *data,
                 kvd_err *err);

/*
 * Creates a dataset whose contiguous space is reserved immediately and filled later, such as
 * recorded Q, K and V. The caller must close *dataset with H5Dclose. No other part of the file
 * changes while the dataset is filled, so a killed process leaves the file readable.
 */
int kvd_h5_reserve(kvd_h5 *f, const kvd_h5_spec *spec, hid_t *dataset, kvd_err *err);

/*
 * Checks that dataset `path` exists with `rank` axes, and stores the length of each axis in dims
 * [rank].
 */
int kvd_h5_shape(kvd_h5 *f, const char *path, int rank, hsize_t *dims, kvd_err *err);
bool kvd_h5_exists(kvd_h5 *f, const char *path);

/*
 * Reads a complete dataset into `data`, converted to mem_type, after checking that its shape is
 * exactly `dims`. A number that mem_type cannot hold is an error. kvd_h5_read_finite also refuses
 * NaN and infinity, naming the position (mem_type must be H5T_NATIVE_DOUBLE).
 */
int kvd_h5_read(kvd_h5 *f, const char *path, int rank, const hsize_t *dims, hid_t mem_type,
                void *data, kvd_err *err);
int kvd_h5_read_finite(kvd_h5 *f, const char *path, int rank, const hsize_t *dims, double *data,
                       kvd_err *err);

/*
 * Read and write a slab (rectangular part) of a dataset, given by start[rank] and count[rank]. For
 * bfloat16, use the file type as mem_type and convert with common/half.h, because HDF5's conversion
 * is slow.
 */
int kvd_h5_read_slab(hid_t dataset, const char *name, int rank, const hsize_t *start,
                     const hsize_t *count, hid_t mem_type, void *data, kvd_err *err);
int kvd_h5_write_slab(hid_t dataset, const char *name, int rank, const hsize_t *start,
                      const hsize_t *count, hid_t mem_type, const void *data, kvd_err *err);

/*
 * Write and read attributes. `where` is "/" or the path of a dataset or a group; a missing group is
 * created. Writing an attribute again replaces its value, in place if the new one fits.
 */

int kvd_h5_put_text(kvd_h5 *f, const char *where, const char *name, const char *value,
                    kvd_err *err);
int kvd_h5_put_int(kvd_h5 *f, const char *where, const char *name, int64_t value, kvd_err *err);
int kvd_h5_put_double(kvd_h5 *f, const char *where, const char *name, double value, kvd_err *err);
/*
 * Reads a text attribute into *value, which the caller must free. A missing attribute is an error.
 */
int kvd_h5_get_text(kvd_h5 *f, const char *where, const char *name, char **value, kvd_err *err);
int kvd_h5_get_int(kvd_h5 *f, const char *where, const char *name, int64_t *value, kvd_err *err);
int kvd_h5_get_double(kvd_h5 *f, const char *where, const char *name, double *value, kvd_err *err);

/* ---- 16-bit float types --------------------------------------------- */

/*
 * Return the HDF5 types of 16-bit floats in a file. They are constants of the library; do not close
 * them.
 */
hid_t kvd_h5_type_f16(void);
hid_t kvd_h5_type_bf16(void);

#endif
