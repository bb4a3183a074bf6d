/* Decoders of tokenizer.json, which turn tokens back into text. */
#include "model/text/tokenizer/steps.h"

#include <stdlib.h>
#include <string.h>

#include "common/utf8.h"
#include "model/text/tokenizer/json_fields.h"
#include "model/text/tokenizer/pieces.h"
#include "model/text/tokenizer/regex.h"

#define REPLACEMENT "\xef\xbf\xbd" /* U+FFFD, which replaces invalid UTF-8 */

typedef enum { BYTE_LEVEL, METASPACE, REPLACE, BYTE_FALLBACK, FUSE, STRIP } kind;

typedef struct {
    kind kind;
    kvd_regex *pattern;
    /* Text that the step inserts (REPLACE), removes (STRIP) or turns into a space (METASPACE). */
    kvd_buffer content;
    uint32_t start, stop;
    /* true if Metaspace deletes space markers in the first token, instead of replacing them by
     * spaces */
    bool drop_first;
} step;

struct kvd_token_decoder {
    step *step;
    size_t n, capacity;
    bool none;
};

int kvd_strings_add(kvd_strings *l, const char *s, size_t len, kvd_err *err)
{
    if (kvd_grow(&l->end, &l->capacity, l->n + 1, sizeof *l->end, err))
        return -1;
    if (kvd_buffer_add(&l->text, s, len, err))
        return -1;
    l->end[l->n++] = l->text.n;
    return 0;
}

static int end_string(kvd_strings *l, kvd_err *err)
{
    return kvd_strings_add(l, NULL, 0, err);
}

void kvd_strings_release(kvd_strings *l)
{
    kvd_buffer_release(&l->text);
    free(l->end);
    memset(l, 0, sizeof *l);
}

static const char *string_at(const kvd_strings *l, size_t i, size_t *len)
{
    const size_t begin = i ? l->end[i - 1] : 0;
    *len = l->end[i] - begin;
    return *len ? l->text.s + begin : "";
}

static step *new_step(kvd_token_decoder *d, kind k, kvd_err *err)
{
    if (kvd_grow(&d->step, &d->capacity, d->n + 1, sizeof *d->step, err))
        return NULL;
    step *s = &d->step[d->n++];
    memset(s, 0, sizeof *s);
    s->kind = k;
    return s;
}

static int parse_replace(kvd_token_decoder *d, const json_t *spec, kvd_err *err)
{
    size_t len;
    const char *content;
    step *s = new_step(d, REPLACE, err);
    if (!s || kvd_json_known(spec, "decoder Replace", "type pattern content", err) ||
        !(content = kvd_json_text(spec, "decoder Replace", "content", &len, err)) ||
        kvd_buffer_add(&s->content, content, len, err))
        return -1;
    s->pattern = kvd_regex_parse(json_object_get(spec, "pattern"), err);
    return s->pattern ? 0 : kvd_in(err, "decoder Replace");
}

static int parse_strip(kvd_token_decoder *d, const json_t *spec, kvd_err *err)
{
    size_t len;
    const char *content;
    step *s = new_step(d, STRIP, err);
    return kvd_status(
        !s || kvd_json_known(spec, "decoder Strip", "type content start stop", err) ||
        !(content = kvd_json_character(spec, "decoder Strip", "content", &len, err)) ||
        kvd_buffer_add(&s->content, content, len, err) ||
        kvd_json_count(spec, "decoder Strip", "start", &s->start, err) ||
        kvd_json_count(spec, "decoder Strip", "stop", &s->stop, err));
}

static int parse_metaspace(kvd_token_decoder *d, const json_t *spec, kvd_err *err)
{
    kvd_metaspace m;
    step *s = new_step(d, METASPACE, err);
    if (!s || kvd_json_metaspace(spec, "decoder Metaspace", &m, err) ||
        kvd_buffer_add(&s->content, m.sign, m.len, err))
        return -1;
    s->drop_first = m.prepend != KVD_PREPEND_NEVER;
    return 0;
}

