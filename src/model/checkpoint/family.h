/*
 * Model families. A family is one file in families/: it reads its config.json into a kvd_config,
 * and lists the stored tensor of each part of a model. The kvd_config alone decides which parts a
 * model has and how the forward pass uses them, in the same way for all families.
 *
 * docs/adding.md explains how to add a family.
 */
#ifndef KVD_MODEL_CHECKPOINT_FAMILY_H
#define KVD_MODEL_CHECKPOINT_FAMILY_H

#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"
#include "model/checkpoint/config.h"

/*
 * Parts of a model. A part is a weight matrix or the gain of a norm, with its bias if it has one.
 */
typedef enum {
    /* parts that each layer has once, in the order of use */
    KVD_PART_NORM_ATTENTION,
    KVD_PART_Q,
    KVD_PART_K,
    KVD_PART_V,
    /*
     * gains of the norms of Q and K: [d_head], the same for all heads of a layer, or with
     * qk_norm_whole [heads * d_head]
     */
    KVD_PART_NORM_Q,
    KVD_PART_NORM_K,
    KVD_PART_O,
    KVD_PART_NORM_O, /* norm of the output of attention's branch */
    KVD_PART_NORM_FFN,
    KVD_PART_GATE,
    KVD_PART_UP,
    KVD_PART_DOWN,
    KVD_PART_NORM_DOWN, /* norm of the output of the feed-forward branch */
    KVD_PART_ROUTER,    /* [n_experts][d_model]; layers with it have no GATE, UP and DOWN */
    KVD_PART_SHARED_GATE,
    KVD_PART_SHARED_UP,
    KVD_PART_SHARED_DOWN,
    KVD_PART_SHARED_SCALE, /* [1][d_model] */
    KVD_PART_SINKS,        /* [n_heads], a tensor without ".weight" in its name */
    KVD_PART_ROUTER_BIAS,  /* [n_experts], like SINKS; only the choice of experts reads it */
    /*
     * Latent attention. The rows of LATENT produce the latent, then the rotated key. The rows of
     * LATENT_UP produce, head by head, d_nope dimensions of the key and d_value of the value.
     */
    KVD_PART_Q_DOWN,      /* [q_rank][d_model], whose output Q reads */
    KVD_PART_NORM_Q_DOWN, /* [q_rank] */
    KVD_PART_LATENT,      /* [latent + rope_dims][d_model] */
    KVD_PART_NORM_LATENT, /* [latent] */
    KVD_PART_LATENT_UP,   /* [n_heads * (d_nope + d_value)][latent] */
    KVD_N_LAYER_PARTS,
    /* parts that a model has once */
    KVD_PART_EMBEDDING = KVD_N_LAYER_PARTS,
    /* learned position embeddings: two unused rows, then one row per position */
    KVD_PART_POSITIONS,
    KVD_PART_PROJECT_IN, /* projection from d_embed to d_model */
    KVD_PART_NORM_FINAL,
    KVD_PART_PROJECT_OUT, /* projection from d_model to d_embed */
    KVD_PART_HEAD,        /* output head; if tied, the embedding, though a file may store both */
    KVD_N_PARTS,
    /* parts that each routed expert of a layer has once */
    KVD_PART_EXPERT_GATE = KVD_N_PARTS,
    KVD_PART_EXPERT_UP,
    KVD_PART_EXPERT_DOWN,
    KVD_N_ALL_PARTS
} kvd_part;

/* Arrangement of a part's rows in the stored tensor, which may hold several parts. */
typedef enum {
    KVD_ROWS_ALL,
    /* several parts are stored in one tensor, one after another in the order of kvd_part */
    KVD_ROWS_STACKED,
    /*
     * Falcon: the tensor holds, for each KV head, the rows of its query heads, its key head and its
     * value head
     */
    KVD_ROWS_GROUPED,
    /*
     * gpt-oss: rows 0, 2, 4, ... of the tensor are the gate's rows, rows 1, 3, 5, ... the up
     * matrix's
     */
    KVD_ROWS_INTERLEAVED
} kvd_part_rows;

