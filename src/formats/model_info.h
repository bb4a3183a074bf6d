/* Description of the model in the group /model of every file. */
#ifndef KVD_FORMATS_MODEL_INFO_H
#define KVD_FORMATS_MODEL_INFO_H

#include "common/files/h5.h"

typedef struct {
    char name[128]; /* last part of the checkpoint's path */
    /* content hash of the checkpoint */
    char hash[40];
    char family[32];
    int n_layers, n_heads, n_kv_heads, d_head, d_model, vocab_size, max_positions;
    double rope_theta; /* base of the RoPE frequencies; 0 without RoPE */
    /* dimensions that RoPE rotates together: "half", "interleaved", "none" */
    char rope_layout[16];
    char dtype[8]; /* element type of the weights; "random" for random weights */
} kvd_model_info;

/* Returns where Q and K are taken: "after" or "before" RoPE, or "none" without RoPE. */
const char *kvd_model_info_rope(const kvd_model_info *m, bool before);

/* Programs print kvd_random_weights_note after the name of such a model. */
bool kvd_model_info_random(const kvd_model_info *m);
/* Returns true for random weights in the shape of a trained model (kvdim-collect --untrained). */
bool kvd_model_info_untrained(const kvd_model_info *m);
extern const char kvd_random_weights_note[];

int kvd_model_info_write(kvd_h5 *f, const kvd_model_info *m, kvd_err *err);
/*
 * Reads the group /model. Sizes are 1 .. 1e6, n_heads divisible by n_kv_heads. On failure returns
 * -1 and fills *err.
 */
int kvd_model_info_read(kvd_h5 *f, kvd_model_info *m, kvd_err *err);
/*
 * Fails, naming both files and the first different field, if two files are of different models.
 * Names may differ.
 */
int kvd_model_info_same(const kvd_model_info *a, const char *file_a, const kvd_model_info *b,
                        const char *file_b, kvd_err *err);

/* A calibration or evaluation text of a result file or an option. */
typedef struct {
    const char *path, *label;
    const char *hash; /* content hash of the token ids; "" if not recorded */
    size_t n_tokens;
    size_t seq_len; /* 0 if not recorded */
} kvd_named_text;

/*
 * Fails, naming hash and path of `a` and `b`, if texts of equal label, tokens and sequence length
 * have different contents.
 */
int kvd_named_texts_agree(const kvd_named_text *a, const kvd_named_text *b, kvd_err *err);

#endif
