/* Describes a program's model, and opens its tokenizer and texts. */
#ifndef KVD_MODEL_MODEL_INFO_H
#define KVD_MODEL_MODEL_INFO_H

#include "formats/model_info.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/config.h"
#include "model/text/corpus.h"

/* Describes the model in *m. A NULL `hash` or `dtype` becomes "". */
void kvd_model_info_set(kvd_model_info *m, const kvd_config *c, const char *path, const char *hash,
                        const char *dtype);

/* Opens the tokenizer. If it seems to belong to another model, warns in the name of `program`. */
kvd_tokenizer *kvd_model_tokenizer(const kvd_checkpoint *c, const char *program, kvd_err *err);

/* Opens a corpus. Texts are encoded with the checkpoint's tokenizer. */
kvd_corpus *kvd_model_corpus(const kvd_checkpoint *c, const kvd_corpus_spec *spec,
                             const char *program, kvd_err *err);

/* Replaces 0 by 512, or by the model's longest sequence if shorter. Fails beyond the latter. */
int kvd_model_seq_len(const kvd_config *model, size_t *seq_len, kvd_err *err);

#endif
