/*
 * A family reads config.json into a kvd_config, and lists stored tensors. docs/adding.md explains
 * how to add one.
 */
#ifndef KVD_MODEL_CHECKPOINT_FAMILY_H
#define KVD_MODEL_CHECKPOINT_FAMILY_H

#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"
#include "model/checkpoint/config.h"

/* Kinds of weights, each with or without a bias. */
typedef enum {
    /* Weights of a layer, up to KVD_N_LAYER_PARTS, in order of use. */
    KVD_PART_NORM_ATTENTION,
    KVD_PART_Q,
    KVD_PART_K,
    KVD_PART_V,
    /* [d_head]; with qk_norm_whole [n_heads * d_head], for K [n_kv_heads * d_head]. */
    KVD_PART_NORM_Q,
    KVD_PART_NORM_K,
    KVD_PART_O,
    KVD_PART_NORM_O, /* norm of the output of attention */
    KVD_PART_NORM_FFN,
    KVD_PART_GATE,
    KVD_PART_UP,
    KVD_PART_DOWN,
    KVD_PART_NORM_DOWN, /* norm of the output of the feed-forward block */
    /* [n_experts][d_model]; the layer then lacks KVD_PART_GATE, _UP and _DOWN. */
    KVD_PART_ROUTER,
    KVD_PART_SHARED_GATE,
    KVD_PART_SHARED_UP,
    KVD_PART_SHARED_DOWN,
    /* Vector w [1][d_model]: the shared expert's output times sigmoid(x w). */
    KVD_PART_SHARED_SCALE,
    /* Attention sink logits [n_heads]; the tensor name has no ".weight". */
    KVD_PART_SINKS,
    /* Bias [n_experts] for choosing experts only; the tensor name has no ".weight". */
    KVD_PART_ROUTER_BIAS,
    /* [q_rank][d_model], applied before KVD_PART_Q (latent attention). */
    KVD_PART_Q_DOWN,
    KVD_PART_NORM_Q_DOWN, /* gain [q_rank] of the norm after Q_DOWN */
    /* Layer input to latent and rotated key: [latent + rope_dims][d_model]. */
    KVD_PART_LATENT,
    KVD_PART_NORM_LATENT, /* gain [latent] of the norm of the latent */
    /* Latent to keys and values: [n_heads * (d_nope + d_value)][latent]. */
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

/* Arrangement of a matrix's rows in its tensor; KVD_ROWS_ALL: the whole tensor. */
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
    /* Name without layer, ".weight" and ".bias"; '#' is an expert's index. */
    const char *name;
    kvd_part_rows rows;
    /* Returns true if the model has the tensor; NULL: all models. */
    bool (*when)(const kvd_config *c);
} kvd_stored;

struct json_t;

typedef struct {
    const char *name;         /* model_type in config.json */
    const char *other_name;   /* model_type of other models that compute the same, or NULL */
    const char *architecture; /* name of the language model in `architectures` of config.json */
    /* Another name that files with the model_type `name` have there, or NULL. */
    const char *other_architecture;
    /* Fills the zeroed *c from config.json, except c->family. */
    int (*read)(const struct json_t *root, kvd_config *c, kvd_err *err);
    /* Prefix of names, "model.", unless saved without the output head. */
    const char *base;
    /* Alternatives to `base`, and prefixes of ignored tensors; NULL ends each list. */
    const char *const *other_bases, *const *other_models;
    /* Prefix of a layer's tensors, such as "model.layers.". */
    const char *layers;
    const kvd_stored *stored;
    size_t n_stored;
    /* Redundant tensor in every layer of old files, not read, or NULL. */
    const char *ignored_layer;
    /* Redundant tensor outside the layers, not read, or NULL. */
    const char *ignored;
    /* One tensor holds all experts (shards.h), maybe in MXFP4. */
    bool experts_together;
} kvd_family;

/* kvd_family_find returns NULL for an unknown model_type or architecture. */
size_t kvd_family_count(void);
const kvd_family *kvd_family_at(size_t i);
const kvd_family *kvd_family_find(const char *model_type, const char *architecture);

/* Returns the model's family; Llama for a llama2.c file. */
const kvd_family *kvd_family_of(const kvd_config *c);

enum { KVD_PART_NAME = 128 };

/* Row i of a weight is row first + (i / block) * stride + i % block of its tensor. */
typedef struct {
    char name[KVD_PART_NAME];
    size_t stored_rows;
    /* [rows = outputs][cols = inputs]; cols is 0 for a vector. */
    size_t rows, cols;
    size_t first, block, stride;
} kvd_place;

/* Returns false with *rows = 0 if the model lacks the weight or bias. */
bool kvd_part_shape(const kvd_config *c, kvd_part part, bool bias, size_t *rows, size_t *cols);

/* Finds a weight or bias in its tensor; false if the model lacks it. */
bool kvd_part_place(const kvd_config *c, kvd_part part, bool bias, int layer, kvd_place *place);

/* False if the model lacks the expert's weight or bias. */
bool kvd_expert_place(const kvd_config *c, kvd_part part, bool bias, int layer, int expert,
                      kvd_place *place);

/*
 * Finds the first weight in a stored tensor; false if unknown. A stored tied head has the head's
 * name.
 */
bool kvd_family_place(const kvd_config *c, const char *tensor, kvd_part *part, bool *bias,
                      kvd_place *place);

/* Returns true if a file may contain the tensor, read or ignored. */
bool kvd_family_knows(const kvd_config *c, const char *tensor);

/* Returns the number of weights, with biases and a tied output head once. */
size_t kvd_family_elements(const kvd_config *c);

#endif
