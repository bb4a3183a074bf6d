/* Files that kvdim-export adds to its folder: rates.json, and rotations.safetensors. */
#ifndef KVD_EXPORT_FOLDER_NOTES_H
#define KVD_EXPORT_FOLDER_NOTES_H

#include "common/files/output_folder.h"
#include "common/run.h"
#include "methods/dims/dims.h"
#include "methods/points.h"

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
