/*
 * Model, tokenizer and texts of a program. Functions that return pointers return NULL with *err on
 * failure.
 */
#ifndef KVD_MODEL_MODEL_INFO_H
#define KVD_MODEL_MODEL_INFO_H

#include "formats/model_info.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/config.h"
#include "model/text/corpus.h"

/*
 * Fills the group /model of a result file. `hash`: checkpoint's content hash; `dtype`: type of
 * weights; NULL means "".
 */
void kvd_model_info_set(kvd_model_info *m, const kvd_config *c, const char *path, const char *hash,
                        const char *dtype);

/* Warns as `program` (or NULL) if the tokenizer seems to be another model's. */
kvd_tokenizer *kvd_model_tokenizer(const kvd_checkpoint *c, const char *program, kvd_err *err);

/* Opens the corpus `spec`, encoded with the checkpoint's tokenizer. */
kvd_corpus *kvd_model_corpus(const kvd_checkpoint *c, const kvd_corpus_spec *spec,
                             const char *program, kvd_err *err);

/* Replaces *seq_len 0 by at most 512. Fails if *seq_len exceeds the model's longest sequence. */
int kvd_model_seq_len(const kvd_config *model, size_t *seq_len, kvd_err *err);

#endif
