/*
 * Reads one memory-mapped GGUF file: named values, then tensors
 * (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md). Versions 2 and 3, little-endian.
 * Before a value or a tensor is returned, everything is checked: counts and lengths against the
 * file's size, types, unique names, and tensors stored one after another in the order of the list,
 * with nothing but alignment padding between them, as llama.cpp requires.
 */
#ifndef KVD_MODEL_CHECKPOINT_GGUF_H
#define KVD_MODEL_CHECKPOINT_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "model/checkpoint/config.h"
#include "model/checkpoint/tensor.h"

enum { KVD_GGUF_NAME = 64 }; /* bytes of a tensor's name, including its zero */

typedef struct kvd_gguf kvd_gguf;

kvd_gguf *kvd_gguf_open(const char *path, kvd_err *err);
/*
 * Opens a GGUF file as kvd_gguf_open does, from bytes in memory, which the caller must keep until
 * close. Messages call the file `name`.
 */
kvd_gguf *kvd_gguf_parse(const char *name, const void *bytes, size_t len, kvd_err *err);
void kvd_gguf_close(kvd_gguf *g);

const char *kvd_gguf_path(const kvd_gguf *g);

/* ---- named values -------------------------------------------------------------------------- */

/*
 * Each function looks up a named value. It returns 0 if the key is found, 1 without a message if
 * there is no such key, and -1 with *err if the value has another type.
 */

/* Looks up an integer of any width. */
int kvd_gguf_whole(const kvd_gguf *g, const char *key, int64_t *out, kvd_err *err);
/* Looks up a real number stored as f32 or f64. */
int kvd_gguf_real(const kvd_gguf *g, const char *key, double *out, kvd_err *err);
int kvd_gguf_bool(const kvd_gguf *g, const char *key, bool *out, kvd_err *err);
/* Looks up a string, which may hold any bytes and is not zero-terminated. */
int kvd_gguf_text(const kvd_gguf *g, const char *key, const char **s, size_t *len, kvd_err *err);

/* Iterator over a list of values. A zeroed iterator is at its end. */
typedef struct {
    const unsigned char *at;
    uint32_t type;
    size_t left;
} kvd_gguf_list;

int kvd_gguf_texts(const kvd_gguf *g, const char *key, kvd_gguf_list *list, kvd_err *err);
int kvd_gguf_wholes(const kvd_gguf *g, const char *key, kvd_gguf_list *list, kvd_err *err);
int kvd_gguf_reals(const kvd_gguf *g, const char *key, kvd_gguf_list *list, kvd_err *err);
/*
 * Return the next item of the list, whose items have the type of the function's name, or false at
 * the end.
 */
bool kvd_gguf_next_text(kvd_gguf_list *list, const char **s, size_t *len);
bool kvd_gguf_next_whole(kvd_gguf_list *list, int64_t *out);
bool kvd_gguf_next_real(kvd_gguf_list *list, double *out);

/* ---- tensors of the file ------------------------------------------------------------------- */

size_t kvd_gguf_count(const kvd_gguf *g);
/* Returns the name of tensor i, in the order of the file; valid until close. */
const char *kvd_gguf_name(const kvd_gguf *g, size_t i);
/* Returns the index of a tensor, or kvd_gguf_count if there is none of that name. */
size_t kvd_gguf_find(const kvd_gguf *g, const char *name);
/*
 * Fills *out with tensor i, its dimensions as [rows][columns]. Returns -1 with *err if its type is
 * not supported.
 */
int kvd_gguf_tensor(const kvd_gguf *g, size_t i, kvd_tensor *out, kvd_err *err);

/*
 * Reads a model from a GGUF file: its configuration, and its tensors under the names that the
 * family has in Hugging Face checkpoints (family.h). Rows that the conversion to GGUF reordered
 * (queries and keys of llama, the three parts of Falcon's attention) are read in their original
 * order.
 */

typedef struct kvd_gguf_model kvd_gguf_model;

/*
 * Opens the file `path` and fills *c. Returns NULL with *err on failure, also if the file holds a
 * tensor that a model of this configuration does not have.
 */
kvd_gguf_model *kvd_gguf_model_open(const char *path, kvd_config *c, kvd_err *err);
/*
 * Opens a GGUF model as kvd_gguf_model_open does, from bytes in memory, which the caller must keep
 * until close. Messages call the file `name`.
 */
kvd_gguf_model *kvd_gguf_model_parse(const char *name, const void *bytes, size_t len, kvd_config *c,
                                     kvd_err *err);
void kvd_gguf_model_close(kvd_gguf_model *m);

/*
 * Return the number of tensors that are parts of the model, and the name of tensor i in the order
 * of the file; names are valid until close.
 */
size_t kvd_gguf_model_count(const kvd_gguf_model *m);
const char *kvd_gguf_model_name(const kvd_gguf_model *m, size_t i);

/*
 * Finds a tensor by its Hugging Face name. Returns 0 and fills *out, 1 without a message if there
 * is no such tensor, or -1 with *err if its type is not supported.
 */
int kvd_gguf_model_find(const kvd_gguf_model *m, const char *name, kvd_tensor *out, kvd_err *err);

/* Returns true if the file holds a tokenizer. */
bool kvd_gguf_model_has_tokenizer(const kvd_gguf_model *m);

/* Reads the configuration of a GGUF file by rebuilding the config.json of its model. */

/*
 * Returns true if the tensor is a part of the configuration rather than a weight: the divisors of
 * RoPE's frequencies.
 */
bool kvd_gguf_is_setting(const char *tensor);

/*
 * Fills *c from a GGUF file of the architectures llama (Llama, Mistral, Yi, Mixtral), qwen2, qwen3,
 * qwen2moe, qwen3moe, gpt-oss, phi3 and falcon. The values are renamed to the keys of config.json
 * and read as config.h reads them, so sizes and ranges have the checks of config.json, and messages
 * use its names. Returns 0, or -1 with *err.
 *
 * Also refuses models in several files, experts, scales and windows that the family does not have,
 * partial RoPE, and key and value heads of different sizes.
 */
int kvd_gguf_config(const kvd_gguf *g, kvd_config *c, kvd_err *err);

#endif
