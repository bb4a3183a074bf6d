/* Model families read config.json and list tensor names; docs/adding.md says how to add one. */
#ifndef KVD_MODEL_CHECKPOINT_FAMILY_H
#define KVD_MODEL_CHECKPOINT_FAMILY_H

#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"
#include "model/checkpoint/config.h"

/* Kinds of weights, each with or without a bias. */
typedef enum {
    /* Weights of a layer, in the order of their use. */
    KVD_PART_NORM_ATTENTION,
    KVD_PART_Q,
    KVD_PART_K,
    KVD_PART_V,
    /* Gain of the norm of Q: [d_head], or with qk_norm_whole [n_heads * d_head]. */
    KVD_PART_NORM_Q,
    KVD_PART_NORM_K,
    KVD_PART_O,
    KVD_PART_NORM_O, /* norm of the output of attention */
    KVD_PART_NORM_FFN,
    KVD_PART_GATE,
    KVD_PART_UP,
    KVD_PART_DOWN,
    KVD_PART_NORM_DOWN, /* norm of the output of the feed-forward block */
    /* Matrix [n_experts][d_model] that scores the routed experts. */
    KVD_PART_ROUTER,
    KVD_PART_SHARED_GATE,
    KVD_PART_SHARED_UP,
    KVD_PART_SHARED_DOWN,
    /* Vector w: the output of the shared expert is multiplied by sigmoid(x w). */
    KVD_PART_SHARED_SCALE,
    /* Attention sink logits [n_heads]; the tensor name has no ".weight". */
    KVD_PART_SINKS,
    /* Bias [n_experts] for choosing experts; the tensor name has no ".weight". */
    KVD_PART_ROUTER_BIAS,
    /* First of two matrices of the query projection: [q_rank][d_model]. */
    KVD_PART_Q_DOWN,
    KVD_PART_NORM_Q_DOWN, /* gain [q_rank] of the norm after Q_DOWN */
    /* Matrix from layer input to latent and rotated key. */
    KVD_PART_LATENT,
    KVD_PART_NORM_LATENT, /* gain [latent] of the norm of the latent */
    /* Matrix from latent to keys and values: [n_heads * (d_nope + d_value)][latent]. */
    KVD_PART_LATENT_UP,
    KVD_N_LAYER_PARTS,
    KVD_PART_EMBEDDING = KVD_N_LAYER_PARTS,
    /* Learned positions: two unused rows, then one row per position. */
    KVD_PART_POSITIONS,
    KVD_PART_PROJECT_IN, /* from d_embed to d_model dimensions */
    KVD_PART_NORM_FINAL,
    KVD_PART_PROJECT_OUT, /* from d_model to d_embed dimensions */
    /* Output head; a file may store it even if tied to the embedding. */
    KVD_PART_HEAD,
    KVD_N_PARTS,
    /* Matrices that each routed expert has. */
    KVD_PART_EXPERT_GATE = KVD_N_PARTS,
    KVD_PART_EXPERT_UP,
    KVD_PART_EXPERT_DOWN,
    KVD_N_ALL_PARTS
} kvd_part;

/* Arrangement of a matrix's rows in the tensor that stores it. */
typedef enum {
    KVD_ROWS_ALL,
    /* Several matrices one after another, in the order of kvd_part. */
    KVD_ROWS_STACKED,
    /* Falcon: per KV head its query heads, key head and value head. */
    KVD_ROWS_GROUPED,
    /* gpt-oss: even rows are the gate matrix, odd rows the up matrix. */
    KVD_ROWS_INTERLEAVED
} kvd_part_rows;

typedef struct {
    kvd_part part;
    /* Tensor name without layer, ".weight" and ".bias"; '#' is an expert's index. */
    const char *name;
    kvd_part_rows rows;
    /* Returns true if the model has the tensor. NULL means always. */
    bool (*when)(const kvd_config *c);
} kvd_stored;

struct json_t;

typedef struct {
    const char *name;         /* model_type in config.json */
    const char *other_name;   /* model_type of other models that compute the same, or NULL */
    const char *architecture; /* name of the language model in `architectures` of config.json */
    /* Another name in `architectures` of files whose model_type is `name`, or NULL. */
    const char *other_architecture;
    /* Fills the zeroed *c from config.json, except c->family. */
    int (*read)(const struct json_t *root, kvd_config *c, kvd_err *err);
    /* Prefix of tensor names, such as "model.". */
    const char *base;
    /* Other possible prefixes, and prefixes of ignored tensors; NULL ends a list. */
    const char *const *other_bases, *const *other_models;
    /* Prefix of a layer's tensors, such as "model.layers.". */
    const char *layers;
    /* Tensors that Llama lacks or names differently; a row without a name ends them. NULL: none. */
    const kvd_stored *stored;
    /* Tensor that old files have in every layer and that is not read, or NULL. */
    const char *ignored_layer;
    /* Tensor outside the layers that is not read, or NULL. */
    const char *ignored;
    /* True if one tensor holds the matrices of all experts (shards.h). */
    bool experts_together;
} kvd_family;

/*
 * Return families by index, or by model_type or architecture. The result is NULL if there is none.
 */
const kvd_family *kvd_family_at(size_t i);
const kvd_family *kvd_family_find(const char *model_type, const char *architecture);

/* Returns the family of a model; files of llama2.c belong to Llama. */
const kvd_family *kvd_family_of(const kvd_config *c);

enum { KVD_PART_NAME = 128 };

/* Location of a weight: its row i is row first + (i / block) * stride + i % block of a tensor. */
typedef struct {
    char name[KVD_PART_NAME];
    size_t stored_rows;
    /* [rows = outputs][cols = inputs]; cols is 0 for a vector. */
    size_t rows, cols;
    size_t first, block, stride;
} kvd_place;

/* Computes the shape of a weight or bias; returns false if the model has none. */
bool kvd_part_shape(const kvd_config *c, kvd_part part, bool bias, size_t *rows, size_t *cols);

/* Finds where a weight or bias is stored; returns false if the model has none. */
bool kvd_part_place(const kvd_config *c, kvd_part part, bool bias, int layer, kvd_place *place);

/* Finds where a weight of an expert is stored; returns false if the model has none. */
bool kvd_expert_place(const kvd_config *c, kvd_part part, bool bias, int layer, int expert,
                      kvd_place *place);

/* Finds the first weight that a stored tensor holds; returns false for unknown tensors. */
bool kvd_family_place(const kvd_config *c, const char *tensor, kvd_part *part, bool *bias,
                      kvd_place *place);

/* Returns true if a file of this model may contain a tensor of that name. */
bool kvd_family_knows(const kvd_config *c, const char *tensor);

/* Returns the number of weights, biases included; a tied head counts once. */
size_t kvd_family_elements(const kvd_config *c);

#endif
