/* Declarations shared by the files of the program kvdim-export. */
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
 * A copy of a Hugging Face checkpoint in which some weight tensors are multiplied with projections.
 * All other tensors are copied bit for bit, unless another dtype is selected.
 */

typedef struct {
    const kvd_checkpoint *from;
    const kvd_folded_list *folded;
    bool as_stored;  /* true: every tensor keeps its dtype of the input checkpoint */
    kvd_dtype dtype; /* dtype of all floating-point tensors if as_stored is false */
    kvd_progress *progress;
    double bytes_done;
} kvd_checkpoint_out;

/*
 * Writes all files of the checkpoint into `folder`. Memory holds only a part of one tensor at a
 * time. Fails if the input checkpoint is not in safetensors, or if a number is not finite or too
 * large for its dtype. Fails also if the program is interrupted.
 */
int kvd_checkpoint_write(kvd_checkpoint_out *w, const kvd_output *folder, kvd_err *err);

/* Computes the size in bytes of the weights that kvd_checkpoint_write will write. */
int kvd_checkpoint_out_bytes(const kvd_checkpoint_out *w, size_t *bytes, kvd_err *err);

/*
 * Writes model.safetensors.index.json, made from the same file of checkpoint c. The caller must
 * call this only if c has several weight files. `bytes` is the total size of the written weights.
 */
int kvd_companions_index(const kvd_checkpoint *c, size_t bytes, const kvd_output *folder,
                         kvd_err *err);

/*
 * Writes config.json. If `dtype` is NULL, the file is a byte-for-byte copy. Otherwise its dtype is
 * set to *dtype.
 */
int kvd_companions_config(const kvd_checkpoint *c, const kvd_dtype *dtype, const kvd_output *folder,
                          kvd_err *err);

/*
 * Copies the tokenizer, licence and other files next to config.json, byte for byte. If the
 * configuration is named NAME.config.json, copies only the tokenizer files whose names begin with
 * NAME.
 */
int kvd_companions_copy(const kvd_checkpoint *c, const kvd_output *folder, kvd_err *err);

typedef struct {
    kvd_common_options common;
    /*
     * Input files: the model, the singular values and rotations (`spectrum`), the kept dimensions
     * per head (`rates`), and, for each head and each number of kept dimensions, the loss of
     * quality (`table`). `rates` and `table` may be NULL.
     */
    const char *model, *spectrum, *rates, *table;
    /* Text of the option --method. If it is NULL, the method is derived from the file `rates`. */
    const char *method_text;
    char *own_text; /* allocated copy of method_text, or NULL */
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
 * Contents of rates.json, which kvdim-export writes into every output folder. All pointers are
 * borrowed.
 */
typedef struct {
    const char *form; /* "checkpoint" or "rotations" */
    const kvd_model_info *model;
    /*
     * Factor of the attention scores (`scale`), and the limit c in c tanh(score / c) (`softcap`),
     * from the model's configuration.
     */
    double scale, softcap;
    /* Kept dimensions and projections of all heads. */
    const kvd_point *point;
    /*
     * Index of the exported set of kept dimensions in the file --rates; -1 if no such file was
     * given.
     */
    long index;
    /*
     * folds[0] is true if the projections of Q and K are folded into the weights, folds[1] if the
     * projections of V are.
     */
    bool folds[2];
    /* dtype of the written weights, or "as stored" */
    const char *dtype;
    const kvd_run *run;
} kvd_rates_note;

/* Writes rates.json. Returns 0, or -1 with *err. docs/formats.md describes its fields. */
int kvd_rates_note_write(const kvd_rates_note *note, const kvd_output *folder, kvd_err *err);

/*
 * Returns the fraction of dimensions removed from the exported checkpoint: 1 - kept / all, over Q-K
 * and V. If the projections of Q-K or of V are not folded, all of their dimensions count as kept.
 */
double kvd_rates_note_folded_p(const kvd_rates_note *note);

/*
 * Returns true if kvdim-export wrote the folder: it has a rates.json with the schema kvdim/export,
 * and no subfolders.
 */
bool kvd_rates_note_found(const char *folder);

/*
 * Writes the projections to rotations.safetensors. For layer L and KV head H the file holds the
 * float32 tensors layers.L.kv_heads.H.{a_q, a_k} [d_head][d_qk], .a_v [d_head][d_v] and .b_v
 * [d_v][d_head]. If a method does not cut Q and K, or V, their tensors are absent.
 */
int kvd_rotations_write(const kvd_dims *dims, const kvd_output *folder, kvd_err *err);

#endif
