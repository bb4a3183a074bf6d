/* Description of the model, stored as /model in every file. */
#ifndef KVD_FORMATS_MODEL_INFO_H
#define KVD_FORMATS_MODEL_INFO_H

#include "common/files/h5.h"

typedef struct {
    char name[128]; /* last part of the checkpoint's path */
    char hash[40];
    char family[32];
    int n_layers, n_heads, n_kv_heads, d_head, d_model, vocab_size, max_positions;
    double rope_theta; /* base of the RoPE frequencies; 0 if the model has no RoPE */
    /* dimensions that RoPE rotates together: i and i + n / 2 of n ("half"), adjacent ones
     * ("interleaved"), or none ("none") */
    char rope_layout[16];
    char dtype[8]; /* element type of the weights; "random" for random weights */
} kvd_model_info;

/* Returns where Q and K are recorded: "before" RoPE if `before`, else "after" RoPE; "none" if the
 * model has no RoPE. */
const char *kvd_model_info_rope(const kvd_model_info *m, bool before);

bool kvd_model_info_random(const kvd_model_info *m);
/* Returns true for a model that has the shape of a trained model, but random weights. */
bool kvd_model_info_untrained(const kvd_model_info *m);
extern const char kvd_random_weights_note[];

int kvd_model_info_write(kvd_h5 *f, const kvd_model_info *m, kvd_err *err);
/* Reads group /model. Fails on sizes of 1e6 or more, or n_heads not divisible by n_kv_heads. */
int kvd_model_info_read(kvd_h5 *f, kvd_model_info *m, kvd_err *err);
/* Fails if two models differ, except in name. The message names the difference. */
int kvd_model_info_same(const kvd_model_info *a, const char *file_a, const kvd_model_info *b,
                        const char *file_b, kvd_err *err);

/* a tokenised text corpus, identified by path, label and content hash */
typedef struct {
    const char *path, *label;
    const char *hash; /* content hash of the token ids; "" if not recorded */
    size_t n_tokens;
    size_t seq_len; /* tokens per sequence; 0 if not recorded */
} kvd_named_text;

/* Fails if *a and *b have the same label, but their hashes show that their contents differ. */
int kvd_named_texts_agree(const kvd_named_text *a, const kvd_named_text *b, kvd_err *err);

#endif
