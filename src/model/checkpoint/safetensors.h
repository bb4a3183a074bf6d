/*
 * Reads one memory-mapped safetensors file (https://github.com/huggingface/safetensors): 8-byte
 * little-endian header length, JSON header, data without overlap or gap. Opening checks the header.
 */
#ifndef KVD_MODEL_CHECKPOINT_SAFETENSORS_H
#define KVD_MODEL_CHECKPOINT_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "model/checkpoint/tensor.h"

typedef struct kvd_safetensors kvd_safetensors;

/* Description of a tensor in a safetensors header, without its position in the file. */
typedef struct {
    const char *name;
    const char *dtype; /* "F32", "BF16", "I64", ... */
    int rank;
    size_t dims[KVD_TENSOR_RANK];
} kvd_tensor_spec;

/* Returns the number of bits of one element, or 0 for an unknown dtype. */
unsigned kvd_safetensors_bits(const char *dtype);

/*
 * Opens a safetensors file and lists its tensors of all data types. On failure returns NULL and
 * fills *err.
 */
kvd_safetensors *kvd_safetensors_open(const char *path, kvd_err *err);
/*
 * Opens a safetensors file from bytes in memory, which must stay valid. `name` is used in messages.
 */
kvd_safetensors *kvd_safetensors_parse(const char *name, const void *bytes, size_t len,
                                       kvd_err *err);
void kvd_safetensors_close(kvd_safetensors *s);

/*
 * Return the number of tensors, and the name of tensor i in the order of names. Names are valid
 * until kvd_safetensors_close.
 */
size_t kvd_safetensors_count(const kvd_safetensors *s);
const char *kvd_safetensors_name(const kvd_safetensors *s, size_t i);
/*
 * Finds a tensor by name. Returns 1 if there is none, -1 with *err if its data type is not
 * supported.
 */
int kvd_safetensors_find(const kvd_safetensors *s, const char *name, kvd_tensor *out, kvd_err *err);

/*
 * Describes tensor i, of any data type, in *spec. *data receives the address of its *bytes bytes,
 * which is valid until kvd_safetensors_close.
 */
void kvd_safetensors_stored(const kvd_safetensors *s, size_t i, kvd_tensor_spec *spec,
                            const void **data, size_t *bytes);
/*
 * Describes the tensor `name`. *file receives the path of the file that holds it. Returns 1 if
 * there is none.
 */
int kvd_safetensors_stored_of(const kvd_safetensors *s, const char *name, kvd_tensor_spec *spec,
                              const void **data, size_t *bytes, const char **file);
/*
 * Returns key number i of __metadata__ in the header, and its value in *value, or NULL if there are
 * fewer keys.
 */
const char *kvd_safetensors_metadata(const kvd_safetensors *s, size_t i, const char **value);

/*
 * ---- Writing of a safetensors file, tensor after tensor, in the order of kvd_tensor_spec_order
 * ----
 */

/* Returns the name of a data type: "F32", "F16" or "BF16". */
const char *kvd_safetensors_dtype(kvd_dtype t);

/* Compares tensors for qsort: data types with more bits first, then by name. */
int kvd_tensor_spec_order(const void *a, const void *b);

/*
 * Computes the number of bytes of a tensor. Fails for unknown data types, on overflow, and if the
 * size is not a whole number of bytes.
 */
int kvd_tensor_spec_bytes(const kvd_tensor_spec *spec, size_t *bytes, kvd_err *err);

/* Entry {key, value} of __metadata__ in a safetensors file. A key of NULL ends a list. */
typedef const char *kvd_safetensors_note[2];

typedef struct kvd_safetensors_writer kvd_safetensors_writer;

/*
 * Creates a new file and writes its header. On failure returns NULL and fills *err.
 *
 *   spec [n]  in the order of kvd_tensor_spec_order; borrowed until kvd_safetensors_finish
 *   notes     entries of __metadata__, or NULL
 */
kvd_safetensors_writer *kvd_safetensors_create(const char *path, const kvd_tensor_spec *spec,
                                               size_t n, const kvd_safetensors_note *notes,
                                               kvd_err *err);

/* Appends n bytes to the data of a tensor. Tensors must be written in the order of the header. */
int kvd_safetensors_append(kvd_safetensors_writer *w, const char *name, const void *bytes, size_t n,
                           kvd_err *err);

/*
 * Flushes the safetensors file to disk and frees the writer. Fails if data of a tensor are missing.
 */
int kvd_safetensors_finish(kvd_safetensors_writer *w, kvd_err *err);
/* Frees the writer, which may be NULL. The file stays incomplete. */
void kvd_safetensors_abandon(kvd_safetensors_writer *w);

#endif
