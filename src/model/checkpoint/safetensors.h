/*
 * Reads one memory-mapped safetensors file: 8-byte little-endian header length, JSON header, data
 * (https://github.com/huggingface/safetensors). Before a tensor is returned, the whole header is
 * checked: its length against the file's size, JSON depth and types, unique names, offsets in
 * order, in range and without overlap or hole, and sizes equal to the product of shape and bytes of
 * dtype.
 */
#ifndef KVD_MODEL_CHECKPOINT_SAFETENSORS_H
#define KVD_MODEL_CHECKPOINT_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "model/checkpoint/tensor.h"

typedef struct kvd_safetensors kvd_safetensors;

/* Name, dtype and shape of a tensor as in the header, without its offsets. */
typedef struct {
    const char *name;
    const char *dtype; /* name in the format: "F32", "BF16", "I64", ... */
    int rank;
    size_t dims[KVD_TENSOR_RANK];
} kvd_tensor_spec;

/*
 * Returns the number of bits of one element of the dtype with this name in the format, or 0 if
 * there is no such dtype.
 */
unsigned kvd_safetensors_bits(const char *dtype);

/*
 * Opens the file `path`. Returns NULL with *err on failure. Tensors of dtypes that kvd_dtype lacks
 * (I64, F8_E4M3, ...) are checked and listed, but kvd_safetensors_find fails on them, naming the
 * tensor and its dtype.
 */
kvd_safetensors *kvd_safetensors_open(const char *path, kvd_err *err);
/*
 * Opens a safetensors file as kvd_safetensors_open does, from bytes in memory (fuzzing, tests),
 * which the caller must keep until close. Messages call the file `name`.
 */
kvd_safetensors *kvd_safetensors_parse(const char *name, const void *bytes, size_t len,
                                       kvd_err *err);
void kvd_safetensors_close(kvd_safetensors *s);

/*
 * Return the number of tensors, and the name of tensor i. Names are sorted (strcmp) and valid until
 * close.
 */
size_t kvd_safetensors_count(const kvd_safetensors *s);
const char *kvd_safetensors_name(const kvd_safetensors *s, size_t i);
/*
 * Finds a tensor by name. Returns 0 and fills *out, 1 without a message if there is no such tensor,
 * or -1 with *err if its dtype is not supported.
 */
int kvd_safetensors_find(const kvd_safetensors *s, const char *name, kvd_tensor *out, kvd_err *err);

/* Describes tensor i as it is stored, whatever its dtype. The results are valid until close. */
void kvd_safetensors_stored(const kvd_safetensors *s, size_t i, kvd_tensor_spec *spec,
                            const void **data, size_t *bytes);
/*
 * Describes the tensor `name` as kvd_safetensors_stored does; *file becomes the path of the file.
 * Returns 0, or 1 if there is no such tensor.
 */
int kvd_safetensors_stored_of(const kvd_safetensors *s, const char *name, kvd_tensor_spec *spec,
                              const void **data, size_t *bytes, const char **file);
/* Returns key i of __metadata__ and its value, or NULL if i is beyond the last key. */
const char *kvd_safetensors_metadata(const kvd_safetensors *s, size_t i, const char **value);

/*
 * Writes one safetensors file, tensor after tensor, holding no more in memory than the caller's
 * current piece. The header comes first in the file, so all names, dtypes and shapes must be given
 * before the first byte of data. As the reference writer does, it pads the header to a multiple of
 * 8 bytes and orders tensors by kvd_tensor_spec_order, so that every tensor is aligned to its
 * elements.
 */

/* Returns the format's name of a dtype: "F32", "F16" or "BF16". */
const char *kvd_safetensors_dtype(kvd_dtype t);

/*
 * Comparison function for qsort that orders tensor specs, or structs that begin with one: widest
 * elements first, then by name.
 */
int kvd_tensor_spec_order(const void *a, const void *b);

/*
 * Computes the bytes of the tensor's data. Fails on an unknown dtype, a size that overflows, and a
 * number of bits that is not a whole number of bytes.
 */
int kvd_tensor_spec_bytes(const kvd_tensor_spec *spec, size_t *bytes, kvd_err *err);

/* A {key, value} entry of the file's __metadata__. A list of entries ends with key NULL. */
typedef const char *kvd_safetensors_note[2];

typedef struct kvd_safetensors_writer kvd_safetensors_writer;

/*
 * Creates `path`, which must not exist, and writes the header. Returns NULL with *err on failure.
 *
 *   spec [n]  the tensors, in the order of kvd_tensor_spec_order, in which their data must then be
 *             appended; borrowed until kvd_safetensors_finish
 *   notes     entries of __metadata__; NULL: none
 *
 * Fails if kvd_tensor_spec_bytes fails, if a name is given twice, empty or "__metadata__", and if
 * tensors are out of order.
 */
kvd_safetensors_writer *kvd_safetensors_create(const char *path, const kvd_tensor_spec *spec,
                                               size_t n, const kvd_safetensors_note *notes,
                                               kvd_err *err);

/*
 * Appends `n` bytes of data of the tensor `name`, which must be the next tensor or the one that is
 * not yet complete. A piece may have any size but belongs to one tensor.
 */
int kvd_safetensors_append(kvd_safetensors_writer *w, const char *name, const void *bytes, size_t n,
                           kvd_err *err);

/*
 * Flushes the file to disk and frees w, on failure too. Fails if tensors are missing or a write
 * failed.
 */
int kvd_safetensors_finish(kvd_safetensors_writer *w, kvd_err *err);
/* Frees w and leaves the unfinished file. NULL is allowed. */
void kvd_safetensors_abandon(kvd_safetensors_writer *w);

#endif
