/*
 * Reads llama2.c v0 ("legacy") exports. The file starts with seven little-endian int32: dim,
 * hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size (negative if the output head is not tied to
 * the embedding), seq_len. Then come float32 tensors: tok_embeddings; rms_att, wq, wk, wv, wo,
 * rms_ffn, w1, w2 and w3, each for all layers; rms_final; two unused RoPE tables
 * [seq_len][d_head/2]; and the output head if it is not tied. The format fixes norm_eps 1e-5, theta
 * 10000, interleaved RoPE and d_head = dim / n_heads.
 */
#ifndef KVD_MODEL_CHECKPOINT_LLAMA2C_H
#define KVD_MODEL_CHECKPOINT_LLAMA2C_H

#include "model/checkpoint/config.h"
#include "model/checkpoint/safetensors.h"

/*
 * Reads the header of a llama2.c file into *c, and fails unless the file has exactly the size that
 * the header implies. Sets bos_id to 1 and eos_id to 2. Returns 0, or -1 with *err.
 */
int kvd_llama2c_parse(const char *name, const void *bytes, size_t len, kvd_config *c, kvd_err *err);

/*
 * Finds a tensor by its Hugging Face name. Returns 0, or 1 if the format has no such tensor. If the
 * output head is tied, lm_head.weight is the embedding. kvd_llama2c_parse must have accepted
 * `bytes` and filled `c`. out->name is the caller's `name`, and out->file is `file`.
 */
int kvd_llama2c_find(const char *file, const void *bytes, const kvd_config *c, const char *name,
                     kvd_tensor *out);

#endif
