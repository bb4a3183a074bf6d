/*
 * Opens a checkpoint, reads its configuration, and finds tensors by Hugging Face names. A
 * checkpoint is one of
 *
 *   - a folder with config.json and model.safetensors, or else model.safetensors.index.json and its
 * files,
 *   - NAME.safetensors with NAME.config.json (or config.json) in the same folder,
 *   - a llama2.c v0 export (NAME.bin): float32, interleaved RoPE,
 *   - a GGUF file (NAME.gguf).
 *
 * Files are memory-mapped, so they may exceed memory.
 */
#ifndef KVD_MODEL_CHECKPOINT_CHECKPOINT_H
#define KVD_MODEL_CHECKPOINT_CHECKPOINT_H

#include "common/run.h"
#include "model/checkpoint/config.h"
#include "model/checkpoint/safetensors.h"
#include "model/checkpoint/shards.h"

typedef struct kvd_checkpoint kvd_checkpoint;

/*
 * Opens the checkpoint at `path`. On failure returns NULL and fills *err.
 *
 * Fails if files contradict their index, the embedding or output head is missing, or a tensor is
 * not used by the model. Shapes are checked by kvd_checkpoint_tensor. Names always have the
 * family's prefix. A tied output head is found under both names; if a file stores both tensors,
 * they must be equal.
 */
kvd_checkpoint *kvd_checkpoint_open(const char *path, kvd_err *err);

/*
 * Returns a checkpoint of random weights (random.h), exact in bf16, without a file. On failure
 * returns NULL and fills *err.
 *
 * Matrices, embeddings and learned positions: near normal with variance 1 / columns; gains 1,
 * biases 0. `path` is a name for messages. `hash`, the content hash, must follow from configuration
 * and seed.
 */
kvd_checkpoint *kvd_checkpoint_random(const char *path, const char *hash, const kvd_config *config,
                                      uint64_t seed, kvd_err *err);
/*
 * Replaces the weights by random ones of `seed`; the content hash follows. Must be called before
 * any tensor is read. On failure returns -1 and fills *err.
 */
int kvd_checkpoint_untrain(kvd_checkpoint *c, uint64_t seed, kvd_err *err);
void kvd_checkpoint_close(kvd_checkpoint *c);

const kvd_config *kvd_checkpoint_config(const kvd_checkpoint *c);
const char *kvd_checkpoint_path(const kvd_checkpoint *c);
/* Returns the path of config.json, or NULL for GGUF and llama2.c files. */
const char *kvd_checkpoint_config_path(const kvd_checkpoint *c);

/*
 * Makes kvd_weight_read round matrices of attention and feed-forward blocks to `bits` bits, in
 * groups of `group` weights of a row (common/quantise.h).
 *
 * bits: 2 to 8, or 0 for none. group: 1 to KVD_WEIGHT_GROUP.
 */
enum { KVD_WEIGHT_GROUP = 4096 };
void kvd_checkpoint_quantise(kvd_checkpoint *c, int bits, size_t group);
/*
 * Returns the bits of kvd_checkpoint_quantise, or 0. *group receives the weights per quantisation
 * group.
 */
int kvd_checkpoint_weight_bits(const kvd_checkpoint *c, size_t *group);

/*
 * Returns the storage type of most weights: "f32", "f16", "bf16", a packed format (tensor.h),
 * "random" or, after kvd_checkpoint_untrain, "initial".
 */
const char *kvd_checkpoint_dtype(const kvd_checkpoint *c);

/*
 * Adds the checkpoint and its content hash to the inputs in result files. Returns 0, or -1 with
 * *err.
 */
int kvd_checkpoint_add_input(const kvd_checkpoint *c, kvd_run *run, kvd_err *err);

/*
 * Fills *out with a tensor of shape [rows][cols], or [rows] if cols is 0, else returns -1 with
 * *err. kvd_checkpoint_has returns 1 if the tensor exists, in any data type.
 */
int kvd_checkpoint_tensor(const kvd_checkpoint *c, const char *name, size_t rows, size_t cols,
                          kvd_tensor *out, kvd_err *err);
int kvd_checkpoint_has(const kvd_checkpoint *c, const char *name);

/* Returns the safetensors files of the checkpoint, or NULL if it has none. */
const kvd_shards *kvd_checkpoint_shards(const kvd_checkpoint *c);

/*
 * Returns the allocated path of the tokenizer:
 *
 *   - for a folder, tokenizer.json,
 *   - for NAME.safetensors, NAME.tokenizer.json or tokenizer.json in the same folder,
 *   - for a llama2.c NAME.bin, NAME.tok*.bin or tokenizer.bin in the same folder,
 *   - for a GGUF file, the file itself, else as for safetensors.
 *
 * If there is none or more than one, returns NULL and fills *err.
 */
char *kvd_checkpoint_tokenizer_path(const kvd_checkpoint *c, kvd_err *err);

#endif
