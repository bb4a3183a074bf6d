/*
 * Reads one memory-mapped safetensors file: 8-byte little-endian header length, JSON header, data
 * (https://github.com/huggingface/safetensors). Before a tensor is returned, the whole header is
 * checked: its length against the file's size, JSON depth and types, unique names, and data offsets
 * in order, in range and without overlap or gap. The size of each tensor must equal the product of
 * its shape and the bytes of its dtype.
 */
#ifndef KVD_MODEL_CHECKPOINT_SAFETENSORS_H
#define KVD_MODEL_CHECKPOINT_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "model/checkpoint/tensor.h"

typedef struct kvd_safetensors kvd_safetensors;

/* Name, dtype and shape of a tensor as in a safetensors header, without its data offsets. */
typedef struct {
    const char *name;
    const char *dtype; /* name of the dtype in the format: "F32", "BF16", "I64", ... */
    int rank;
    size_t dims[KVD_TENSOR_RANK];
} kvd_tensor_spec;

/*
 * Returns the number of bits of one element of the dtype that the format calls `dtype`, or 0 if
 * there is no such dtype.
 */
unsigned kvd_safetensors_bits(const char *dtype);

/*
 * Opens the safetensors file `path`. On failure returns NULL and fills *err. Tensors of dtypes that
 * kvdim cannot compute with (I64, F8_E4M3, ...) are checked and listed, but kvd_safetensors_find
 * fails on them, naming the tensor and its dtype.
 */
kvd_safetensors *kvd_safetensors_open(const char *path, kvd_err *err);
/*
 * Opens a safetensors file from bytes in memory (for fuzzing and tests), as kvd_safetensors_open
 * does from a path. The caller must keep the bytes until kvd_safetensors_close. Error messages call
 * the file `name`.
 */
kvd_safetensors *kvd_safetensors_parse(const char *name, const void *bytes, size_t len,
                                       kvd_err *err);
void kvd_safetensors_close(kvd_safetensors *s);

/*
 * kvd_safetensors_count returns the number of tensors, kvd_safetensors_name the name of tensor i.
 * Names are sorted (strcmp) and valid until kvd_safetensors_close.
 */
size_t kvd_safetensors_count(const kvd_safetensors *s);
const char *kvd_safetensors_name(const kvd_safetensors *s, size_t i);
/*
 * Finds a tensor of the file by name. Returns 0 and fills *out, 1 without a message if there is no
 * such tensor, or -1 with *err if its dtype is not supported.
 */
int kvd_safetensors_find(const kvd_safetensors *s, const char *name, kvd_tensor *out, kvd_err *err);

/*
 * Describes tensor i of any dtype as it is stored: *spec, and its `bytes` bytes at *data. The
 * results are valid until kvd_safetensors_close.
 */
void kvd_safetensors_stored(const kvd_safetensors *s, size_t i, kvd_tensor_spec *spec,
                            const void **data, size_t *bytes);
/*
 * Describes the tensor `name` as kvd_safetensors_stored does, and sets *file to the path of the
 * file. Returns 0, or 1 if there is no such tensor.
 */
int kvd_safetensors_stored_of(const kvd_safetensors *s, const char *name, kvd_tensor_spec *spec,
                              const void **data, size_t *bytes, const char **file);
/*
 * Returns key i of the header's __metadata__ and stores its value in *value. Returns NULL if there
 * are at most i keys.
 */
const char *kvd_safetensors_metadata(const kvd_safetensors *s, size_t i, const char **value);

/*
 * Writes one safetensors file, tensor after tensor. It buffers no tensor data beyond the bytes that
 * the caller passes. The header comes first in the file, so all names, dtypes and shapes must be
 * given before the first byte of data. As in the reference writer, the header is padded to a
 * multiple of 8 bytes and tensors are ordered by kvd_tensor_spec_order, so that every tensor is
 * aligned to its elements.
 */

/* Returns the name that the safetensors format has for a dtype: "F32", "F16" or "BF16". */
const char *kvd_safetensors_dtype(kvd_dtype t);

/*
 * Comparison function for qsort that orders tensor specs, or structs that begin with one: larger
 * elements first, then by name.
 */
int kvd_tensor_spec_order(const void *a, const void *b);

/*
 * Computes the size in bytes of a tensor's data. Fails if the dtype is unknown, the size overflows,
 * or the number of bits is not a multiple of 8.
 */
int kvd_tensor_spec_bytes(const kvd_tensor_spec *spec, size_t *bytes, kvd_err *err);

/*
 * A {key, value} entry of a safetensors file's __metadata__. A list of entries ends with key NULL.
 */
typedef const char *kvd_safetensors_note[2];

typedef struct kvd_safetensors_writer kvd_safetensors_writer;

/*
 * Creates the safetensors file `path`, which must not exist, and writes the header. On failure
 * returns NULL and fills *err.
 *
 *   spec [n]  the tensors, in the order of kvd_tensor_spec_order; their data must be appended in
 *             the same order. Borrowed until kvd_safetensors_finish
 *   notes     entries of __metadata__; NULL: none
 *
 * Fails if kvd_tensor_spec_bytes fails, if a name is empty, "__metadata__" or given twice, or if
 * tensors are out of order.
 */
kvd_safetensors_writer *kvd_safetensors_create(const char *path, const kvd_tensor_spec *spec,
                                               size_t n, const kvd_safetensors_note *notes,
                                               kvd_err *err);

/*
 * Appends `n` bytes to the data of the tensor `name`. It must be the tensor that is not yet
 * complete, or the next one in the order of the header. One call may append any number of bytes,
 * but of one tensor only.
 */
int kvd_safetensors_append(kvd_safetensors_writer *w, const char *name, const void *bytes, size_t n,
                           kvd_err *err);

/*
 * Flushes the file to disk and frees the writer w, also on failure. Fails if data of a tensor is
 * missing or a write failed.
 */
int kvd_safetensors_finish(kvd_safetensors_writer *w, kvd_err *err);
/* Frees the writer and leaves an incomplete file. w may be NULL. */
void kvd_safetensors_abandon(kvd_safetensors_writer *w);

#endif
