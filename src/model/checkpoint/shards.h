/*
 * Finds tensors by name in one safetensors file, or in the several files (shards) that an index
 * names.
 */
#ifndef KVD_MODEL_CHECKPOINT_SHARDS_H
#define KVD_MODEL_CHECKPOINT_SHARDS_H

#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"
#include "model/checkpoint/safetensors.h"

/*
 * Functions that build the names of the files of a checkpoint. The caller frees the returned
 * strings.
 */

/*
 * Returns the path folder/name, which the caller frees. If memory runs out, returns NULL and fills
 * *err.
 */
char *kvd_path_in_folder(const char *folder, const char *name, kvd_err *err);
/*
 * Returns the path of the file `name` in the same folder as the file `path`. The caller frees it.
 * If memory runs out, returns NULL and fills *err.
 */
char *kvd_path_beside(const char *path, const char *name, kvd_err *err);
/*
 * Returns `path`, which must end with `old`, with that ending replaced by `fresh`. The caller frees
 * the result. If memory runs out, returns NULL and fills *err.
 */
char *kvd_path_with_ending(const char *path, const char *old, const char *fresh, kvd_err *err);

/* Returns true if `path` ends with `end` and has at least one character before it. */
bool kvd_path_ends_with(const char *path, const char *end);

/* Returns 1 if the file exists, 0 if it does not, and -1 with *err if neither can be determined. */
int kvd_path_exists(const char *path, kvd_err *err);

/*
 * Stores `path` in *found if the file exists and *found is still NULL. Takes ownership of `path`.
 * `path` may be NULL, with *err filled, if building it failed.
 */
int kvd_path_take_existing(char *path, char **found, kvd_err *err);

/*
 * Finds the one file NAME.tok*.bin (tokenizer) in the folder of `path` (NAME.bin), and stores its
 * allocated path in *found, or NULL if there is none. Two such files are an error. NAME is compared
 * literally, not as a pattern, so it may contain any character.
 */
int kvd_path_tok_bin(const char *path, char **found, kvd_err *err);

typedef struct {
    const char *tensor; /* name of the tensor, borrowed from its file */
    size_t file;
} kvd_shard_entry;

typedef struct {
    kvd_safetensors **file; /* n_files opened safetensors files */
    /* Names of the n_files files within the folder; NULL if the checkpoint is a single file. */
    char **name;
    size_t n_files;
    kvd_shard_entry *entries; /* n_entries tensors of all files, sorted by name */
    size_t n_entries;
} kvd_shards;

/*
 * Opens the single safetensors file `path` and fills *s, which must be zeroed. Returns 0, or -1
 * with *err. The caller must call kvd_shards_release after a failure too.
 */
int kvd_shards_open_file(kvd_shards *s, const char *path, kvd_err *err);

/*
 * Opens the files in `folder` that the index file index_path (model.safetensors.index.json) names,
 * and fills *s as kvd_shards_open_file does. Fails for file names that lead out of the folder,
 * missing files, a tensor that is in two files, and any difference between index and files, in
 * either direction.
 */
int kvd_shards_open_index(kvd_shards *s, const char *folder, const char *index_path, kvd_err *err);
void kvd_shards_release(kvd_shards *s);

/*
 * Finds a tensor by name in all files. Returns 0 and fills *out, 1 if there is no such tensor, or
 * -1 with *err if its dtype is not supported.
 */
int kvd_shards_find(const kvd_shards *s, const char *tensor, kvd_tensor *out, kvd_err *err);

/*
 * Describes a tensor of any dtype as it is stored, as kvd_safetensors_stored does, and sets *file
 * to the path of its file. Returns 0, or 1 if there is no such tensor.
 */
int kvd_shards_stored(const kvd_shards *s, const char *tensor, kvd_tensor_spec *spec,
                      const void **data, size_t *bytes, const char **file);

/*
 * Experts that are stored together: one tensor holds the same matrix of all experts of a layer, as
 * in the files of gpt-oss. Each expert's matrix is found under a name that contains the expert's
 * index N:
 *
 *   "x.experts.N.y.weight"  is expert N of "x.experts.y" [n_experts][in][out], or of
 *                           "x.experts.y_blocks" [n_experts][out][in / 32][16] (U8) and
 *                           "x.experts.y_scales" [n_experts][out][in / 32] (U8), MXFP4
 *   "x.experts.N.y.bias"    is expert N of "x.experts.y_bias" [n_experts][out]
 */

/*
 * Finds the tensor `name` of one expert, such as "x.experts.7.y.weight", inside a tensor that
 * stores all n_experts experts together. Returns 0 and fills *out, or 1 if there is none. Returns
 * -1 with *err if the stored tensors have unexpected shapes or types (the expected ones are listed
 * above).
 */
int kvd_stacked_find(const kvd_shards *s, const char *name, size_t n_experts, kvd_tensor *out,
                     kvd_err *err);

/*
 * Writes to `name` the name of expert 0 of the tensor `stored` that holds all experts, such as
 * "x.experts.0.y.weight" for "x.experts.y_blocks". Returns false if the tensor does not hold
 * experts or the name is too long.
 */
bool kvd_stacked_name(const char *stored, char *name, size_t size);

#endif
