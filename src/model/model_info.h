/*
 * Describes a program's model, and opens its tokenizer and texts. Functions that return pointers
 * return NULL with *err on failure.
 */
#ifndef KVD_MODEL_MODEL_INFO_H
#define KVD_MODEL_MODEL_INFO_H

#include "formats/model_info.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/config.h"
#include "model/text/corpus.h"

/* `hash`: content hash of the checkpoint; `dtype`: type of its weights; NULL means "". */
void kvd_model_info_set(kvd_model_info *m, const kvd_config *c, const char *path, const char *hash,
                        const char *dtype);

/*
 * Opens the tokenizer; warns in the name of `program`, if not NULL, if it seems to be another
 * model's.
 */
kvd_tokenizer *kvd_model_tokenizer(const kvd_checkpoint *c, const char *program, kvd_err *err);

/* Opens the corpus `spec`, encoded with the checkpoint's tokenizer. */
kvd_corpus *kvd_model_corpus(const kvd_checkpoint *c, const kvd_corpus_spec *spec,
                             const char *program, kvd_err *err);

/* Replaces 0 by 512 or the model's longest sequence, if shorter. Fails if *seq_len is longer. */
int kvd_model_seq_len(const kvd_config *model, size_t *seq_len, kvd_err *err);

#endif