typedef struct {
    kvd_part part;
    /*
     * Tensor name without ".weight" or ".bias". For a part of a layer, the text after "<layers>N.",
     * in which '#' is replaced by the number of an expert.
     */
    const char *name;
    kvd_part_rows rows;
    /* returns true if a model with this configuration uses this tensor name; NULL: always used */
    bool (*when)(const kvd_config *c);
} kvd_stored;

struct json_t; /* from jansson */

typedef struct {
    const char *name;         /* value of model_type in config.json */
    const char *architecture; /* name of the language model in `architectures` of config.json */
    /*
     * Reads the configuration: fills the zeroed *c, except its field family, from the JSON object
     * `root`.
     */
    int (*read)(const struct json_t *root, kvd_config *c, kvd_err *err);
    /*
     * Prefix of all tensor names except the head's, such as "model."; absent from a file that was
     * saved from the model without its head.
     */
    const char *base;
    /*
     * Other prefixes that a file may have in place of `base`, and prefixes of the tensors of other
     * models in the same file, which are ignored. Both lists end with NULL; NULL: none.
     */
    const char *const *other_bases, *const *other_models;
    const char *layers; /* prefix of a layer's number, such as "model.layers." */
    const kvd_stored *stored;
    size_t n_stored;
    /*
     * name of a tensor in each layer of old exports that is not read, because the configuration
     * determines its values; NULL: none
     */
    const char *ignored_layer;
    const char *ignored; /* like ignored_layer, for a tensor that a model has once; NULL: none */
    /*
     * true if safetensors files hold each part of all experts of a layer in one tensor (shards.h),
     * perhaps as blocks of MXFP4 if the key quantization_config says so
     */
    bool experts_together;
} kvd_family;

/*
 * Return the number of families, the family number i, and the family with this model_type or
 * architecture (NULL if there is none).
 */
size_t kvd_family_count(void);
const kvd_family *kvd_family_at(size_t i);
const kvd_family *kvd_family_find(const char *model_type, const char *architecture);

/*
 * Returns the family of a configuration that has been read. llama2.c files belong to the family
 * Llama.
 */
const kvd_family *kvd_family_of(const kvd_config *c);

/* ---- parts of a model and their tensors --------------------------------------------------- */

enum { KVD_PART_NAME = 128 };

/*
 * Location of a part in its stored tensor: row i of the part is row first + (i / block) * stride +
 * i % block of the tensor.
 */
typedef struct {
    char name[KVD_PART_NAME];
    size_t stored_rows;
    size_t rows, cols; /* size of the part, W [out][in] as stored; cols 0: a vector */
    size_t first, block, stride;
} kvd_place;

/*
 * Fills the shape of a part, or of its bias if `bias`. Returns false and sets *rows to 0 if a model
 * with this configuration has no such part.
 */
bool kvd_part_shape(const kvd_config *c, kvd_part part, bool bias, size_t *rows, size_t *cols);

/*
 * Fills *place with the location of a part, or of its bias if `bias`. `layer` is ignored for parts
 * that a model has once. Returns false if a model with this configuration has no such part.
 */
bool kvd_part_place(const kvd_config *c, kvd_part part, bool bias, int layer, kvd_place *place);

/* Does the same as kvd_part_place for a part of the routed expert `expert` of a layer. */
bool kvd_expert_place(const kvd_config *c, kvd_part part, bool bias, int layer, int expert,
                      kvd_place *place);

/*
 * Fills *part with the first part that is in the stored tensor `tensor`, sets *bias if the tensor
 * is the bias of that part, and fills *place. Returns false if a model with this configuration has
 * no such tensor. A tied head is found under its own name.
 */
bool kvd_family_place(const kvd_config *c, const char *tensor, kvd_part *part, bool *bias,
                      kvd_place *place);

/*
 * Returns true if a model with this configuration has, or may have, a tensor of that name: the
 * stored tensors, a tied head and the ignored tensors.
 */
bool kvd_family_knows(const kvd_config *c, const char *tensor);

/*
 * Returns the number of weights of a model: the elements of all parts and biases. A tied head
 * counts once.
 */
size_t kvd_family_elements(const kvd_config *c);

#endif
