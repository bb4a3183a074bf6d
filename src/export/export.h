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
    bool as_stored;  /* true: every tensor keeps the dtype that it has in the input checkpoint */
    kvd_dtype dtype; /* dtype of all floating-point tensors if as_stored is false */
    kvd_progress *progress;
    double bytes_done;
} kvd_checkpoint_out;

/*
 * Writes weights, index, config.json and the remaining files of the checkpoint into `folder`.
 * Memory holds only a part of one tensor at a time. Fails if the input checkpoint is not in
 * safetensors, if a number is not finite or too large for its dtype (the message names tensor and
 * element), if the disk is full, or if the program is interrupted.
 */
int kvd_checkpoint_write(kvd_checkpoint_out *w, const kvd_output *folder, kvd_err *err);

/*
 * Computes the size in bytes of the weights that kvd_checkpoint_write will write. Used for the
 * progress display.
 */
int kvd_checkpoint_out_bytes(const kvd_checkpoint_out *w, size_t *bytes, kvd_err *err);

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
 * Copies, byte for byte, the files that loading, tokenising, generating and lawful use need in
 * addition to config.json and the weights. They are in the folder of config.json. If the
 * configuration has another name (NAME.config.json for a single NAME.safetensors), copies only its
 * tokenizer.
 */
int kvd_companions_copy(const kvd_checkpoint *c, const kvd_output *folder, kvd_err *err);

typedef struct {
    kvd_common_options common;
    /*
     * Paths of the input files: model, singular values and rotations (`spectrum`), kept dimensions
     * per head (`rates`), and loss of quality per head and number of kept dimensions (`table`).
     * `rates` and `table` are NULL if not given.
     */
    const char *model, *spectrum, *rates, *table;
    /*
     * Method as the user typed it in --method. NULL: the method is the one that rotates the same
     * matrices (such as Q and K together) as the file `rates`.
     */
    const char *method_text;
    char *own_text; /* copy of the text of --method, to which method_text then points; allocated */
    kvd_method method;
    size_t point;
    double overall_p; /* fraction of all dimensions to remove, from --overall-p; NaN if not given */
    bool point_given, rotations, force, dtype_given;
    kvd_dtype dtype;
} kvd_export_options;

/* Reads argv into *cfg, which must be zeroed. Wrong usage ends the program with status 2. */
void kvd_export_parse(int argc, char **argv, kvd_export_options *cfg);
void kvd_export_options_release(kvd_export_options *cfg);

/*
 * Data from which rates.json is written. Every folder of kvdim-export contains that file: the
 * method, the kept dimensions of all heads, and the inputs. All pointers are borrowed.
 */
typedef struct {
    const char *form; /* content of the exported folder: "checkpoint" or "rotations" */
    const kvd_model_info *model;
    /* Scale and softcap of attention scores of heads that are not cut, from kvd_config_scores. */
    double scale, softcap;
    /*
     * Kept dimensions of all heads and their projections. They are for Q and K and for V, unless
     * the parameter `cut` of the method limits it to one of the two.
     */
    const kvd_point *point;
    /*
     * Index of the kept dimensions of `point` in the file of kept dimensions (--rates), which may
     * have several sets of them. -1 if the user gave the fraction p of dimensions to remove, or the
     * singular value removal rate r, instead of such a file.
     */
    long index;
    /*
     * True if the projections of Q and K [0] or of V [1] are folded into the checkpoint's weights.
     */
    bool folds[2];
    /* Dtype of the written weights: "as stored", or the one dtype of all tensors. */
    const char *dtype;
    const kvd_run *run;
} kvd_rates_note;

/*
 * Writes rates.json into the folder, with the fields of docs/formats.md. Returns 0, or -1 with
 * *err.
 */
int kvd_rates_note_write(const kvd_rates_note *note, const kvd_output *folder, kvd_err *err);

/*
 * Returns the fraction of dimensions that are removed from the exported checkpoint: 1 - kept /
 * all, over Q-K and V. If Q-K or V is not folded, all its dimensions count as kept.
 */
double kvd_rates_note_folded_p(const kvd_rates_note *note);

/*
 * Returns true if kvdim-export wrote the folder: its rates.json has the schema kvdim/export, and
 * the folder contains no subfolders.
 */
bool kvd_rates_note_found(const char *folder);

/*
 * Writes the projections of a compression method to rotations.safetensors, for use by other
 * programs. For layer L and KV head H it holds the float32 tensors layers.L.kv_heads.H.{a_q, a_k}
 * [d_head][d_qk], .a_v [d_head][d_v] and .b_v [d_v][d_head], with d_qk and d_v of that head. If
 * Q-K or V is not cut, it has no tensors.
 */
int kvd_rotations_write(const kvd_dims *dims, const kvd_output *folder, kvd_err *err);

#endif
