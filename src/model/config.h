/* The shape of a model, read from config.json or from a llama2.c header. */
#ifndef KVD_MODEL_CONFIG_H
#define KVD_MODEL_CONFIG_H

#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"

typedef enum {
    KVD_ROPE_HALF,       /* Hugging Face: dimension i pairs with i + d_head/2   */
    KVD_ROPE_INTERLEAVED /* llama2.c, Meta: dimension 2i pairs with 2i + 1      */
} kvd_rope_layout;

typedef enum {
    KVD_ROPE_DEFAULT, /* theta alone                                               */
    KVD_ROPE_LINEAR,  /* positions divided by rope_factor                          */
    KVD_ROPE_LLAMA3   /* Llama 3.1: low frequencies divided, middle ones blended   */
} kvd_rope_scaling;

enum { KVD_CONFIG_MAX_SIZE = 1 << 24 }; /* of any size below, and of n_heads * d_head */

typedef struct {
    char family[32]; /* "llama" (config's model_type), "llama2.c"         */
    int n_layers, n_heads, n_kv_heads, d_head, d_model, d_ffn, vocab_size;
    int max_positions; /* longest sequence the model was made for          */
    double norm_eps;
    double rope_theta;
    kvd_rope_layout rope_layout;
    kvd_rope_scaling rope_scaling;
    double rope_factor, rope_low_freq_factor, rope_high_freq_factor;
    int rope_original_positions;
    bool tied_head;     /* the output head is the embedding                 */
    int bos_id, eos_id; /* -1 when the file states none; the first of a list */
} kvd_config;

/*
 * Reads config.json. Accepts LlamaForCausalLM (model_type llama) with rope_theta at the top
 * level or inside rope_parameters / rope_scaling, head_dim given or d_model / n_heads,
 * num_key_value_heads given or n_heads. What the file leaves out or sets to null has the
 * value that the Hugging Face library gives a Llama model: rope_theta 10000, silu, no bias,
 * untied head. Sizes, rms_norm_eps and max_position_embeddings must be there.
 *
 * Refuses, by name and value: unknown families, unknown rope types, biases, activations other
 * than silu, quantised weights, sizes that are not positive, do not divide or overflow, a
 * norm_eps or theta that is not positive and finite, two statements that contradict each other.
 */
int kvd_config_read(const char *path, kvd_config *c, kvd_err *err);
int kvd_config_parse(const char *name, const char *json, size_t len, kvd_config *c, kvd_err *err);

/* Query heads per KV head. */
int kvd_config_group(const kvd_config *c);

#endif