static int parse_step(void *ctx, const char *type, const json_t *spec, kvd_err *err)
{
    kvd_token_decoder *const d = ctx;
    if (!strcmp(type, "Replace"))
        return parse_replace(d, spec, err);
    if (!strcmp(type, "Strip"))
        return parse_strip(d, spec, err);
    if (!strcmp(type, "Metaspace"))
        return parse_metaspace(d, spec, err);
    if (!strcmp(type, "ByteLevel"))
        return kvd_status(kvd_json_known(spec, "decoder ByteLevel",
                                         "type add_prefix_space trim_offsets use_regex", err) ||
                          !new_step(d, BYTE_LEVEL, err));
    if (!strcmp(type, "ByteFallback"))
        return kvd_status(kvd_json_known(spec, "decoder ByteFallback", "type", err) ||
                          !new_step(d, BYTE_FALLBACK, err));
    if (!strcmp(type, "Fuse"))
        return kvd_json_known(spec, "decoder Fuse", "type", err) || !new_step(d, FUSE, err) ? -1
                                                                                            : 0;
    return kvd_fail(err, "decoder '%s' is not supported", type);
}

kvd_token_decoder *kvd_token_decoder_parse(const json_t *spec, kvd_err *err)
{
    kvd_token_decoder *d = kvd_new(1, sizeof *d, "the decoder", err);
    if (!d)
        return NULL;
    d->none = json_is_null(spec);
    if (!d->none && kvd_json_steps(spec, "decoder", "decoders", parse_step, d, err)) {
        kvd_token_decoder_free(d);
        return NULL;
    }
    return d;
}

void kvd_token_decoder_free(kvd_token_decoder *d)
{
    if (!d)
        return;
    for (size_t i = 0; i < d->n; i++) {
        kvd_regex_free(d->step[i].pattern);
        kvd_buffer_release(&d->step[i].content);
    }
    free(d->step);
    free(d);
}

/* Appends text s, with U+FFFD in place of each invalid UTF-8 sequence. */
static int add_lossy(kvd_buffer *out, const char *s, size_t len, kvd_err *err)
{
    while (len) {
        const size_t good = kvd_utf8_first_bad(s, len);
        if (kvd_buffer_add(out, s, good, err))
            return -1;
        if (good == len)
            return 0;
        const size_t bad = kvd_utf8_bad_width(s + good, len - good);
        if (kvd_buffer_add(out, REPLACEMENT, 3, err))
            return -1;
        s += good + bad;
        len -= good + bad;
    }
    return 0;
}

static int byte_level(const kvd_strings *in, kvd_strings *out, kvd_err *err)
{
    kvd_buffer bytes = {0};
    int rc = -1;
    for (size_t i = 0; i < in->n; i++) {
        size_t len;
        const char *s = string_at(in, i, &len);
        const size_t before = bytes.n;
        for (size_t j = 0; j < len;) {
            unsigned width;
            const int b = kvd_char_to_byte(kvd_utf8_decode(s + j, &width));
            const char c = (char)b;
            /* A character that represents no byte occurs only in added tokens, whose text is copied
             * unchanged. */
            if (b < 0) {
                bytes.n = before;
                if (kvd_buffer_add(&bytes, s, len, err))
                    goto done;
                break;
            }
            if (kvd_buffer_add(&bytes, &c, 1, err))
                goto done;
            j += width;
        }
    }
    rc = add_lossy(&out->text, bytes.s, bytes.n, err) || end_string(out, err) ? -1 : 0;
done:
    kvd_buffer_release(&bytes);
    return rc;
}

static int metaspace(const step *s, const char *text, size_t len, bool first, kvd_strings *out,
                     kvd_err *err)
{
    const char *sign = s->content.s;
    while (len) {
        const char *hit = memmem(text, len, sign, s->content.n);
        const size_t plain = hit ? (size_t)(hit - text) : len;
        if (kvd_buffer_add(&out->text, text, plain, err))
            return -1;
        text += plain;
        len -= plain;
        if (hit) {
            if (!(first && s->drop_first) && kvd_buffer_add(&out->text, " ", 1, err))
                return -1;
            text += s->content.n;
            len -= s->content.n;
        }
    }
    return end_string(out, err);
}

