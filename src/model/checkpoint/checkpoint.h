/*
 * Opens a checkpoint and finds its configuration, and its tensors by their Hugging Face names. A
 * checkpoint is one of
 *
 *   - a folder with config.json and model.safetensors,
 *   - a folder with config.json, model.safetensors.index.json and its shards,
 *   - a NAME.safetensors file with NAME.config.json (or config.json) in the same folder,
 *   - a llama2.c v0 export (NAME.bin): float32 tensors in llama2.c order, found under the Hugging
 *     Face names, with interleaved RoPE,
 *   - a GGUF file (NAME.gguf), whose tensors are found under the Hugging Face names too.
 *
 * Files are memory-mapped, so a checkpoint larger than memory can be opened.
 *
 * A folder that holds both model.safetensors and an index is read from model.safetensors, as the
 * Hugging Face library does.
 */
#ifndef KVD_MODEL_CHECKPOINT_CHECKPOINT_H
#define KVD_MODEL_CHECKPOINT_CHECKPOINT_H

#include "common/run.h"
#include "model/checkpoint/config.h"
#include "model/checkpoint/safetensors.h"
#include "model/checkpoint/shards.h"

typedef struct kvd_checkpoint kvd_checkpoint;

/*
 * Returns the checkpoint at `path`. On failure returns NULL and fills *err.
 *
 * In addition to the checks of the format readers, it refuses shards that contradict their index, a
 * missing embedding or head, and a tensor that a model of this family and configuration does not
 * have (family.h), such as a bias or a surplus layer, which the forward pass would silently leave
 * out. The shape of a tensor is checked when kvd_checkpoint_tensor asks for it.
 *
 * A file saved from a model without its head (Hugging Face's base model; OPT as published) has
 * tensor names without the family's prefix ("decoder.layers.0..."). Its tensors are found under the
 * full names all the same.
 *
 * With a tied head (config.h) the embedding and the head are one tensor, which a file may store
 * under either name; both names then find it. If a file stores both, they must be equal.
 */
kvd_checkpoint *kvd_checkpoint_open(const char *path, kvd_err *err);

/*
 * Returns a checkpoint that has no file: a model of this configuration with random weights
 * (random.h), exact in bf16. On failure returns NULL and fills *err.
 *
 * Matrices, embeddings and learned positions are close to normal with variance 1 / columns; gains
 * are 1 and biases 0. Every product then has about the size of the vector that the matrix
 * multiplies, whatever the width. With a norm before every branch, the residual stream after n
 * layers stays below about sqrt(2n), without a scale that depends on the depth
 * (tests/model/test_shapes.c runs 80 layers of every family).
 *
 * `path` is the name of the checkpoint in messages and files. `hash` is its content hash, which
 * must follow from configuration and seed.
 */
kvd_checkpoint *kvd_checkpoint_random(const char *path, const char *hash, const kvd_config *config,
                                      uint64_t seed, kvd_err *err);
/*
 * Replaces the weights of a checkpoint by random ones, as kvd_checkpoint_random makes them with
 * this seed, and keeps its configuration, path and tokenizer. Its dtype is then "initial" and its
 * hash follows from seed and configuration. Must be called before any tensor is read. On failure
 * returns -1 and fills *err.
 */
int kvd_checkpoint_untrain(kvd_checkpoint *c, uint64_t seed, kvd_err *err);
void kvd_checkpoint_close(kvd_checkpoint *c);

const kvd_config *kvd_checkpoint_config(const kvd_checkpoint *c);
const char *kvd_checkpoint_path(const kvd_checkpoint *c);
/*
 * Returns the path of the configuration file, or NULL if the configuration is in the header of the
 * file of weights (GGUF, llama2.c).
 */
const char *kvd_checkpoint_config_path(const kvd_checkpoint *c);

/*
 * Makes kvd_weight_read (weights.h) return the matrices of every layer as quantised to `bits` bits:
 * the matrices of queries, keys, values, attention output and feed-forward network, but no norms,
 * biases, embeddings or head. Each row, which holds the weights of one output over all inputs, is
 * quantised to nearest in groups of `group` weights (common/quantise.h). Nothing is stored:
 * weights.h quantises whenever a part is read, and other readers of tensors see the values of the
 * file. `bits` is 2 .. 8 and `group` 1 .. KVD_WEIGHT_GROUP; bits 0 undoes the quantisation.
 */
enum { KVD_WEIGHT_GROUP = 4096 };
void kvd_checkpoint_quantise(kvd_checkpoint *c, int bits, size_t group);
/*
 * Returns the number of bits per weight set by kvd_checkpoint_quantise, or 0 if weights are read as
 * stored.
 */
int kvd_checkpoint_weight_bits(const kvd_checkpoint *c, size_t *group);

/*
 * Returns the storage type of most weights, which result files record in the group /model: "f32",
 * "f16", "bf16" or the name of a packing (tensor.h). Returns "random" for a checkpoint without a
 * file.
 */
const char *kvd_checkpoint_dtype(const kvd_checkpoint *c);

/*
 * Records the checkpoint as an input of the program's run, for provenance: hashes its files, or
 * takes the hash given to kvd_checkpoint_random. Returns 0, or -1 with *err.
 */
int kvd_checkpoint_add_input(const kvd_checkpoint *c, kvd_run *run, kvd_err *err);

/*
 * Fills *out with the tensor `name`, which must have exactly this shape; cols is 0 for rank 1. If
 * the tensor is missing or has another shape, returns -1 and *err names the file, the tensor and
 * both shapes. kvd_checkpoint_has returns 1 if the tensor exists, even with an unsupported dtype,
 * else 0.
 */
int kvd_checkpoint_tensor(const kvd_checkpoint *c, const char *name, size_t rows, size_t cols,
                          kvd_tensor *out, kvd_err *err);
int kvd_checkpoint_has(const kvd_checkpoint *c, const char *name);

/*
 * Returns the safetensors files of the checkpoint, for programs that rewrite them, or NULL for
 * other formats.
 */
const kvd_shards *kvd_checkpoint_shards(const kvd_checkpoint *c);

/*
 * Returns the allocated path of the checkpoint's tokenizer. It is searched in these places:
 *
 *   - for a folder, tokenizer.json in it,
 *   - for NAME.safetensors, NAME.tokenizer.json or tokenizer.json in the same folder,
 *   - for a llama2.c NAME.bin, NAME.tok*.bin or tokenizer.bin in the same folder,
 *   - for a GGUF file, the file itself; if it holds no tokenizer, NAME.tokenizer.json or
 *     tokenizer.json in the same folder.
 *
 * If there is no tokenizer or more than one, returns NULL and fills *err.
 */
char *kvd_checkpoint_tokenizer_path(const kvd_checkpoint *c, kvd_err *err);

#endif
