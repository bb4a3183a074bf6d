/*
 * llama2.c v0 ("legacy") exports: seven little-endian int32 (dim, hidden_dim, n_layers, n_heads,
 * n_kv_heads, vocab_size - negative when the head is not tied -, seq_len), then float32 tensors:
 * tok_embeddings, per kind over all layers rms_att, wq, wk, wv, wo, rms_ffn, w1, w2, w3, then
 * rms_final, two unused RoPE tables [seq_len][d_head/2], and the head when it is not tied.
 * norm_eps 1e-5, theta 10000, interleaved RoPE, d_head = dim / n_heads are fixed by that format.
 */
#ifndef KVD_MODEL_LLAMA2C_H
#define KVD_MODEL_LLAMA2C_H

#include "model/config.h"
#include "model/safetensors.h"

/* Checks the header and that the file's size is exactly what it implies. Fills *c; bos_id 1 and
 * eos_id 2 are what llama2.c assumes. */
int kvd_llama2c_parse(const char *name, const void *bytes, size_t len, kvd_config *c, kvd_err *err);

/* Fills *out for a Hugging Face name ("model.layers.3.self_attn.q_proj.weight"; with a tied head
 * lm_head.weight is the embedding); 1 when the format has no such tensor. bytes and c as accepted
 * by kvd_llama2c_parse; out->name is the caller's `name`, out->file is `file`. */
int kvd_llama2c_find(const char *file, const void *bytes, const kvd_config *c, const char *name,
                     kvd_tensor *out);

#endif
