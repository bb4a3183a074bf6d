/* Reads a memory-mapped safetensors file (https://github.com/huggingface/safetensors). Opening
 * checks the header. */
#ifndef KVD_MODEL_CHECKPOINT_SAFETENSORS_H
#define KVD_MODEL_CHECKPOINT_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "model/checkpoint/tensor.h"

typedef struct kvd_safetensors kvd_safetensors;

/* name, type and shape of a tensor in a safetensors header */
typedef struct {
    const char *name;
    const char *dtype; /* "F32", "BF16", "I64", ... */
    int rank;
    size_t dims[KVD_TENSOR_RANK];
} kvd_tensor_spec;

/* Returns how many bits an element of a safetensors data type takes, or 0 if the type is
 * unknown. */
unsigned kvd_safetensors_bits(const char *dtype);

/* Opens a safetensors file and lists its tensors, of all data types. */
kvd_safetensors *kvd_safetensors_open(const char *path, kvd_err *err);
/* Opens a safetensors file in memory. Its bytes must stay valid. `name` is for messages. */
kvd_safetensors *kvd_safetensors_parse(const char *name, const void *bytes, size_t len,
                                       kvd_err *err);
void kvd_safetensors_close(kvd_safetensors *s);

/* Return the number of tensors, and the name of tensor i in alphabetical order. */
size_t kvd_safetensors_count(const kvd_safetensors *s);
const char *kvd_safetensors_name(const kvd_safetensors *s, size_t i);
/* Finds a tensor by name. Returns 1 if there is none, -1 if its data type is not supported. */
int kvd_safetensors_find(const kvd_safetensors *s, const char *name, kvd_tensor *out, kvd_err *err);

/* Describes tensor i in *spec. *data receives the address of the tensor's data, valid until
 * kvd_safetensors_close, and *bytes the size of the data. */
void kvd_safetensors_stored(const kvd_safetensors *s, size_t i, kvd_tensor_spec *spec,
                            const void **data, size_t *bytes);
/* Describes the tensor `name` in *spec. *file receives the path of its safetensors file. Returns 1
 * if there is no such tensor. */
int kvd_safetensors_stored_of(const kvd_safetensors *s, const char *name, kvd_tensor_spec *spec,
                              const void **data, size_t *bytes, const char **file);
/* Returns key i of the file's __metadata__, with its value in *value, or NULL if i is too large. */
const char *kvd_safetensors_metadata(const kvd_safetensors *s, size_t i, const char **value);

/* Returns the name of a data type: "F32", "F16" or "BF16". */
const char *kvd_safetensors_dtype(kvd_dtype t);

/* Compares two kvd_tensor_spec for qsort: data types with more bits first, then names. */
int kvd_tensor_spec_order(const void *a, const void *b);

/* Computes how many bytes a tensor takes. Fails if its data type is unknown or the number
 * overflows. */
int kvd_tensor_spec_bytes(const kvd_tensor_spec *spec, size_t *bytes, kvd_err *err);

/* entry {key, value} of __metadata__; a key of NULL ends a list */
typedef const char *kvd_safetensors_note[2];

typedef struct kvd_safetensors_writer kvd_safetensors_writer;

/* Creates a file and writes its header.
 *
 * spec [n]  in the order of kvd_tensor_spec_order; borrowed until kvd_safetensors_finish
 * notes     entries of __metadata__, or NULL */
kvd_safetensors_writer *kvd_safetensors_create(const char *path, const kvd_tensor_spec *spec,
                                               size_t n, const kvd_safetensors_note *notes,
                                               kvd_err *err);

/* Appends n bytes to a tensor. Tensors must be written in the header's order. */
int kvd_safetensors_append(kvd_safetensors_writer *w, const char *name, const void *bytes, size_t n,
                           kvd_err *err);

/* Flushes the file to disk and frees the writer. Fails if a tensor is not completely written. */
int kvd_safetensors_finish(kvd_safetensors_writer *w, kvd_err *err);
/* Frees the writer, which may be NULL, and leaves the file incomplete. */
void kvd_safetensors_abandon(kvd_safetensors_writer *w);

#endif
