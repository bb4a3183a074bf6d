#include "model/tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#include "common/utf8.h"
#include "model/tokenizer/json_fields.h"
#include "model/tokenizer/onig_syntax.h"

/* A sane pattern needs a few steps per character of a match; these end an exponential one
 * within a second. The heap is for the interpreter, which steps in when the JIT's stack ends. */
#define MATCH_LIMIT 10000000
#define HEAP_KIB    (256 * 1024)
#define PATTERN_MAX 65536

struct kvd_regex {
    pcre2_code *code;         /* NULL: literal */
    pcre2_match_context *ctx; /* limits */
    char *pattern;            /* as written, for messages; the literal itself */
    size_t len;
};

static pcre2_code *compile(const char *pattern, size_t len, kvd_err *err)
{
    kvd_buffer text = {0};
    pcre2_code *code = NULL;
    pcre2_compile_context *ctx = pcre2_compile_context_create(NULL);
    if (!ctx) {
        kvd_no_memory(err, "a pattern", len);
        goto done;
    }
    if (kvd_onig_to_pcre2(pattern, len, &text, err))
        goto done;
    /* Ruby's ^ and $ stand at every line; its lines end at a line feed only */
    int number;
    size_t at;
    if (pcre2_set_newline(ctx, PCRE2_NEWLINE_LF)) {
        kvd_fail(err, "PCRE2 does not take line feed as its newline");
        goto done;
    }
    code =
        pcre2_compile((PCRE2_SPTR)(text.s ? text.s : ""), text.n,
                      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &number, &at, ctx);
    if (!code) {
        char why[200];
        if (pcre2_get_error_message(number, (PCRE2_UCHAR *)why, sizeof why) < 0)
            strcpy(why, "unknown error");
        kvd_fail(err, "pattern '%.*s' does not compile: %s (at byte %zu of '%.*s')",
                 (int)(len < 120 ? len : 120), pattern, why, at, (int)(text.n < 120 ? text.n : 120),
                 text.s ? text.s : "");
        goto done;
    }
    /* without the JIT, pcre2_match interprets: slower, the same matches */
    (void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
done:
    pcre2_compile_context_free(ctx);
    kvd_buffer_release(&text);
    return code;
}

kvd_regex *kvd_regex_new(const char *pattern, size_t len, bool literal, kvd_err *err)
{
    if (!len || len > PATTERN_MAX) {
        kvd_fail(err, "pattern of %zu bytes: 1 to %d are supported", len, PATTERN_MAX);
        return NULL;
    }
    kvd_regex *r = calloc(1, sizeof *r);
    if (!r || !(r->pattern = malloc(len + 1))) {
        kvd_no_memory(err, "a pattern", len);
        kvd_regex_free(r);
        return NULL;
    }
    memcpy(r->pattern, pattern, len);
    r->pattern[len] = '\0';
    r->len = len;
    if (literal)
        return r;
    r->code = compile(pattern, len, err);
    r->ctx = r->code ? pcre2_match_context_create(NULL) : NULL;
    if (!r->ctx) {
        if (r->code)
            kvd_no_memory(err, "a pattern", len);
        kvd_regex_free(r);
        return NULL;
    }
    (void)pcre2_set_match_limit(r->ctx, MATCH_LIMIT);
    (void)pcre2_set_depth_limit(r->ctx, MATCH_LIMIT);
    (void)pcre2_set_heap_limit(r->ctx, HEAP_KIB);
    return r;
}

kvd_regex *kvd_regex_parse(const json_t *spec, kvd_err *err)
{
    if (kvd_json_known(spec, "pattern", "String Regex", err))
        return NULL;
    if (json_object_size(spec) != 1) {
        kvd_fail(err, "pattern: neither one 'String' nor one 'Regex'");
        return NULL;
    }
    const bool literal = json_object_get(spec, "String") != NULL;
    size_t len;
    const char *text = kvd_json_text(spec, "pattern", literal ? "String" : "Regex", &len, err);
    return text ? kvd_regex_new(text, len, literal, err) : NULL;
}

void kvd_regex_free(kvd_regex *r)
{
    if (!r)
        return;
    pcre2_code_free(r->code);
    pcre2_match_context_free(r->ctx);
    free(r->pattern);
    free(r);
}

int kvd_scan_start(kvd_scan *s, const kvd_regex *r, kvd_err *err)
{
    memset(s, 0, sizeof *s);
    s->regex = r;
    if (r->code && !(s->match_data = pcre2_match_data_create(1, NULL)))
        return kvd_no_memory(err, "a match", 1);
    return 0;
}

void kvd_scan_text(kvd_scan *s, const char *text, size_t len)
{
    s->text = text;
    s->len = len;
    s->at = 0;
    s->matched_before = false;
}

static int search(kvd_scan *s, size_t *begin, size_t *end, kvd_err *err)
{
    const kvd_regex *r = s->regex;
    if (!r->code) {
        const char *hit = s->at < s->len ? memmem(s->text + s->at, s->len - s->at, r->pattern, r->len) : NULL;
        if (!hit)
            return 0;
        *begin = (size_t)(hit - s->text);
        *end = *begin + r->len;
        return 1;
    }
    int rc =
        pcre2_match(r->code, (PCRE2_SPTR)s->text, s->len, s->at, PCRE2_NO_UTF_CHECK, s->match_data, r->ctx);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(r->code, (PCRE2_SPTR)s->text, s->len, s->at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                         s->match_data, r->ctx);
    if (rc == PCRE2_ERROR_NOMATCH)
        return 0;
    if (rc < 0) {
        char why[200];
        if (pcre2_get_error_message(rc, (PCRE2_UCHAR *)why, sizeof why) < 0)
            strcpy(why, "unknown error");
        return kvd_fail(err, "pattern '%.200s' fails on the text from byte %zu on: %s", r->pattern, s->at,
                        why);
    }
    const size_t *ovector = pcre2_get_ovector_pointer(s->match_data);
    *begin = ovector[0];
    *end = ovector[1];
    return 1;
}

int kvd_scan_next(kvd_scan *s, size_t *begin, size_t *end, kvd_err *err)
{
    while (s->at <= s->len) {
        const int rc = search(s, begin, end, err);
        if (rc <= 0)
            return rc;
        if (*begin != *end || !s->matched_before || *end != s->last_end) {
            s->at = s->last_end = *end;
            s->matched_before = true;
            return 1;
        }
        s->at += s->at < s->len ? kvd_utf8_width(s->text[s->at]) : 1;
    }
    return 0;
}

void kvd_scan_release(kvd_scan *s)
{
    pcre2_match_data_free(s->match_data);
    s->match_data = NULL;
}
