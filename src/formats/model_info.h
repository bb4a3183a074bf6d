/*
 * Description of the model in the HDF5 group /model, which every file has, and the check that two
 * files belong to the same model.
 */
#ifndef KVD_FORMATS_MODEL_INFO_H
#define KVD_FORMATS_MODEL_INFO_H

#include "common/files/h5.h"

typedef struct {
    char name[128]; /* name of the model: last part of the checkpoint's path */
    char hash[40];  /* content hash of the checkpoint, as in group /provenance */
    char family[32];
    int n_layers, n_heads, n_kv_heads, d_head, d_model, vocab_size, max_positions;
    double rope_theta; /* base of the RoPE frequencies; 0 if the model has no RoPE */
    /* Which dimensions RoPE rotates together: "half", "interleaved", or "none". */
    char rope_layout[16];
    char dtype[8]; /* element type of the weights; "random" for random weights */
} kvd_model_info;

/*
 * Returns the attribute that says in which form a dataset holds Q and K: "after" RoPE, "before"
 * RoPE, or "none" for a model without RoPE.
 */
const char *kvd_model_info_rope(const kvd_model_info *m, bool before);

/*
 * Returns true if the model has random weights (model/checkpoint/shapes.h), so that programs print
 * kvd_random_weights_note after the model's name.
 */
bool kvd_model_info_random(const kvd_model_info *m);
/*
 * Returns true if the model has the shape of a trained model but random weights (kvdim-collect
 * --untrained). Its results are a control for claims about the trained model.
 */
bool kvd_model_info_untrained(const kvd_model_info *m);
extern const char kvd_random_weights_note[];

int kvd_model_info_write(kvd_h5 *f, const kvd_model_info *m, kvd_err *err);
/*
 * Reads and checks the HDF5 group /model. Every size must be positive and below 1e6, and n_heads
 * divisible by n_kv_heads. On failure returns -1 and fills *err.
 */
int kvd_model_info_read(kvd_h5 *f, kvd_model_info *m, kvd_err *err);
/*
 * Checks that two files belong to the same model. On failure, *err names both files and the first
 * field that differs. The models' names may differ, their content hashes may not.
 */
int kvd_model_info_same(const kvd_model_info *a, const char *file_a, const kvd_model_info *b,
                        const char *file_b, kvd_err *err);

#endif
