/* Configurations of published models, to measure time and memory with random weights. */
#ifndef KVD_MODEL_CHECKPOINT_SHAPES_H
#define KVD_MODEL_CHECKPOINT_SHAPES_H

#include <stddef.h>
#include <stdint.h>

#include "model/checkpoint/checkpoint.h"

typedef struct {
    const char *name;  /* on the command line, such as "llama-3.1-8b" */
    const char *title; /* in messages, such as "Llama 3.1 8B" */
    const char *source;
    const char *json; /* keys of config.json that the family reads */
} kvd_shape;

/* seed of the random weights, independent of --seed */
enum { KVD_SHAPE_SEED = 1 };

size_t kvd_shape_count(void);
const kvd_shape *kvd_shape_at(size_t i);
/* Returns the model shape called `name`, or NULL; *err then lists the names of all shapes. */
const kvd_shape *kvd_shape_find(const char *name, kvd_err *err);

/* Returns a checkpoint with the configuration *s and random weights. Its path in messages is
 * "shape:NAME". */
kvd_checkpoint *kvd_checkpoint_of_shape(const kvd_shape *s, uint64_t seed, kvd_err *err);

#endif
