/*
 * A checkpoint: configuration and tensors by their Hugging Face names, from
 *   - a folder with config.json and model.safetensors,
 *   - a folder with config.json, model.safetensors.index.json and its shards,
 *   - a NAME.safetensors file with NAME.config.json (or config.json) beside it,
 *   - a llama2.c v0 export (NAME.bin): float32, the tensors in llama2.c order;
 *     handed out under the same Hugging Face names, RoPE interleaved,
 *   - a GGUF file (NAME.gguf), again under the Hugging Face names.
 * Memory-mapped: a checkpoint larger than memory can be opened.
 *
 * A folder that holds both model.safetensors and an index is read from model.safetensors, as the
 * Hugging Face library does.
 */
#ifndef KVD_MODEL_CHECKPOINT_H
#define KVD_MODEL_CHECKPOINT_H

#include "common/run.h"
#include "model/config.h"
#include "model/safetensors.h"
#include "model/shards.h"

typedef struct kvd_checkpoint kvd_checkpoint;

/*
 * Refuses, besides what the readers of the formats refuse: shards and index that contradict each
 * other, a tensor that a model of this family and configuration does not have (family.h: a bias, a
 * layer too many, which the forward pass would silently leave out), and a missing embedding or head.
 * Shapes are checked when asked for.
 *
 * A file saved from a model without its head (Hugging Face's base model; OPT as published) has names
 * without the family's base ("decoder.layers.0..."); it is found under the full ones all the same.
 *
 * With a tied head (config.h) the embedding and the head are one tensor, which a file may store
 * under either name; both names then find it. When both are stored they must be equal.
 */
kvd_checkpoint *kvd_checkpoint_open(const char *path, kvd_err *err);

/*
 * Without a file: a model of this configuration with random weights (random.h), exact in bf16. Matrices, embeddings and
 * learned positions are close to normal with variance 1 / columns, gains 1, biases 0. Every product then has about the size
 * of what it is applied to, whatever the width: with a norm in front of every branch the residual stream after n layers stays
 * below sqrt(2n) or so, without a scale of the depth (tests/test_shapes.c goes through 80 layers of every family).
 *
 * `path` is what messages and files call it; `hash`, the content hash, must follow from configuration and seed.
 */
kvd_checkpoint *kvd_checkpoint_random(const char *path, const char *hash, const kvd_config *config,
                                      uint64_t seed, kvd_err *err);
void kvd_checkpoint_close(kvd_checkpoint *c);

const kvd_config *kvd_checkpoint_config(const kvd_checkpoint *c);
const char *kvd_checkpoint_path(const kvd_checkpoint *c);
/* The file with the configuration; NULL where that is in the file of the weights. */
const char *kvd_checkpoint_config_path(const kvd_checkpoint *c);

/*
 * Weights of few bits: from then on the matrices of every layer (of queries, keys, values, attention output and feed-forward network; no
 * norms, biases, embeddings or head) are read as what `bits` bits keep of them, quantised to the nearest in groups of `group` weights of a row, which is of one
 * output and runs along the inputs (common/quantise.h). Nothing is stored anew: weights.h does it whenever a part is read. Other readers of
 * tensors see the file. bits 2 .. 8, group 1 .. KVD_WEIGHT_GROUP; bits 0 undoes it.
 */
enum { KVD_WEIGHT_GROUP = 4096 };
void kvd_checkpoint_quantise(kvd_checkpoint *c, int bits, size_t group);
/* 0: as stored. */
int kvd_checkpoint_weight_bits(const kvd_checkpoint *c, size_t *group);

/* What most elements are stored as, for /model: "f32", "f16", "bf16", "q8_0", "q4_0"; of equals, the
 * first of these. "random" without a file. */
const char *kvd_checkpoint_dtype(const kvd_checkpoint *c);

/* Lists the checkpoint among the inputs of the run: hashes its files, or takes the hash it was made with. */
int kvd_checkpoint_add_input(const kvd_checkpoint *c, kvd_run *run, kvd_err *err);

/*
 * The tensor `name` with exactly this shape (rank 1: cols = 0). Fails naming the file, the
 * tensor, the shape found and the shape wanted, or that it is missing. kvd_checkpoint_has
 * only asks.
 */
int kvd_checkpoint_tensor(const kvd_checkpoint *c, const char *name, size_t rows, size_t cols,
                          kvd_tensor *out, kvd_err *err);
int kvd_checkpoint_has(const kvd_checkpoint *c, const char *name);

/* The safetensors files of the checkpoint, for those who write them anew; NULL of other formats. */
const kvd_shards *kvd_checkpoint_shards(const kvd_checkpoint *c);

/*
 * Where the tokenizer of this checkpoint is: tokenizer.json in the folder, NAME.tokenizer.json or
 * tokenizer.json beside NAME.safetensors, NAME.tok*.bin or tokenizer.bin beside a llama2.c
 * NAME.bin; a GGUF file itself, and only when it holds none NAME.tokenizer.json or tokenizer.json beside
 * it. The text is allocated; NULL with *err when there is none, or more than one.
 */
char *kvd_checkpoint_tokenizer_path(const kvd_checkpoint *c, kvd_err *err);

#endif
