/* Texts of a model: the tokenizer that its checkpoint has, and the windows that it can read. */
#ifndef KVD_MODEL_MODEL_TEXT_H
#define KVD_MODEL_MODEL_TEXT_H

#include "model/checkpoint/checkpoint.h"
#include "model/text/corpus.h"

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
