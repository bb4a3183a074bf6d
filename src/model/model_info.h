/* Functions that describe the model of a program, and open its tokenizer and its texts. */
#ifndef KVD_MODEL_MODEL_INFO_H
#define KVD_MODEL_MODEL_INFO_H

#include "formats/model_info.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/config.h"
#include "model/text/corpus.h"

/*
 * Fills *m, the group /model of a result file. The model's name is the last part of `path` or, if
 * that part is "." or "..", the last part of the full path. A name that is too long is cut off.
 *
 * `hash` is the content hash of the checkpoint, `dtype` the type of its weights; NULL means an
 * empty string.
 */
void kvd_model_info_set(kvd_model_info *m, const kvd_config *c, const char *path, const char *hash,
                        const char *dtype);

/*
 * Opens the tokenizer of the checkpoint. If the tokenizer seems to belong to another model, prints
 * a warning in the name of `program`, unless `program` is NULL. On failure returns NULL and fills
 * *err.
 */
kvd_tokenizer *kvd_model_tokenizer(const kvd_checkpoint *c, const char *program, kvd_err *err);

/*
 * Opens the corpus that `spec` describes; texts are encoded with the tokenizer of the checkpoint.
 * On failure returns NULL and fills *err.
 */
kvd_corpus *kvd_model_corpus(const kvd_checkpoint *c, const kvd_corpus_spec *spec,
                             const char *program, kvd_err *err);

/*
 * If *seq_len is 0, sets it to the default: 512 tokens, or the model's longest sequence if that is
 * shorter. Fails if *seq_len exceeds the longest sequence.
 */
int kvd_model_seq_len(const kvd_config *model, size_t *seq_len, kvd_err *err);

#endif
