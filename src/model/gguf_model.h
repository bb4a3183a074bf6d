/*
 * A model in a GGUF file: its configuration, and its tensors under the names that the family
 * has in Hugging Face checkpoints (family.h). Rows that the conversion to GGUF moved (queries and
 * keys of llama, the three parts of Falcon's attention) are handed out in their first order.
 */
#ifndef KVD_MODEL_GGUF_MODEL_H
#define KVD_MODEL_GGUF_MODEL_H

#include "model/config.h"
#include "model/gguf.h"

typedef struct kvd_gguf_model kvd_gguf_model;

/* Refuses a tensor that a model of this configuration does not have. */
kvd_gguf_model *kvd_gguf_model_open(const char *path, kvd_config *c, kvd_err *err);
/* Over memory that outlives the result; `name` is for messages. */
kvd_gguf_model *kvd_gguf_model_parse(const char *name, const void *bytes, size_t len, kvd_config *c,
                                     kvd_err *err);
void kvd_gguf_model_close(kvd_gguf_model *m);

/* The tensors that are parts of the model, in the order of the file; names are valid until close. */
size_t kvd_gguf_model_count(const kvd_gguf_model *m);
const char *kvd_gguf_model_name(const kvd_gguf_model *m, size_t i);

/* 0 and *out filled; 1 when there is no such tensor (no message); -1 on a type that we cannot use. */
int kvd_gguf_model_find(const kvd_gguf_model *m, const char *name, kvd_tensor *out, kvd_err *err);

/* Whether the file holds a tokenizer. */
bool kvd_gguf_model_has_tokenizer(const kvd_gguf_model *m);

#endif
