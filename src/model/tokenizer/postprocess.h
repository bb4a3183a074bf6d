/*
 * The "post_processor" of tokenizer.json: which ids stand around the text. ByteLevel (which
 * moves offsets only), TemplateProcessing for one sequence, and a Sequence of them.
 */
#ifndef KVD_MODEL_TOKENIZER_POSTPROCESS_H
#define KVD_MODEL_TOKENIZER_POSTPROCESS_H

#include <jansson.h>

#include "model/tokenizer.h"

typedef struct {
    bool is_text; /* the ids of the text stand here */
    uint32_t id;
} kvd_template_part;

typedef struct {
    kvd_template_part *part;
    size_t n, capacity;
} kvd_template;

/* spec: the object, or JSON null: the text alone. Release t in any case. */
int kvd_template_parse(const json_t *spec, kvd_template *t, kvd_err *err);
void kvd_template_release(kvd_template *t);

/* Appends text's ids to *ids with what stands around them; add_special: also the special ones. */
int kvd_template_apply(const kvd_template *t, const kvd_ids *text, bool add_special, kvd_ids *ids,
                       kvd_err *err);

#endif
