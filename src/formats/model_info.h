/* Description of the model in the HDF5 group /model of every file. */
#ifndef KVD_FORMATS_MODEL_INFO_H
#define KVD_FORMATS_MODEL_INFO_H

#include "common/files/h5.h"

typedef struct {
    char name[128]; /* last part of the checkpoint's path */
    /* Content hash of the checkpoint. */
    char hash[40];
    char family[32];
    int n_layers, n_heads, n_kv_heads, d_head, d_model, vocab_size, max_positions;
    double rope_theta; /* base of the RoPE frequencies; 0 if the model has no RoPE */
    /* Dimensions that RoPE rotates together: "half", "interleaved", or "none". */
    char rope_layout[16];
    char dtype[8]; /* element type of the weights; "random" for random weights */
} kvd_model_info;

/* Returns where Q and K are taken: "after" or "before" RoPE, or "none" for a model without RoPE. */
const char *kvd_model_info_rope(const kvd_model_info *m, bool before);

/*
 * Returns true for random weights. Programs then print kvd_random_weights_note after the model's
 * name.
 */
bool kvd_model_info_random(const kvd_model_info *m);
/* Returns true for random weights in the shape of a trained model (kvdim-collect --untrained). */
bool kvd_model_info_untrained(const kvd_model_info *m);
extern const char kvd_random_weights_note[];

int kvd_model_info_write(kvd_h5 *f, const kvd_model_info *m, kvd_err *err);
/*
 * Reads the group /model. Sizes must be positive and below 1e6, and n_heads divisible by
 * n_kv_heads. On failure returns -1 and fills *err.
 */
int kvd_model_info_read(kvd_h5 *f, kvd_model_info *m, kvd_err *err);
/*
 * Checks that two files were made from one model. Names may differ, but not content hashes. On
 * failure *err names both files and the first field that differs.
 */
int kvd_model_info_same(const kvd_model_info *a, const char *file_a, const kvd_model_info *b,
                        const char *file_b, kvd_err *err);

/* A text (calibration or evaluation data) that a result file or an option names. */
typedef struct {
    const char *path, *label;
    const char *hash; /* content hash of the token ids; "" if not recorded */
    size_t n_tokens;
    size_t seq_len; /* 0 if not recorded */
} kvd_named_text;

/*
 * Fails if two texts, tokenised for the same model, have equal labels, numbers of tokens and
 * sequence lengths but different contents. The message names the hash and the path of `a`, then of
 * `b`.
 */
int kvd_named_texts_agree(const kvd_named_text *a, const kvd_named_text *b, kvd_err *err);

#endif
