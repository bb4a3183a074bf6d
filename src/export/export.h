/* Declarations shared by the files of kvdim-export. */
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

/* copy of a checkpoint, in which weights are multiplied by projections; other tensors are
 * unchanged */

typedef struct {
    const kvd_checkpoint *from;
    const kvd_folded_list *folded;
    bool as_stored;  /* true if every tensor keeps its dtype */
    kvd_dtype dtype; /* dtype of all floating-point tensors if as_stored is false */
    kvd_progress *progress;
    double bytes_done;
} kvd_checkpoint_out;

/* Writes all files of the checkpoint. Fails if a weight is not finite or too large for its number
 * type, or if the user interrupts the program. */
int kvd_checkpoint_write(kvd_checkpoint_out *w, const kvd_output *folder, kvd_err *err);

/* Computes how many bytes of weights kvd_checkpoint_write would write. */
int kvd_checkpoint_out_bytes(const kvd_checkpoint_out *w, size_t *bytes, kvd_err *err);

typedef struct {
    kvd_common_options common;
    const char *model;
    kvd_method_paths files; /* one spectrum, at most one file of kept dimensions */
    /* value of the option --method; NULL if it is not given */
    const char *method_text;
    char *own_text; /* allocated copy of method_text, or NULL */
    kvd_method method;
    size_t point;
    double overall_p; /* fraction of dimensions to remove, from --overall-p; NaN if not given */
    bool point_given, rotations, force, dtype_given;
    kvd_dtype dtype;
} kvd_export_options;

/* Reads argv into zeroed *cfg. Wrong usage exits with status 2. */
void kvd_export_parse(int argc, char **argv, kvd_export_options *cfg);
void kvd_export_options_release(kvd_export_options *cfg);

/* contents of rates.json: kept dimensions and projections of a model; all pointers are borrowed */
typedef struct {
    const char *form; /* "checkpoint" or "rotations" */
    const kvd_model_info *model;
    double scale, softcap;  /* factor of the attention scores, and c in c tanh(score / c) */
    const kvd_point *point; /* kept dimensions and projections of all heads */
    long index;             /* index of the exported set of kept dimensions in --rates, or -1 */
    bool folds[2]; /* true if projections of Q and K (element 0) or of V (element 1) are folded */
    /* number type of the exported weights, such as "bf16", or "as stored" (not converted) */
    const char *dtype;
    const kvd_run *run;
} kvd_rates_note;

/* Writes the file rates.json: how many dimensions each head of an exported model keeps. */
int kvd_rates_note_write(const kvd_rates_note *note, const kvd_output *folder, kvd_err *err);

/* Returns the fraction of the dimensions of K and V that the exported weights leave out.
 * Projections that are not multiplied into the weights do not count. */
double kvd_rates_note_folded_p(const kvd_rates_note *note);

/* Returns true if `folder` has a rates.json of kvdim-export and no subfolders. */
bool kvd_rates_note_found(const char *folder);

/* Writes rotations.safetensors, float32 projections of each KV head: a_q, a_k [d_head][d_qk], a_v
 * [d_head][d_v], b_v [d_v][d_head]. Names are layers.L.kv_heads.H.a_q and so on. */
int kvd_rotations_write(const kvd_dims *dims, const kvd_output *folder, kvd_err *err);

#endif
