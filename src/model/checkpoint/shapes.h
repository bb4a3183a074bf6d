/*
 * Published model shapes with random weights: checkpoints without a file, for studies of time and
 * memory. Singular values and accuracies of such a model mean nothing. Every result made with it
 * shows that: its name is "shape:NAME" and its dtype "random".
 *
 * A shape is the config.json of a published model, read like that of any checkpoint.
 * kvd_checkpoint_random defines the weights.
 */
#ifndef KVD_MODEL_CHECKPOINT_SHAPES_H
#define KVD_MODEL_CHECKPOINT_SHAPES_H

#include <stddef.h>
#include <stdint.h>

#include "model/checkpoint/checkpoint.h"

typedef struct {
    const char *name;  /* name on the command line, such as "llama-3.1-8b" */
    const char *title; /* name in messages, such as "Llama 3.1 8B" */
    /* Publication from which the sizes of the model are taken. */
    const char *source;
    const char *json; /* keys of config.json that the model family's reader uses */
} kvd_shape;

/*
 * Seed of the random weights of a published shape, the same for all users. The option --seed of the
 * programs does not change it.
 */
enum { KVD_SHAPE_SEED = 1 };

size_t kvd_shape_count(void);
const kvd_shape *kvd_shape_at(size_t i);
/*
 * Returns the published model shape of this name. If there is none, returns NULL, and *err lists
 * all names.
 */
const kvd_shape *kvd_shape_find(const char *name, kvd_err *err);

/*
 * Returns a checkpoint with random weights and the model shape *s, which need not be one of the
 * published shapes. On failure returns NULL and fills *err. The strings of *s are not needed
 * afterwards. The checkpoint's path is "shape:NAME". Its content hash is computed from s->json and
 * the seed.
 */
kvd_checkpoint *kvd_checkpoint_of_shape(const kvd_shape *s, uint64_t seed, kvd_err *err);

#endif
