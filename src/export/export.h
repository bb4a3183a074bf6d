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
 * Writes a copy of a Hugging Face checkpoint in which some tensors are replaced by folded ones
 * (multiplied with projections). The copy has the same files and names, with configuration and
 * tokenizer. All other tensors are copied bit for bit, unless another dtype is selected.
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
 * Writes weights, index, config.json and the other files of the checkpoint into `folder`. Memory
 * holds only a piece of one tensor at a time. Fails if the input checkpoint is not in safetensors,
 * if a number is not finite or too large for its dtype (the message names tensor and element), if
 * the disk is full, or if the program is interrupted.
 */
int kvd_checkpoint_write(kvd_checkpoint_out *w, const kvd_output *folder, kvd_err *err);

/*
 * Computes the size in bytes of the weights that kvd_checkpoint_write will write. Used for the
 * progress display.
 */
int kvd_checkpoint_out_bytes(const kvd_checkpoint_out *w, size_t *bytes, kvd_err *err);

/*
 * Writes the files that accompany the weights of a Hugging Face checkpoint: index, configuration,
 * tokenizer, licence.
 */

/*
 * Writes model.safetensors.index.json for a checkpoint whose weights are divided among several
 * files. `bytes` is the total size of the written weights.
 */
int kvd_companions_index(const kvd_checkpoint *c, size_t bytes, const kvd_output *folder,
                         kvd_err *err);

/*
 * Writes config.json into `folder`: a byte-for-byte copy if `dtype` is NULL, else a copy with its
 * dtype set to *dtype.
 */
int kvd_companions_config(const kvd_checkpoint *c, const kvd_dtype *dtype, const kvd_output *folder,
                          kvd_err *err);

/*
 * Copies, byte for byte, the other files that loading, tokenising, generating and lawful use need,
 * from the folder of config.json. If the configuration has another name (NAME.config.json for a
 * single NAME.safetensors), copies only its tokenizer.
 */
int kvd_companions_copy(const kvd_checkpoint *c, const kvd_output *folder, kvd_err *err);

/* Parses the command line of kvdim-export. */

typedef struct {
    kvd_common_options common;
    const char *model, *spectrum, *rates, *table; /* rates, table: NULL if not given */
    const char *method_text; /* name of the method; NULL: chosen by the pairs of the rates file */
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
 * Writes rates.json, which every folder of kvdim-export contains: the chosen method and point, the
 * kept widths of all heads, and the inputs.
 */

/* Data from which rates.json is written. All pointers are borrowed. */
typedef struct {
    const char *form; /* "checkpoint" or "rotations" */
    const kvd_model_info *model;
    double scale, softcap;  /* score scale and softcap of uncut heads, from kvd_config_scores */
    const kvd_point *point; /* chosen point; it covers both sides unless key cut names one */
    long index;             /* index of the point in the rates file; -1 if p or r was given */
    bool folds[2];          /* true if Q and K [0] or V [1] are folded into the checkpoint */
    const char *dtype;      /* "as stored", or the dtype of all tensors */
    const kvd_run *run;
} kvd_rates_note;

/*
 * Writes rates.json into the folder, with the fields of docs/formats.md. Returns 0, or -1 with
 * *err.
 */
int kvd_rates_note_write(const kvd_rates_note *note, const kvd_output *folder, kvd_err *err);

/*
 * Returns the fraction of dimensions that are removed from the exported checkpoint, 1 - kept / all
 * over Q-K and V. A side that is not folded counts as kept completely.
 */
double kvd_rates_note_folded_p(const kvd_rates_note *note);

/*
 * Returns true if kvdim-export wrote the folder: its rates.json has the schema kvdim/export, and it
 * contains no subfolders.
 */
bool kvd_rates_note_found(const char *folder);

/*
 * Writes the projections of a compression method to rotations.safetensors, for use by other
 * programs.
 */

/*
 * Writes rotations.safetensors. For layer L and KV head H it holds the float32 tensors
 * layers.L.kv_heads.H.{a_q, a_k} [d_head][d_qk], .a_v [d_head][d_v] and .b_v [d_v][d_head], each at
 * the head's own width. A side (Q and K, or V) that is not cut has no tensors.
 */
int kvd_rotations_write(const kvd_dims *dims, const kvd_output *folder, kvd_err *err);

#endif
