/*
 * Opens a checkpoint, reads its configuration, and finds tensors by Hugging Face names:
 *
 *   - a folder with config.json and model.safetensors, else model.safetensors.index.json,
 *   - NAME.safetensors with NAME.config.json (or config.json) in the same folder,
 *   - a llama2.c v0 export (NAME.bin): float32, interleaved RoPE,
 *   - a GGUF file (NAME.gguf).
 *
 * Files are memory-mapped. Functions that return pointers return NULL and fill *err on failure.
 */
#ifndef KVD_MODEL_CHECKPOINT_CHECKPOINT_H
#define KVD_MODEL_CHECKPOINT_CHECKPOINT_H

#include "common/run.h"
#include "model/checkpoint/config.h"
#include "model/checkpoint/safetensors.h"
#include "model/checkpoint/shards.h"

typedef struct kvd_checkpoint kvd_checkpoint;

/*
 * Opens a checkpoint. Fails if files contradict their index, or a tensor is missing or unused;
 * shapes are checked by kvd_checkpoint_tensor.
 *
 * Tensor names always have the prefix of the model family. A tied output head is found under its
 * own name and under that of the embedding.
 */
kvd_checkpoint *kvd_checkpoint_open(const char *path, kvd_err *err);

/*
 * Returns a checkpoint of random weights without a file. Matrices are near normal with variance 1 /
 * columns, gains are 1, biases 0.
 *
 * `path` is a name for messages. `hash` must identify the configuration and the seed.
 */
kvd_checkpoint *kvd_checkpoint_random(const char *path, const char *hash, const kvd_config *config,
                                      uint64_t seed, kvd_err *err);
/* Replaces all weights by random ones, before any tensor is read. Returns 0, or -1 with *err. */
int kvd_checkpoint_untrain(kvd_checkpoint *c, uint64_t seed, kvd_err *err);
void kvd_checkpoint_close(kvd_checkpoint *c);

const kvd_config *kvd_checkpoint_config(const kvd_checkpoint *c);
const char *kvd_checkpoint_path(const kvd_checkpoint *c);
/* Returns the path of config.json, or NULL if the weight file has the configuration. */
const char *kvd_checkpoint_config_path(const kvd_checkpoint *c);

/*
 * kvd_checkpoint_quantise makes kvd_weight_read round matrices to `bits` bits (2 to 8, or 0 for
 * none). Each `group` weights of a row, at most KVD_WEIGHT_GROUP, share a scale
 * (common/quantise.h).
 */
enum { KVD_WEIGHT_GROUP = 4096 };
void kvd_checkpoint_quantise(kvd_checkpoint *c, int bits, size_t group);
/*
 * Returns the bits per weight that kvd_checkpoint_quantise set, or 0. *group receives the number of
 * weights that share a scale.
 */
int kvd_checkpoint_weight_bits(const kvd_checkpoint *c, size_t *group);

/*
 * Returns the data type that most weights have, such as "bf16" or "q4_k". Returns "random" after
 * kvd_checkpoint_random and "initial" after kvd_checkpoint_untrain.
 */
const char *kvd_checkpoint_dtype(const kvd_checkpoint *c);

/* Records the checkpoint and its hash as an input of the run. Returns 0, or -1 with *err. */
int kvd_checkpoint_add_input(const kvd_checkpoint *c, kvd_run *run, kvd_err *err);

/* Finds a tensor of shape [rows][cols], or [rows] if cols is 0. Otherwise returns -1 with *err. */
int kvd_checkpoint_tensor(const kvd_checkpoint *c, const char *name, size_t rows, size_t cols,
                          kvd_tensor *out, kvd_err *err);

/* Returns the checkpoint's safetensors files, or NULL if it has none. */
const kvd_shards *kvd_checkpoint_shards(const kvd_checkpoint *c);

/*
 * Returns the allocated path of the tokenizer, of which there must be exactly one:
 *
 *   - for a folder, tokenizer.json,
 *   - for NAME.safetensors, NAME.tokenizer.json or tokenizer.json in the same folder,
 *   - for a llama2.c NAME.bin, NAME.tok*.bin or tokenizer.bin in the same folder,
 *   - for a GGUF file, the file itself, else as for safetensors.
 */
char *kvd_checkpoint_tokenizer_path(const kvd_checkpoint *c, kvd_err *err);

#endif
