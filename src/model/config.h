/* The shape of a model, read from config.json or from the header of another format. */
#ifndef KVD_MODEL_CONFIG_H
#define KVD_MODEL_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

/* In each of these the first, 0, is what a Llama model has. */

typedef enum {
    KVD_POSITIONS_ROPE,   /* Q and K are rotated                                            */
    KVD_POSITIONS_LEARNED /* a table added to the embedding; Q and K are not touched        */
} kvd_positions;

typedef enum {
    KVD_ROPE_HALF,       /* Hugging Face: dimension i pairs with i + d_head/2   */
    KVD_ROPE_INTERLEAVED /* llama2.c, Meta: dimension 2i pairs with 2i + 1      */
} kvd_rope_layout;

typedef enum {
    KVD_ROPE_DEFAULT, /* theta alone                                               */
    KVD_ROPE_LINEAR,  /* positions divided by rope_factor                          */
    KVD_ROPE_LLAMA3,  /* Llama 3.1: low frequencies divided, middle ones blended   */
    KVD_ROPE_LONGROPE /* Phi-3: a divisor for every pair, others in long sequences */
} kvd_rope_scaling;

typedef enum {
    KVD_NORM_RMS,  /* x / rms(x) * gain                                            */
    KVD_NORM_LAYER /* (x - mean(x)) / std(x) * gain + bias                         */
} kvd_norm;

/* How a layer puts attention A, feed-forward F and its norms together. */
typedef enum {
    KVD_ORDER_BEFORE,  /* x += A(norm(x)); x += F(norm'(x))                         */
    KVD_ORDER_AFTER,   /* x = norm(x + A(x)); x = norm'(x + F(x))                   */
    KVD_ORDER_PARALLEL /* x += A(norm(x)) + F(norm'(x)), or both of the same norm   */
} kvd_order;

typedef enum {
    KVD_SWIGLU,    /* silu(x W_gate) * (x W_up)                                    */
    KVD_GELU,      /* of x W_up, by the error function; no gate from here on       */
    KVD_GELU_TANH, /* its approximation by tanh                                    */
    KVD_RELU
} kvd_activation;

enum {
    KVD_CONFIG_MAX_SIZE = 1 << 24,  /* of any size below, and of n_heads * d_head       */
    KVD_CONFIG_WINDOW_LAYERS = 512, /* a model with a window has at most so many layers */
    KVD_CONFIG_LONGROPE_PAIRS = 256 /* d_head / 2 of a model with longrope              */
};

typedef struct {
    char family[32]; /* config's model_type (family.h), or "llama2.c"     */
    int n_layers, n_heads, n_kv_heads, d_head, d_model, d_ffn, vocab_size;
    int d_embed;       /* of embedding and head where it is not d_model; 0: it is */
    int max_positions; /* longest sequence the model was made for          */
    double norm_eps;
    kvd_norm norm;
    kvd_order order;
    kvd_activation activation;
    bool shared_norm;                /* KVD_ORDER_PARALLEL: one norm for both           */
    bool no_final_norm;              /* the last layer's output goes to the head as is  */
    bool qk_norm;                    /* RMS norm of every head of Q and K, before RoPE  */
    bool bias_qkv, bias_o, bias_ffn; /* of the matrices; a layer norm always has one    */
    kvd_positions positions;         /* LEARNED: the fields of rope have no meaning          */
    double rope_theta;
    kvd_rope_layout rope_layout;
    kvd_rope_scaling rope_scaling;
    double rope_factor, rope_low_freq_factor, rope_high_freq_factor;
    int rope_original_positions;  /* LLAMA3; LONGROPE: sequences beyond it have the long divisors */
    double rope_attention_factor; /* LONGROPE: cosines and sines times this     */
    double rope_short[KVD_CONFIG_LONGROPE_PAIRS]; /* LONGROPE: [d_head / 2] divisors             */
    double rope_long[KVD_CONFIG_LONGROPE_PAIRS];
    int window; /* keys that a query sees, itself included; 0: all before it */
    uint64_t window_layers[KVD_CONFIG_WINDOW_LAYERS / 64]; /* bit l: layer l has the window      */
    bool tied_head;     /* the output head is the embedding                */
    int bos_id, eos_id; /* -1 when the file states none; the first of a list */
} kvd_config;

/*
 * Reads config.json of the families that family.h lists. What the file leaves out or sets to null
 * has the value that the Hugging Face library gives such a model; sizes and the norm's epsilon
 * must be there where the library's default is that of one published model.
 *
 * Refuses, by name and value: unknown families, what would change the arithmetic and is not
 * computed, quantised weights, sizes that are not positive, do not divide or overflow, an epsilon
 * or theta that is not positive and finite, two statements that contradict each other.
 */
int kvd_config_read(const char *path, kvd_config *c, kvd_err *err);
int kvd_config_parse(const char *name, const char *json, size_t len, kvd_config *c, kvd_err *err);

/* Query heads per KV head. */
int kvd_config_group(const kvd_config *c);

/* Width of the embedding and of the head's input. */
int kvd_config_d_embed(const kvd_config *c);

/*
 * The window of a layer: position t attends to positions t - window + 1 .. t. 0: no window, to
 * positions 0 .. t.
 */
size_t kvd_config_window(const kvd_config *c, int layer);

#endif
