/* The tensors of one safetensors file, or of the shards that an index names, found by name. */
#ifndef KVD_MODEL_SHARDS_H
#define KVD_MODEL_SHARDS_H

#include <stddef.h>

#include "model/safetensors.h"

typedef struct {
    const char *tensor; /* borrowed from its file */
    size_t file;
} kvd_shard_entry;

typedef struct {
    kvd_safetensors **file; /* [n_files]                                              */
    char **name;            /* [n_files] within the folder; NULL for a single file     */
    size_t n_files;
    kvd_shard_entry *entries; /* [n_entries] every tensor of every file, by name */
    size_t n_entries;
} kvd_shards;

/* Both fill a zeroed *s; kvd_shards_release is due after a failure too, and safe when zeroed. */
int kvd_shards_open_file(kvd_shards *s, const char *path, kvd_err *err);

/*
 * The files in `folder` that index_path (model.safetensors.index.json) names. Refuses file names
 * that lead out of the folder, missing files, a tensor in two files, and any difference between
 * the index and what the files hold, in either direction.
 */
int kvd_shards_open_index(kvd_shards *s, const char *folder, const char *index_path, kvd_err *err);
void kvd_shards_release(kvd_shards *s);

/* As kvd_safetensors_find: 0 found, 1 no such tensor, -1 a dtype that we cannot use. */
int kvd_shards_find(const kvd_shards *s, const char *tensor, kvd_tensor *out, kvd_err *err);

#endif
