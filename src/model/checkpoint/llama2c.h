/* Reads llama2.c v0 exports: seven little-endian int32 dim, hidden_dim, n_layers, n_heads,
 * n_kv_heads, vocab_size (negative if the head is not tied), seq_len; then float32 tok_embeddings;
 * rms_att, wq, wk, wv, wo, rms_ffn, w1, w2, w3, each for all layers; rms_final; two unused RoPE
 * tables [seq_len][d_head/2]; an untied head.
 *
 * The format fixes norm_eps 1e-5, theta 10000 and interleaved RoPE. */
#ifndef KVD_MODEL_CHECKPOINT_LLAMA2C_H
#define KVD_MODEL_CHECKPOINT_LLAMA2C_H

#include "model/checkpoint/config.h"
#include "model/checkpoint/safetensors.h"

/* Reads the model's configuration from the file's header. Fails unless the file has exactly the
 * size that this configuration implies. */
int kvd_llama2c_parse(const char *name, const void *bytes, size_t len, kvd_config *c, kvd_err *err);

/* Finds the tensor with a Hugging Face name. Returns 1 if the model has no such tensor. */
int kvd_llama2c_find(const char *file, const void *bytes, const kvd_config *c, const char *name,
                     kvd_tensor *out);

#endif
