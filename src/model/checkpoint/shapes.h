/*
 * Published model shapes with random weights: checkpoints without a file, for studies of time and
 * memory. Singular values and accuracies of such a model mean nothing. Result files mark it by the
 * name "shape:NAME" and the dtype "random".
 */
#ifndef KVD_MODEL_CHECKPOINT_SHAPES_H
#define KVD_MODEL_CHECKPOINT_SHAPES_H

#include <stddef.h>
#include <stdint.h>

#include "model/checkpoint/checkpoint.h"

typedef struct {
    const char *name;  /* on the command line, such as "llama-3.1-8b" */
    const char *title; /* in messages, such as "Llama 3.1 8B" */
    const char *source;
    const char *json; /* keys of config.json that the family's reader uses */
} kvd_shape;

/* Seed of the random weights; the option --seed of the programs does not change it. */
enum { KVD_SHAPE_SEED = 1 };

size_t kvd_shape_count(void);
const kvd_shape *kvd_shape_at(size_t i);
/* Returns the shape called `name`, or NULL if there is none; *err then lists all names. */
const kvd_shape *kvd_shape_find(const char *name, kvd_err *err);

/*
 * Returns a checkpoint with random weights and the path "shape:NAME". *s need not be a published
 * shape; the caller may free it afterwards. The content hash follows from s->json and the seed. On
 * failure returns NULL and fills *err.
 */
kvd_checkpoint *kvd_checkpoint_of_shape(const kvd_shape *s, uint64_t seed, kvd_err *err);

#endif
