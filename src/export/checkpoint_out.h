/*
 * Writes a copy of a Hugging Face checkpoint with folded tensors replaced. The copy has the same
 * files and names, with configuration and tokenizer. All other tensors are copied bit for bit,
 * unless another dtype is selected.
 */
#ifndef KVD_EXPORT_CHECKPOINT_OUT_H
#define KVD_EXPORT_CHECKPOINT_OUT_H

#include "common/files/output_folder.h"
#include "common/progress.h"
#include "methods/folded.h"
#include "model/checkpoint/checkpoint.h"

typedef struct {
    const kvd_checkpoint *from;
    const kvd_folded_list *folded;
    bool as_stored;  /* true if every tensor keeps its dtype */
    kvd_dtype dtype; /* dtype of all floating-point tensors if as_stored is false */
    kvd_progress *progress;
    double bytes_done;
} kvd_checkpoint_out;

/*
 * Writes weights, index, config.json and the other files of a checkpoint into the folder. Holds a
 * piece of one tensor in memory at a time. Fails if the checkpoint is not in safetensors, if a
 * number is not finite or too large for its dtype (naming tensor and element), if the disk is full,
 * or if the program is interrupted.
 */
int kvd_checkpoint_write(kvd_checkpoint_out *w, const kvd_output *folder, kvd_err *err);

/* Computes the bytes of weights that will be written, for progress. */
int kvd_checkpoint_out_bytes(const kvd_checkpoint_out *w, size_t *bytes, kvd_err *err);

/*
 * Writes the files that accompany the weights of a Hugging Face checkpoint: index, configuration,
 * tokenizer, licence.
 */

/*
 * Writes model.safetensors.index.json of a checkpoint in shards, with the total size of the new
 * weights, `bytes`.
 */
int kvd_companions_index(const kvd_checkpoint *c, size_t bytes, const kvd_output *folder,
                         kvd_err *err);

/* Writes config.json: byte for byte if `dtype` is NULL, else with the name of *dtype. */
int kvd_companions_config(const kvd_checkpoint *c, const kvd_dtype *dtype, const kvd_output *folder,
                          kvd_err *err);

/*
 * Copies, byte for byte, the other files of the folder of config.json that loading, tokenising,
 * generating and lawful use need. If the configuration is not named config.json (NAME.config.json
 * of a single NAME.safetensors), copies only its tokenizer.
 */
int kvd_companions_copy(const kvd_checkpoint *c, const kvd_output *folder, kvd_err *err);

#endif
