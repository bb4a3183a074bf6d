/*
 * Reads a model from a GGUF file: its configuration, and its tensors under the names that the
 * family has in Hugging Face checkpoints (family.h). Rows that the conversion to GGUF reordered
 * (queries and keys of llama, the three parts of Falcon's attention) are read in their original
 * order.
 */
#ifndef KVD_MODEL_CHECKPOINT_GGUF_MODEL_H
#define KVD_MODEL_CHECKPOINT_GGUF_MODEL_H

#include "model/checkpoint/config.h"
#include "model/checkpoint/gguf.h"

typedef struct kvd_gguf_model kvd_gguf_model;

/*
 * Opens the file `path` and fills *c. Returns NULL with *err on failure, also if the file holds a
 * tensor that a model of this configuration does not have.
 */
kvd_gguf_model *kvd_gguf_model_open(const char *path, kvd_config *c, kvd_err *err);
/*
 * Like kvd_gguf_model_open, for bytes in memory, which the caller must keep until close; `name` is
 * used in messages.
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

/* Returns true if the tensor belongs to the configuration: the divisors of RoPE's frequencies. */
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
