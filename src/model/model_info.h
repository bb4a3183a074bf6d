/* Functions that programs share: they describe a model, and open its tokenizer and texts. */
#ifndef KVD_MODEL_MODEL_INFO_H
#define KVD_MODEL_MODEL_INFO_H

#include "formats/model_info.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/config.h"
#include "model/text/corpus.h"

/* Fills *m with a model's name, sizes, hash and data type. NULL `hash` or `dtype` becomes "". */
void kvd_model_info_set(kvd_model_info *m, const kvd_config *c, const char *path, const char *hash,
                        const char *dtype);

/* Opens the checkpoint's tokenizer. Warns if the tokenizer seems to be that of another model. */
kvd_tokenizer *kvd_model_tokenizer(const kvd_checkpoint *c, const char *program, kvd_err *err);

/* Opens a corpus. Texts are encoded with the checkpoint's tokenizer. If max_tokens leaves texts
 * unread, prints a warning that begins with `program`, unless `program` is NULL. */
kvd_corpus *kvd_model_corpus(const kvd_checkpoint *c, const kvd_corpus_spec *spec,
                             const char *program, kvd_err *err);

/* If *seq_len is 0, sets it to 512 or, if lower, to the model's maximum. Fails if *seq_len exceeds
 * the maximum. */
int kvd_model_seq_len(const kvd_config *model, size_t *seq_len, kvd_err *err);

#endif