static int replace(const step *s, kvd_scan *scan, const char *text, size_t len, kvd_strings *out,
                   kvd_err *err)
{
    size_t begin, end, done = 0;
    int rc = 0;
    kvd_scan_text(scan, text, len, false);
    while (len && (rc = kvd_scan_next(scan, &begin, &end, err)) > 0) {
        if (kvd_buffer_add(&out->text, text + done, begin - done, err) ||
            kvd_buffer_add(&out->text, s->content.s, s->content.n, err))
            return -1;
        done = end;
    }
    if (rc < 0 || kvd_buffer_add(&out->text, text + done, len - done, err))
        return -1;
    return end_string(out, err);
}

/* Replaces texts "<0xNN>" by their bytes, or by U+FFFD if these are invalid UTF-8. */
static int byte_fallback(const kvd_strings *in, kvd_strings *out, kvd_err *err)
{
    kvd_buffer bytes = {0};
    int rc = -1;
    for (size_t i = 0; i <= in->n; i++) {
        size_t len = 0;
        const char *s = i < in->n ? string_at(in, i, &len) : "";
        const int named = kvd_byte_named(s, len);
        if (named >= 0) {
            const char b = (char)named;
            if (kvd_buffer_add(&bytes, &b, 1, err))
                goto done;
            continue;
        }
        if (bytes.n && kvd_utf8_first_bad(bytes.s, bytes.n) == bytes.n) {
            if (kvd_strings_add(out, bytes.s, bytes.n, err))
                goto done;
        } else {
            for (size_t k = 0; k < bytes.n; k++)
                if (kvd_strings_add(out, REPLACEMENT, 3, err))
                    goto done;
        }
        bytes.n = 0;
        if (i < in->n && kvd_strings_add(out, s, len, err))
            goto done;
    }
    rc = 0;
done:
    kvd_buffer_release(&bytes);
    return rc;
}

static int strip(const step *s, const char *text, size_t len, kvd_strings *out, kvd_err *err)
{
    const size_t width = s->content.n;
    for (uint32_t k = 0; k < s->start && len >= width && !memcmp(text, s->content.s, width); k++) {
        text += width;
        len -= width;
    }
    for (uint32_t k = 0;
         k < s->stop && len >= width && !memcmp(text + len - width, s->content.s, width); k++)
        len -= width;
    return kvd_strings_add(out, text, len, err);
}

static int one_step(const step *s, const kvd_strings *in, kvd_strings *out, kvd_err *err)
{
    kvd_scan scan = {0};
    int rc = 0;
    out->text.n = 0;
    out->n = 0;
    if (s->kind == BYTE_LEVEL)
        return byte_level(in, out, err);
    if (s->kind == BYTE_FALLBACK)
        return byte_fallback(in, out, err);
    if (s->kind == FUSE)
        return kvd_strings_add(out, in->text.s, in->text.n, err);
    if (s->kind == REPLACE && kvd_scan_start(&scan, s->pattern, err))
        return -1;
    for (size_t i = 0; !rc && i < in->n; i++) {
        size_t len;
        const char *text = string_at(in, i, &len);
        rc = s->kind == REPLACE     ? replace(s, &scan, text, len, out, err)
             : s->kind == METASPACE ? metaspace(s, text, len, i == 0, out, err)
                                    : strip(s, text, len, out, err);
    }
    kvd_scan_release(&scan);
    return rc;
}

int kvd_token_decoder_apply(const kvd_token_decoder *d, kvd_strings *strings, kvd_buffer *out,
                            kvd_err *err)
{
    kvd_strings other = {0};
    int rc = -1;
    for (size_t i = 0; i < d->n; i++) {
        if (one_step(&d->step[i], strings, &other, err))
            goto done;
        const kvd_strings swap = *strings;
        *strings = other;
        other = swap;
    }
    if (!d->none) {
        rc = kvd_buffer_add(out, strings->text.s, strings->text.n, err);
        goto done;
    }
    for (size_t i = 0; i < strings->n; i++) {
        size_t len;
        const char *text = string_at(strings, i, &len);
        if ((i && kvd_buffer_add(out, " ", 1, err)) || kvd_buffer_add(out, text, len, err))
            goto done;
    }
    rc = 0;
done:
    kvd_strings_release(&other);
    return rc;
}
