/* Finds tensors by name in one safetensors file, or in the shards that an index names. */
#ifndef KVD_MODEL_CHECKPOINT_SHARDS_H
#define KVD_MODEL_CHECKPOINT_SHARDS_H

#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"
#include "model/checkpoint/safetensors.h"

/*
 * Functions for paths. They return allocated text, which the caller frees. If memory runs out, they
 * return NULL and fill *err.
 */

/* Returns "folder/name". */
char *kvd_path_in_folder(const char *folder, const char *name, kvd_err *err);
/* Returns the path of `name` in the folder of the file `path`. */
char *kvd_path_beside(const char *path, const char *name, kvd_err *err);
/* Returns `path` with its ending `old` replaced by `fresh`. */
char *kvd_path_with_ending(const char *path, const char *old, const char *fresh, kvd_err *err);

/* Returns true if `path` ends with `end` and is longer. */
bool kvd_path_ends_with(const char *path, const char *end);

/* Returns 1 if the file exists, 0 if not, or -1 with *err if this cannot be determined. */
int kvd_path_exists(const char *path, kvd_err *err);

/*
 * Stores `path` in *found if the file exists and *found is still NULL. The function takes ownership
 * of `path`: it frees the string if it does not store it. If `path` is NULL, the caller has filled
 * *err, and the function returns -1.
 */
int kvd_path_take_existing(char *path, char **found, kvd_err *err);

/*
 * Finds the tokenizer NAME.tok*.bin of `path` (NAME.bin). Stores its allocated path in *found, or
 * NULL if there is none. Two such files are an error.
 */
int kvd_path_tok_bin(const char *path, char **found, kvd_err *err);

typedef struct {
    const char *tensor; /* name of the tensor, borrowed from its file */
    size_t file;
} kvd_shard_entry;

typedef struct {
    kvd_safetensors **file;
    /* Names of the files within the folder; NULL if the checkpoint is a single file. */
    char **name;
    size_t n_files;
    kvd_shard_entry *entries; /* sorted by name */
    size_t n_entries;
} kvd_shards;

/*
 * Opens the single file `path` and fills *s, which must be zeroed. Returns 0, or -1 with *err. The
 * caller must call kvd_shards_release after a failure too.
 */
int kvd_shards_open_file(kvd_shards *s, const char *path, kvd_err *err);

/*
 * Opens the files in `folder` that the index model.safetensors.index.json names, and fills *s, as
 * kvd_shards_open_file does for one file. Fails if a tensor is in two files, or if the index and
 * the files disagree.
 */
int kvd_shards_open_index(kvd_shards *s, const char *folder, const char *index_path, kvd_err *err);
void kvd_shards_release(kvd_shards *s);

/*
 * Finds a tensor by name. Returns 0 and fills *out, 1 if there is no such tensor, or -1 with *err
 * if its dtype is not supported.
 */
int kvd_shards_find(const kvd_shards *s, const char *tensor, kvd_tensor *out, kvd_err *err);

/*
 * Describes the tensor as kvd_safetensors_stored does; *file becomes the path of the tensor's file.
 * Returns 0, or 1 if there is no such tensor.
 */
int kvd_shards_stored(const kvd_shards *s, const char *tensor, kvd_tensor_spec *spec,
                      const void **data, size_t *bytes, const char **file);

/*
 * In files such as those of gpt-oss, one tensor holds the same matrix (such as the gate matrix) of
 * all experts of a layer. Readers find each expert's matrix under a name that contains the expert's
 * index N. It has `in` columns and `out` rows:
 *
 *   "x.experts.N.y.weight"  is matrix N of "x.experts.y" [n_experts][in][out], or of
 *                           "x.experts.y_blocks" [n_experts][out][in / 32][16] (U8) and
 *                           "x.experts.y_scales" [n_experts][out][in / 32] (U8), MXFP4
 *   "x.experts.N.y.bias"    is row N of "x.experts.y_bias" [n_experts][out]
 */

/*
 * Finds one expert's tensor inside a tensor that stores all n_experts experts. Returns 0, or 1 if
 * there is no such tensor. Returns -1 with *err if the stored tensors have unexpected shapes or
 * types.
 */
int kvd_stacked_find(const kvd_shards *s, const char *name, size_t n_experts, kvd_tensor *out,
                     kvd_err *err);

/*
 * Writes the name that a reader uses for the tensor of expert 0, such as "x.experts.0.y.weight" for
 * the stored tensor "x.experts.y_blocks". Returns false if the tensor does not hold experts or the
 * name is too long.
 */
bool kvd_stacked_name(const char *stored, char *name, size_t size);

#endif
