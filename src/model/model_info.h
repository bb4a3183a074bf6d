/* The model of a run: its entry in result files, and its tokenizer and texts. */
#ifndef KVD_MODEL_MODEL_INFO_H
#define KVD_MODEL_MODEL_INFO_H

#include "formats/model_info.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/config.h"
#include "model/text/corpus.h"

/* Fills the group /model of a result file from the model that the run has opened. */

/*
 * Fills *m. The model's name is the last part of `path`; a name that does not fit is cut after a
 * whole UTF-8 character. `hash` is the content hash of the checkpoint, `dtype` the type of its
 * weights; NULL means an empty text.
 */
void kvd_model_info_set(kvd_model_info *m, const kvd_config *c, const char *path, const char *hash,
                        const char *dtype);

/* Texts of a model: the tokenizer that its checkpoint has, and the windows that it can read. */

/*
 * Opens the tokenizer of a checkpoint, and warns on stderr in the name of `program` if it seems to
 * be another model's; NULL: no warning. Returns NULL with *err on failure.
 */
kvd_tokenizer *kvd_model_tokenizer(const kvd_checkpoint *c, const char *program, kvd_err *err);

/*
 * Opens the corpus of `spec`, with the tokenizer of the checkpoint if it names texts. Returns NULL
 * with *err on failure.
 */
kvd_corpus *kvd_model_corpus(const kvd_checkpoint *c, const kvd_corpus_spec *spec,
                             const char *program, kvd_err *err);

/*
 * Sets the default of --seq-len, which is 0 if it was not given: 512 tokens, or the model's longest
 * sequence. Fails if it is longer than that.
 */
int kvd_model_seq_len(const kvd_config *model, size_t *seq_len, kvd_err *err);

#endif
