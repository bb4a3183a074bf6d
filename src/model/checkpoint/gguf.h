/*
 * Reads one memory-mapped GGUF file, versions 2 and 3, little-endian: named values, then tensors
 * (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md). Opening a file checks all counts,
 * lengths, types and names. As llama.cpp requires, tensors must follow one another in the order of
 * their list, with only alignment padding between them.
 */
#ifndef KVD_MODEL_CHECKPOINT_GGUF_H
#define KVD_MODEL_CHECKPOINT_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "model/checkpoint/config.h"
#include "model/checkpoint/tensor.h"

enum { KVD_GGUF_NAME = 64 }; /* bytes of a tensor's name, including the terminating zero */

typedef struct kvd_gguf kvd_gguf;

kvd_gguf *kvd_gguf_open(const char *path, kvd_err *err);
/*
 * Opens a GGUF file from bytes, which the caller must keep until kvd_gguf_close. Error messages
 * call the file `name`.
 */
kvd_gguf *kvd_gguf_parse(const char *name, const void *bytes, size_t len, kvd_err *err);
void kvd_gguf_close(kvd_gguf *g);

const char *kvd_gguf_path(const kvd_gguf *g);

/*
 * Looking up a key: each function returns 0 if the key is found, 1 without a message if there is no
 * such key, and -1 with *err if the value has another type.
 */

/* Reads an integer of any integer type. */
int kvd_gguf_whole(const kvd_gguf *g, const char *key, int64_t *out, kvd_err *err);
/* Reads a number of type f32 or f64. */
int kvd_gguf_real(const kvd_gguf *g, const char *key, double *out, kvd_err *err);
int kvd_gguf_bool(const kvd_gguf *g, const char *key, bool *out, kvd_err *err);
/* Finds a text, which may contain any bytes and is not zero-terminated. */
int kvd_gguf_text(const kvd_gguf *g, const char *key, const char **s, size_t *len, kvd_err *err);

/* Iterator over the items of a list value. An iterator of all zeros is at the end of its list. */
typedef struct {
    const unsigned char *at;
    uint32_t type;
    size_t left;
} kvd_gguf_list;

int kvd_gguf_texts(const kvd_gguf *g, const char *key, kvd_gguf_list *list, kvd_err *err);
int kvd_gguf_wholes(const kvd_gguf *g, const char *key, kvd_gguf_list *list, kvd_err *err);
int kvd_gguf_reals(const kvd_gguf *g, const char *key, kvd_gguf_list *list, kvd_err *err);
/*
 * Each of the functions kvd_gguf_next_* stores the list's next item in its outputs and returns
 * true. At the end of the list it returns false. The items must have the type that the function's
 * name gives.
 */
bool kvd_gguf_next_text(kvd_gguf_list *list, const char **s, size_t *len);
bool kvd_gguf_next_whole(kvd_gguf_list *list, int64_t *out);
bool kvd_gguf_next_real(kvd_gguf_list *list, double *out);

size_t kvd_gguf_count(const kvd_gguf *g);
/* Returns the name of tensor i in the order of the file. The name is valid until kvd_gguf_close. */
const char *kvd_gguf_name(const kvd_gguf *g, size_t i);
/* Returns the index of the tensor `name`, or kvd_gguf_count if there is none. */
size_t kvd_gguf_find(const kvd_gguf *g, const char *name);
/*
 * Fills *out with tensor i, whose dimensions are [rows][columns]. Returns -1 with *err if its type
 * is not supported.
 */
int kvd_gguf_tensor(const kvd_gguf *g, size_t i, kvd_tensor *out, kvd_err *err);

/*
 * A model in a GGUF file: its configuration, and its tensors under their Hugging Face names
 * (family.h). The conversion to GGUF changes the order of some matrix rows; they are read in their
 * original order.
 */

typedef struct kvd_gguf_model kvd_gguf_model;

/*
 * Fills *c with the model's configuration. On failure returns NULL and fills *err. Also fails if
 * the file has a tensor that a model of this configuration does not have.
 */
kvd_gguf_model *kvd_gguf_model_open(const char *path, kvd_config *c, kvd_err *err);
/*
 * Opens a model from bytes, which the caller must keep until kvd_gguf_model_close. Error messages
 * call the file `name`.
 */
kvd_gguf_model *kvd_gguf_model_parse(const char *name, const void *bytes, size_t len, kvd_config *c,
                                     kvd_err *err);
void kvd_gguf_model_close(kvd_gguf_model *m);

/*
 * kvd_gguf_model_count returns the number of weights. kvd_gguf_model_name returns the Hugging Face
 * name of the i-th weight in the order of the file. The name is valid until kvd_gguf_model_close.
 */
size_t kvd_gguf_model_count(const kvd_gguf_model *m);
const char *kvd_gguf_model_name(const kvd_gguf_model *m, size_t i);

/*
 * Finds a tensor; `name` is a Hugging Face name. Returns 0 and fills *out, 1 without a message if
 * there is no such tensor, or -1 with *err if its type is not supported.
 */
int kvd_gguf_model_find(const kvd_gguf_model *m, const char *name, kvd_tensor *out, kvd_err *err);

bool kvd_gguf_model_has_tokenizer(const kvd_gguf_model *m);

/*
 * Returns true if the tensor holds divisors of RoPE's frequencies. Such a tensor is read as a part
 * of the configuration, not as a weight.
 */
bool kvd_gguf_is_setting(const char *tensor);

/*
 * Fills *c from the values of a GGUF file. The values are first renamed to the keys of config.json,
 * so messages use these names. Returns 0, or -1 with *err. Fails for models in several files, and
 * for features that the reader of the architecture does not support.
 */
int kvd_gguf_config(const kvd_gguf *g, kvd_config *c, kvd_err *err);

#endif
