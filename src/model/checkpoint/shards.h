/* Finds tensors by name in safetensors files. */
#ifndef KVD_MODEL_CHECKPOINT_SHARDS_H
#define KVD_MODEL_CHECKPOINT_SHARDS_H

#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"
#include "model/checkpoint/safetensors.h"

/* Returns the path "folder/name", which the caller frees. */
char *kvd_path_in_folder(const char *folder, const char *name, kvd_err *err);
/* Returns the path of file `name` in the folder that contains the file `path`. */
char *kvd_path_beside(const char *path, const char *name, kvd_err *err);
char *kvd_path_with_ending(const char *path, const char *old, const char *fresh, kvd_err *err);

/* Returns true if `path` ends with `end` and is longer. */
bool kvd_path_ends_with(const char *path, const char *end);

/* Returns 1 if the file exists, 0 if not, -1 if this is unknown. */
int kvd_path_exists(const char *path, kvd_err *err);

/* If *found is NULL and the file exists, moves `path` to *found. Otherwise frees `path`. */
int kvd_path_take_existing(char *path, char **found, kvd_err *err);

/* Finds the tokenizer NAME.tok*.bin of NAME.bin. *found receives its allocated path or NULL. Two
 * are an error. */
int kvd_path_tok_bin(const char *path, char **found, kvd_err *err);

typedef struct {
    const char *tensor; /* name of the tensor, borrowed from its file */
    size_t file;
} kvd_shard_entry;

typedef struct {
    kvd_safetensors **file;
    /* names of the files in the folder; NULL for a single file */
    char **name;
    size_t n_files;
    kvd_shard_entry *entries; /* sorted by name */
    size_t n_entries;
} kvd_shards;

/* Opens one file in the zeroed *s. Call kvd_shards_release even on failure. */
int kvd_shards_open_file(kvd_shards *s, const char *path, kvd_err *err);

/* Opens the files that an index names. Fails if index and files disagree. */
int kvd_shards_open_index(kvd_shards *s, const char *folder, const char *index_path, kvd_err *err);
void kvd_shards_release(kvd_shards *s);

/* Finds a tensor. Returns 1 if there is none, -1 if its type is not supported. */
int kvd_shards_find(const kvd_shards *s, const char *tensor, kvd_tensor *out, kvd_err *err);

/* Describes a tensor of any data type. Returns 1 if there is none. */
int kvd_shards_stored(const kvd_shards *s, const char *tensor, kvd_tensor_spec *spec,
                      const void **data, size_t *bytes, const char **file);

/* Tensors with the matrices of all experts of a layer, as in gpt-oss:
 *
 * "x.experts.N.y.weight"  is matrix N of "x.experts.y" [n_experts][in][out]; in MXFP4, of
 * "x.experts.y_blocks" [n_experts][out][in / 32][16] and "x.experts.y_scales" [n_experts][out][in /
 * 32]
 * "x.experts.N.y.bias"    is row N of "x.experts.y_bias" [n_experts][out] */

/* Finds one expert's part of a tensor. Returns 1 if there is none. */
int kvd_stacked_find(const kvd_shards *s, const char *name, size_t n_experts, kvd_tensor *out,
                     kvd_err *err);

/* Writes the name of expert 0's part: "x.experts.0.y.weight" for "x.experts.y_blocks". */
bool kvd_stacked_name(const char *stored, char *name, size_t size);

#endif
