/*
 * The parts of kvdim-export: its command line, the checkpoint that it writes, and the files that
 * it adds to the folder.
 */
#ifndef KVD_EXPORT_EXPORT_H
#define KVD_EXPORT_EXPORT_H

#include "common/files/output_folder.h"
#include "common/half.h"
#include "common/options.h"
#include "common/progress.h"
#include "common/run.h"
#include "methods/dims/dims.h"
#include "methods/folded.h"
#include "methods/method.h"
#include "methods/points.h"
#include "model/checkpoint/checkpoint.h"

/*
 * Writes a copy of a Hugging Face checkpoint with folded tensors replaced. The copy has the same
 * files and names, with configuration and tokenizer. All other tensors are copied bit for bit,
 * unless another dtype is selected.
 */

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

/* Parses the command line of kvdim-export. */

typedef struct {
    kvd_common_options common;
    const char *model, *spectrum, *rates, *table; /* rates, table: NULL if not given */
    const char *method_text; /* NULL if chosen by the pairs of the rates file */
    char *own_text;          /* allocated */
    kvd_method method;
    size_t point;
    double overall_p; /* NaN if not given */
    bool point_given, rotations, force, dtype_given;
    kvd_dtype dtype;
} kvd_export_options;

/* Reads argv into *cfg, which must be zeroed. Wrong usage ends the program with status 2. */
void kvd_export_parse(int argc, char **argv, kvd_export_options *cfg);
void kvd_export_options_release(kvd_export_options *cfg);

/* Files that kvdim-export adds to its folder: rates.json, and rotations.safetensors. */

/*
 * Writes rates.json, which every folder of kvdim-export contains. It states the chosen method and
 * point, the widths, and the inputs.
 */

/* Contents of rates.json. All pointers are borrowed. */
typedef struct {
    const char *form; /* "checkpoint" or "rotations" */
    const kvd_model_info *model;
    double scale, softcap;  /* of the scores of whole heads, kvd_config_scores */
    const kvd_point *point; /* chosen point; it covers both sides unless key cut names one */
    long index;             /* index of the point in the rates file; -1 if p or r was given */
    bool folds[2];          /* true if the checkpoint holds Q-K [0] or V [1] cut */
    const char *dtype;      /* "as stored", or the dtype of all tensors */
    const kvd_run *run;
} kvd_rates_note;

/*
 * Writes rates.json into the folder, with the fields of docs/formats.md. Returns 0, or -1 with
 * *err.
 */
int kvd_rates_note_write(const kvd_rates_note *note, const kvd_output *folder, kvd_err *err);

/*
 * Returns the overall p of the exported checkpoint: 1 - kept / whole over both sides, where a side
 * that is not folded counts as whole.
 */
double kvd_rates_note_folded_p(const kvd_rates_note *note);

/*
 * Returns true if kvdim-export wrote the folder: its rates.json says so, and it holds only files.
 */
bool kvd_rates_note_found(const char *folder);

/* Writes projections for use by other programs, as rotations.safetensors. */

/*
 * Writes rotations.safetensors. For layer L and KV head H it holds the float32 tensors
 * layers.L.kv_heads.H.{a_q, a_k} [d_head][d_qk], .a_v [d_head][d_v] and .b_v [d_v][d_head], each at
 * the head's own width. A side that is left whole has no tensors.
 */
int kvd_rotations_write(const kvd_dims *dims, const kvd_output *folder, kvd_err *err);

#endif
