/* Templates of tokenizer.json that add special tokens around a text. */
#include "model/text/tokenizer/steps.h"

#include <stdlib.h>
#include <string.h>

#include "model/text/tokenizer/json_fields.h"
#include "model/text/tokenizer/pieces.h"

static int add_part(kvd_template *t, bool is_text, uint32_t id, kvd_err *err)
{
    if (kvd_grow(&t->part, &t->capacity, t->n + 1, sizeof *t->part, err))
        return -1;
    t->part[t->n++] = (kvd_template_part){is_text, id};
    return 0;
}

static int add_special_token(kvd_template *t, const json_t *tokens, const char *name, kvd_err *err)
{
    const char *what = "post_processor special token";
    const json_t *token = json_object_get(tokens, name), *ids;
    if (!token)
        return kvd_fail(err, "%s '%.100s' is not defined", what, name);
    if (kvd_json_known(token, what, "id ids tokens", err) ||
        !(ids = kvd_json_array(token, what, "ids", err)))
        return -1;
    for (size_t i = 0; i < json_array_size(ids); i++) {
        uint32_t id;
        if (kvd_json_id(json_array_get(ids, i), name, &id, err) || add_part(t, false, id, err))
            return -1;
    }
    return 0;
}

static int parse_template(kvd_template *t, const json_t *spec, kvd_err *err)
{
    const char *what = "post_processor TemplateProcessing";
    const json_t *single;
    if (kvd_json_known(spec, what, "type single pair special_tokens", err) ||
        !(single = kvd_json_array(spec, what, "single", err)))
        return -1;
    const json_t *tokens = json_object_get(spec, "special_tokens");
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *piece = json_array_get(single, i);
        const json_t *text = json_object_get(piece, "Sequence"),
                     *special = json_object_get(piece, "SpecialToken");
        size_t len;
        const char *name;
        if (json_object_size(piece) != 1 || (!text && !special))
            return kvd_fail(err, "%s: part %zu is neither a Sequence nor a SpecialToken", what, i);
        if (!(name = kvd_json_text(text ? text : special, what, "id", &len, err)))
            return -1;
        if (text && strcmp(name, "A"))
            return kvd_fail(err, "%s: sequence '%.40s' in the template for one sequence", what,
                            name);
        if (text ? add_part(t, true, 0, err) : add_special_token(t, tokens, name, err))
            return -1;
    }
    return 0;
}

/* state while the steps of a post-processor are read; `done` is true after step
 * TemplateProcessing */
typedef struct {
    kvd_template *t;
    bool done;
} reader;

static int parse_step(void *ctx, const char *type, const json_t *spec, kvd_err *err)
{
    reader *const r = ctx;
    if (!strcmp(type, "ByteLevel"))
        return kvd_json_known(spec, "post_processor ByteLevel",
                              "type add_prefix_space trim_offsets use_regex", err);
    if (strcmp(type, "TemplateProcessing"))
        return kvd_fail(err, "post_processor '%s' is not supported", type);
    if (r->done)
        return kvd_fail(err, "post_processor: two TemplateProcessing in a row are not supported");
    r->done = true;
    return parse_template(r->t, spec, err);
}

int kvd_template_parse(const json_t *spec, kvd_template *t, kvd_err *err)
{
    reader r = {t, false};
    if (!json_is_null(spec) &&
        kvd_json_steps(spec, "post_processor", "processors", parse_step, &r, err))
        return -1;
    return r.done ? 0 : add_part(t, true, 0, err);
}

void kvd_template_release(kvd_template *t)
{
    free(t->part);
    memset(t, 0, sizeof *t);
}

int kvd_template_apply(const kvd_template *t, const kvd_ids *text, bool open, bool add_special,
                       kvd_ids *ids, kvd_err *err)
{
    for (size_t i = 0; i < t->n; i++) {
        const size_t n = t->part[i].is_text ? text->n : add_special;
        for (size_t k = 0; k < n; k++)
            if (kvd_ids_push(ids, t->part[i].is_text ? text->id[k] : t->part[i].id, err))
                return -1;
        if (open && t->part[i].is_text)
            break;
    }
    return 0;
}
