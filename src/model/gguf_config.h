/* The configuration in a GGUF file, as the config.json that its model had. */
#ifndef KVD_MODEL_GGUF_CONFIG_H
#define KVD_MODEL_GGUF_CONFIG_H

#include "model/config.h"
#include "model/gguf.h"

/* Tensors that belong to the configuration: divisors of RoPE's frequencies. */
bool kvd_gguf_is_setting(const char *tensor);

/*
 * Architectures llama (Llama, Mistral, Yi), qwen2, qwen3, phi3 and falcon. The values are put into the
 * words of config.json and read as such (config.h), so sizes and ranges are checked in the same way
 * and messages have these words.
 *
 * Refuses, besides: models in several files, experts, scales and windows that the family does not
 * have, partial RoPE, key and value heads of different sizes.
 */
int kvd_gguf_config(const kvd_gguf *g, kvd_config *c, kvd_err *err);

#endif
