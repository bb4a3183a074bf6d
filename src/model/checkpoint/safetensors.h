/*
 * Reads one memory-mapped safetensors file: 8-byte little-endian header length, JSON header, data
 * (https://github.com/huggingface/safetensors). Opening a file checks the whole header. Data
 * offsets must be in range, without overlap or gap, and fit the shapes.
 */
#ifndef KVD_MODEL_CHECKPOINT_SAFETENSORS_H
#define KVD_MODEL_CHECKPOINT_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "model/checkpoint/tensor.h"

typedef struct kvd_safetensors kvd_safetensors;

/* A tensor as in a safetensors header, without its data offsets. */
typedef struct {
    const char *name;
    const char *dtype; /* "F32", "BF16", "I64", ... */
    int rank;
    size_t dims[KVD_TENSOR_RANK];
} kvd_tensor_spec;

/* Returns the number of bits of one element of this dtype, or 0 if the format has no such dtype. */
unsigned kvd_safetensors_bits(const char *dtype);

/*
 * Opens a file. On failure returns NULL and fills *err. Tensors of unsupported dtypes (I64,
 * F8_E4M3, ...) are checked and listed, but kvd_safetensors_find fails for them.
 */
kvd_safetensors *kvd_safetensors_open(const char *path, kvd_err *err);
/*
 * Opens a file from bytes, which the caller must keep until kvd_safetensors_close. Error messages
 * call the file `name`.
 */
kvd_safetensors *kvd_safetensors_parse(const char *name, const void *bytes, size_t len,
                                       kvd_err *err);
void kvd_safetensors_close(kvd_safetensors *s);

/*
 * These functions access tensors by an index. Tensors are sorted by name (strcmp). Their names are
 * valid until kvd_safetensors_close.
 */
size_t kvd_safetensors_count(const kvd_safetensors *s);
const char *kvd_safetensors_name(const kvd_safetensors *s, size_t i);
/*
 * Finds a tensor by name. Returns 0 and fills *out, 1 without a message if there is no such tensor,
 * or -1 with *err if its dtype is not supported.
 */
int kvd_safetensors_find(const kvd_safetensors *s, const char *name, kvd_tensor *out, kvd_err *err);

/*
 * Describes tensor i of any dtype as it is stored. *data becomes the address of its *bytes bytes.
 * The results are valid until kvd_safetensors_close.
 */
void kvd_safetensors_stored(const kvd_safetensors *s, size_t i, kvd_tensor_spec *spec,
                            const void **data, size_t *bytes);
/*
 * Finds the tensor by name and describes it as kvd_safetensors_stored does; *file becomes the path
 * of the file. Returns 0, or 1 if there is no such tensor.
 */
int kvd_safetensors_stored_of(const kvd_safetensors *s, const char *name, kvd_tensor_spec *spec,
                              const void **data, size_t *bytes, const char **file);
/*
 * Returns key i of the header's __metadata__ and stores its value, or returns NULL if there are at
 * most i keys.
 */
const char *kvd_safetensors_metadata(const kvd_safetensors *s, size_t i, const char **value);

/*
 * This interface writes one safetensors file, tensor after tensor, without buffering. The header
 * comes first, so all names, dtypes and shapes must be given before the data. As in the reference
 * writer, the header is padded to a multiple of 8 bytes, and tensors with larger elements come
 * first, so that every tensor is aligned.
 */

/* Returns the name of the data type in a safetensors file: "F32", "F16" or "BF16". */
const char *kvd_safetensors_dtype(kvd_dtype t);

/*
 * Comparison function for qsort of tensor specs, or of structs that begin with one: larger elements
 * first, then by name.
 */
int kvd_tensor_spec_order(const void *a, const void *b);

/*
 * Stores the bytes of a tensor's data in *bytes. Fails if the dtype is unknown, the size overflows,
 * or the bits of the tensor are not a multiple of 8.
 */
int kvd_tensor_spec_bytes(const kvd_tensor_spec *spec, size_t *bytes, kvd_err *err);

/* A {key, value} entry of __metadata__. A list of entries ends with key NULL. */
typedef const char *kvd_safetensors_note[2];

typedef struct kvd_safetensors_writer kvd_safetensors_writer;

/*
 * Creates `path`, which must not exist, and writes the header. On failure returns NULL and fills
 * *err.
 *
 *   spec [n]  tensors in the order of kvd_tensor_spec_order; borrowed until kvd_safetensors_finish
 *   notes     entries of __metadata__; NULL: none
 */
kvd_safetensors_writer *kvd_safetensors_create(const char *path, const kvd_tensor_spec *spec,
                                               size_t n, const kvd_safetensors_note *notes,
                                               kvd_err *err);

/*
 * Appends n bytes to the tensor `name`. If a tensor is incomplete, `name` must be that tensor, else
 * it must be the next tensor in the order of the header.
 */
int kvd_safetensors_append(kvd_safetensors_writer *w, const char *name, const void *bytes, size_t n,
                           kvd_err *err);

/*
 * Flushes the file to disk and frees the writer, also on failure. Fails if data of a tensor is
 * missing.
 */
int kvd_safetensors_finish(kvd_safetensors_writer *w, kvd_err *err);
/* Frees the writer and leaves an incomplete file. `w` may be NULL. */
void kvd_safetensors_abandon(kvd_safetensors_writer *w);

#endif
