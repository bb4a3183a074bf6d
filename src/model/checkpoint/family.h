/*
 * Model families: how each reads config.json and names its tensors. docs/adding.md says how to add
 * one.
 */
#ifndef KVD_MODEL_CHECKPOINT_FAMILY_H
#define KVD_MODEL_CHECKPOINT_FAMILY_H

#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"
#include "model/checkpoint/config.h"

/* Kinds of weights, each with or without a bias. */
typedef enum {
    /* Weights of a layer, in the order in which the forward pass uses them. */
    KVD_PART_NORM_ATTENTION,
    KVD_PART_Q,
    KVD_PART_K,
    KVD_PART_V,
    /* Gain of the norm of Q: [d_head], or [n_heads * d_head] with qk_norm_whole. */
    KVD_PART_NORM_Q,
    KVD_PART_NORM_K,
    KVD_PART_O,
    KVD_PART_NORM_O, /* norm of the output of attention */
    KVD_PART_NORM_FFN,
    KVD_PART_GATE,
    KVD_PART_UP,
    KVD_PART_DOWN,
    KVD_PART_NORM_DOWN, /* norm of the output of the feed-forward block */
    /* Matrix of the router, [n_experts][d_model], which scores the routed experts. */
    KVD_PART_ROUTER,
    KVD_PART_SHARED_GATE,
    KVD_PART_SHARED_UP,
    KVD_PART_SHARED_DOWN,
    /* Vector w: the output of the shared expert is multiplied by sigmoid(x w). */
    KVD_PART_SHARED_SCALE,
    /* Logits of the attention sinks, [n_heads]. The tensor's name does not end in ".weight". */
    KVD_PART_SINKS,
    /*
     * Bias [n_experts] that counts only for choosing experts. The tensor's name does not end in
     * ".weight".
     */
    KVD_PART_ROUTER_BIAS,
    /* First of two matrices of the query projection: [q_rank][d_model]. */
    KVD_PART_Q_DOWN,
    KVD_PART_NORM_Q_DOWN, /* gain [q_rank] of the norm after Q_DOWN */
    /* Matrix that maps the layer's input to the latent vector and the rotated key. */
    KVD_PART_LATENT,
    KVD_PART_NORM_LATENT, /* gain [latent] of the norm of the latent */
    /*
     * Matrix that maps the latent vector to keys and values: [n_heads * (d_nope +
     * d_value)][latent].
     */
    KVD_PART_LATENT_UP,
    KVD_N_LAYER_PARTS,
    KVD_PART_EMBEDDING = KVD_N_LAYER_PARTS,
    /* Learned positions: two unused rows, then one row per position. */
    KVD_PART_POSITIONS,
    KVD_PART_PROJECT_IN, /* from d_embed to d_model dimensions */
    KVD_PART_NORM_FINAL,
    KVD_PART_PROJECT_OUT, /* from d_model to d_embed dimensions */
    /* Output head. A file may store it even if it equals the embedding. */
    KVD_PART_HEAD,
    KVD_N_PARTS,
    /* Matrices that each of the routed experts has. */
    KVD_PART_EXPERT_GATE = KVD_N_PARTS,
    KVD_PART_EXPERT_UP,
    KVD_PART_EXPERT_DOWN,
    KVD_N_ALL_PARTS
} kvd_part;

/* Order in which the rows of a matrix are stored in a tensor. */
typedef enum {
    KVD_ROWS_ALL,
    /* Several matrices one after another, in the order of kvd_part. */
    KVD_ROWS_STACKED,
    /*
     * Falcon: for each KV head, the rows of its query heads, then of its key head and value head.
     */
    KVD_ROWS_GROUPED,
    /* gpt-oss: even rows belong to the gate matrix, odd rows to the up matrix. */
    KVD_ROWS_INTERLEAVED
} kvd_part_rows;

typedef struct {
    kvd_part part;
    /* Tensor name without layer, ".weight" and ".bias"; '#' is an expert's index. */
    const char *name;
    kvd_part_rows rows;
    /*
     * Returns true if a model with this configuration has the tensor. NULL means that all models
     * have it.
     */
    bool (*when)(const kvd_config *c);
} kvd_stored;

struct json_t;

typedef struct {
    const char *name;         /* model_type in config.json */
    const char *other_name;   /* model_type of other models that compute the same, or NULL */
    const char *architecture; /* name of the language model in `architectures` of config.json */
    /*
     * Another name in `architectures` of config.json for files whose model_type is `name`, or NULL.
     */
    const char *other_architecture;
    /* Fills the zeroed *c from config.json, with the exception of c->family. */
    int (*read)(const struct json_t *root, kvd_config *c, kvd_err *err);
    /* Prefix of all tensor names, such as "model.". */
    const char *base;
    /* Other possible prefixes, and prefixes of ignored tensors; NULL ends a list. */
    const char *const *other_bases, *const *other_models;
    /* Prefix of a layer's tensors, such as "model.layers.". */
    const char *layers;
    /*
     * Tensors that Llama does not have or that have other names there. A row without a name ends
     * the list. NULL: none.
     */
    const kvd_stored *stored;
    /* Tensor that old files contain in every layer and that is not read, or NULL. */
    const char *ignored_layer;
    /* Tensor outside the layers that is not read, or NULL. */
    const char *ignored;
    /* True if one tensor holds the matrices of all experts of a layer (shards.h). */
    bool experts_together;
} kvd_family;

/* Return a family by index, or by its model_type or architecture. Return NULL if there is none. */
const kvd_family *kvd_family_at(size_t i);
const kvd_family *kvd_family_find(const char *model_type, const char *architecture);

/* Returns the family of a model; files of llama2.c belong to Llama. */
const kvd_family *kvd_family_of(const kvd_config *c);

enum { KVD_PART_NAME = 128 };

/*
 * Place of a weight matrix in a stored tensor: row i of the weight is row first + (i / block) *
 * stride + i % block of the tensor.
 */
typedef struct {
    char name[KVD_PART_NAME];
    size_t stored_rows;
    /* Shape of the weight: [rows = outputs][cols = inputs]; cols is 0 for a vector. */
    size_t rows, cols;
    size_t first, block, stride;
} kvd_place;

/* Computes the shape of a weight or bias. Returns false if the model does not have it. */
bool kvd_part_shape(const kvd_config *c, kvd_part part, bool bias, size_t *rows, size_t *cols);

/*
 * Finds the tensor and rows where a weight or bias is stored. Returns false if the model does not
 * have it.
 */
bool kvd_part_place(const kvd_config *c, kvd_part part, bool bias, int layer, kvd_place *place);

/*
 * Finds the tensor and rows where a weight of an expert is stored. Returns false if the model does
 * not have it.
 */
bool kvd_expert_place(const kvd_config *c, kvd_part part, bool bias, int layer, int expert,
                      kvd_place *place);

/*
 * Finds which weight a stored tensor holds, the first one if it holds several. Returns false for
 * unknown tensors.
 */
bool kvd_family_place(const kvd_config *c, const char *tensor, kvd_part *part, bool *bias,
                      kvd_place *place);

/* Returns true if a file of this model may contain a tensor of that name. */
bool kvd_family_knows(const kvd_config *c, const char *tensor);

/*
 * Returns the number of elements of all weights and biases. An output head that equals the
 * embedding counts once.
 */
size_t kvd_family_elements(const kvd_config *c);

#endif
