/* Normalizers of tokenizer.json, and normal forms of UTF-8 text (UAX #15) in Unicode 9.0. */
#include "model/text/tokenizer/steps.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "common/run.h"
#include "common/utf8.h"
#include "model/text/tokenizer/json_fields.h"
#include "model/text/tokenizer/pieces.h"
#include "model/text/tokenizer/regex.h"

/* characters whose decomposition or combining class is newer than Unicode 9.0 */
static const struct {
    uint32_t first, last;
} later[] = {{0x7fd, 0x7fd},     {0x898, 0x89f},     {0x8ca, 0x8d3},     {0x9fe, 0x9fe},
             {0xc3c, 0xc3c},     {0xd3b, 0xd3c},     {0xeba, 0xeba},     {0x1715, 0x1715},
             {0x1abf, 0x1ace},   {0x1df6, 0x1dfa},   {0x32ff, 0x32ff},   {0xa7f2, 0xa7f4},
             {0xa82c, 0xa82c},   {0xab69, 0xab69},   {0x10781, 0x10785}, {0x10787, 0x107b0},
             {0x107b2, 0x107ba}, {0x10d24, 0x10d27}, {0x10eab, 0x10eac}, {0x10efd, 0x10eff},
             {0x10f46, 0x10f50}, {0x10f82, 0x10f85}, {0x11070, 0x11070}, {0x1133b, 0x1133b},
             {0x1145e, 0x1145e}, {0x11839, 0x1183a}, {0x11938, 0x11938}, {0x1193d, 0x1193e},
             {0x11943, 0x11943}, {0x119e0, 0x119e0}, {0x11a34, 0x11a34}, {0x11a47, 0x11a47},
             {0x11a99, 0x11a99}, {0x11d42, 0x11d42}, {0x11d44, 0x11d45}, {0x11d97, 0x11d97},
             {0x11f41, 0x11f42}, {0x16ff0, 0x16ff1}, {0x1e030, 0x1e06d}, {0x1e08f, 0x1e08f},
             {0x1e130, 0x1e136}, {0x1e2ae, 0x1e2ae}, {0x1e2ec, 0x1e2ef}, {0x1e4ec, 0x1e4ef},
             {0x1f16c, 0x1f16c}, {0x1fbf0, 0x1fbf9}};

typedef struct {
    uint32_t code;
    uint8_t combining;
} mark;

/* latest characters of the text, whose normal form may still change */
typedef struct {
    mark *c;
    size_t n, capacity;
} run;

static bool is_later(uint32_t code)
{
    size_t low = 0, high = sizeof later / sizeof *later;
    while (low < high) {
        const size_t mid = (low + high) / 2;
        if (code > later[mid].last)
            low = mid + 1;
        else if (code < later[mid].first)
            high = mid;
        else
            return true;
    }
    return false;
}

static int by_class(const void *a, const void *b)
{
    const mark *x = a, *y = b;
    return x->combining - y->combining;
}

/* Sorts combining marks by class, stably. */
static int order(run *r, kvd_err *err)
{
    for (size_t i = 0; i < r->n;) {
        if (!r->c[i].combining) {
            i++;
            continue;
        }
        size_t j = i;
        bool sorted = true;
        for (; j < r->n && r->c[j].combining; j++)
            sorted = sorted && (j == i || r->c[j - 1].combining <= r->c[j].combining);
        if (!sorted && j - i <= 32) {
            for (size_t k = i + 1; k < j; k++)
                for (size_t m = k; m > i && by_class(&r->c[m - 1], &r->c[m]) > 0; m--) {
                    const mark t = r->c[m];
                    r->c[m] = r->c[m - 1];
                    r->c[m - 1] = t;
                }
        } else if (!sorted) {
            mark *copy = malloc((j - i) * sizeof *copy);
            if (!copy)
                return kvd_no_memory(err, "combining marks", (j - i) * sizeof *copy);
            size_t at[257] = {0};
            for (size_t k = i; k < j; k++)
                at[r->c[k].combining + 1]++;
            for (size_t c = 1; c < 257; c++)
                at[c] += at[c - 1];
            for (size_t k = i; k < j; k++)
                copy[at[r->c[k].combining]++] = r->c[k];
            memcpy(r->c + i, copy, (j - i) * sizeof *copy);
            free(copy);
        }
        i = j;
    }
    return 0;
}

static int flush(run *r, bool compose, kvd_buffer *out, kvd_err *err)
{
    if (!r->n)
        return 0;
    if (order(r, err))
        return -1;
    utf8proc_int32_t *const code = malloc(r->n * sizeof *code);
    if (!code)
        return kvd_no_memory(err, "a normal form", r->n * sizeof *code);
    for (size_t i = 0; i < r->n; i++)
        code[i] = (utf8proc_int32_t)r->c[i].code;
    const utf8proc_ssize_t n = compose
                                   ? utf8proc_normalize_utf32(code, (utf8proc_ssize_t)r->n,
                                                              UTF8PROC_COMPOSE | UTF8PROC_STABLE)
                                   : (utf8proc_ssize_t)r->n;
    int status = n < 0 ? kvd_fail(err, "a normal form: %s", utf8proc_errmsg(n)) : 0;
    for (utf8proc_ssize_t i = 0; !status && i < n; i++) {
        char utf8[4];
        status = kvd_buffer_add(out, utf8, kvd_utf8_encode((uint32_t)code[i], utf8), err);
    }
    free(code);
    r->n = 0;
    return status;
}

static int add(run *r, uint32_t code, kvd_err *err)
{
    if (kvd_grow(&r->c, &r->capacity, r->n + 1, sizeof *r->c, err))
        return -1;
    const utf8proc_property_t *const p = utf8proc_get_property((utf8proc_int32_t)code);
    r->c[r->n++] = (mark){code, (uint8_t)p->combining_class};
    return 0;
}

static int add_decomposed(run *r, uint32_t code, bool compose, bool compatible, kvd_buffer *out,
                          kvd_err *err)
{
    utf8proc_int32_t part[32];
    if (is_later(code)) {
        char utf8[4];
        return kvd_status(flush(r, compose, out, err) ||
                          kvd_buffer_add(out, utf8, kvd_utf8_encode(code, utf8), err));
    }
    int unused = 0;
    const utf8proc_ssize_t n = utf8proc_decompose_char(
        (utf8proc_int32_t)code, part, 32,
        (utf8proc_option_t)(UTF8PROC_DECOMPOSE | (compatible ? UTF8PROC_COMPAT : 0)), &unused);
    if (n < 0 || n > 32)
        return kvd_fail(err, "U+%04X: %s", code, n < 0 ? utf8proc_errmsg(n) : "too long");
    for (utf8proc_ssize_t i = 0; i < n; i++)
        if (add(r, (uint32_t)part[i], err))
            return -1;
    return 0;
}

/* Writes a normal form: NFC or NFKC if `compose`; NFKC or NFKD if `compatible`. */
static int kvd_normal_form(const char *s, size_t len, bool compose, bool compatible,
                           kvd_buffer *out, kvd_err *err)
{
    run r = {0};
    int rc = -1;
    /* Normalization leaves characters below this code point unchanged, unless a combining mark
     * follows. */
    const uint32_t inert = compatible ? 0xa0 : compose ? 0x300 : 0xc0;
    size_t i = 0, plain = 0;
    while (i < len) {
        unsigned width;
        uint32_t code = kvd_utf8_decode(s + i, &width);
        if (code < inert) {
            i += width;
            continue;
        }
        /* byte index of the preceding character, with which this character may combine */
        size_t from = i;
        if (from > plain)
            from = kvd_utf8_before(s, from);
        if (kvd_buffer_add(out, s + plain, from - plain, err))
            goto done;
        while (from < len) {
            code = kvd_utf8_decode(s + from, &width);
            if (code < inert && from > i)
                break;
            if (kvd_interrupted()) {
                kvd_fail_interrupted(err);
                goto done;
            }
            if (add_decomposed(&r, code, compose, compatible, out, err))
                goto done;
            from += width;
        }
        if (flush(&r, compose, out, err))
            goto done;
        i = plain = from;
    }
    rc = kvd_buffer_add(out, s + plain, len - plain, err);
done:
    free(r.c);
    return rc;
}

/* Returns the offset of the last character that cannot combine with earlier ones. */
static size_t kvd_normal_boundary(const char *s, size_t len)
{
    while (len) {
        unsigned width;
        len = kvd_utf8_before(s, len);
        const uint32_t code = kvd_utf8_decode(s + len, &width);
        /* Stops at a character that never combines with preceding ones: cutting the text there is
         * safe. */
        if (code < 0x300 || (code >= 0x3400 && code <= 0x9fff))
            break;
    }
    return len;
}

/* A normalizer fails if it makes a text of n bytes longer than GROWTH * n + GROWTH_BASE bytes. */
#define GROWTH      64
#define GROWTH_BASE ((size_t)64 << 10)

typedef enum { PREPEND, REPLACE, STRIP, LOWERCASE, NFC, NFD, NFKC, NFKD } kind;
static const char *const kind_names[] = {"Prepend", "Replace", "Strip", "Lowercase",
                                         "NFC",     "NFD",     "NFKC",  "NFKD"};

typedef struct {
    kind kind;
    kvd_regex *pattern;
    kvd_buffer content;
    /* true if normalizer Strip removes white space on this side of a text */
    bool left, right;
} step;

struct kvd_normalizer {
    /* steps of the normalizer in the order of execution; each step inside a "Sequence" is a
     * separate element */
    step *step;
    size_t n, capacity;
};

static step *new_step(kvd_normalizer *n, kind k, kvd_err *err)
{
    if (kvd_grow(&n->step, &n->capacity, n->n + 1, sizeof *n->step, err))
        return NULL;
    step *s = &n->step[n->n++];
    memset(s, 0, sizeof *s);
    s->kind = k;
    return s;
}

static int parse_replace(step *s, const json_t *spec, kvd_err *err)
{
    if (kvd_json_known(spec, "normalizer Replace", "type pattern content", err))
        return -1;
    s->pattern = kvd_regex_parse(json_object_get(spec, "pattern"), err);
    if (!s->pattern)
        return kvd_in(err, "normalizer Replace");
    size_t len;
    const char *content = kvd_json_text(spec, "normalizer Replace", "content", &len, err);
    return content ? kvd_buffer_add(&s->content, content, len, err) : -1;
}

static int parse_prepend(step *s, const json_t *spec, kvd_err *err)
{
    size_t len;
    const char *text;
    if (kvd_json_known(spec, "normalizer Prepend", "type prepend", err) ||
        !(text = kvd_json_text(spec, "normalizer Prepend", "prepend", &len, err)))
        return -1;
    return kvd_buffer_add(&s->content, text, len, err);
}

static int parse_strip(step *s, const json_t *spec, kvd_err *err)
{
    if (kvd_json_known(spec, "normalizer Strip", "type strip_left strip_right", err))
        return -1;
    if (!json_object_get(spec, "strip_left") || !json_object_get(spec, "strip_right"))
        return kvd_fail(err, "normalizer Strip: field 'strip_left' or 'strip_right' is missing");
    return kvd_status(kvd_json_bool(spec, "normalizer Strip", "strip_left", &s->left, err) ||
                      kvd_json_bool(spec, "normalizer Strip", "strip_right", &s->right, err));
}

static int parse_step(void *ctx, const char *type, const json_t *spec, kvd_err *err)
{
    kvd_normalizer *const n = ctx;
    for (size_t k = 0; k < sizeof kind_names / sizeof *kind_names; k++) {
        if (strcmp(type, kind_names[k]))
            continue;
        step *s = new_step(n, (kind)k, err);
        if (!s)
            return -1;
        switch (s->kind) {
        case PREPEND:
            return parse_prepend(s, spec, err);
        case REPLACE:
            return parse_replace(s, spec, err);
        case STRIP:
            return parse_strip(s, spec, err);
        default:
            return kvd_json_known(spec, type, "type", err);
        }
    }
    return kvd_fail(err, "normalizer '%s' is not supported", type);
}

kvd_normalizer *kvd_normalizer_parse(const json_t *spec, kvd_err *err)
{
    kvd_normalizer *n = kvd_new(1, sizeof *n, "the normalizer", err);
    if (!n)
        return NULL;
    if (!json_is_null(spec) &&
        kvd_json_steps(spec, "normalizer", "normalizers", parse_step, n, err)) {
        kvd_normalizer_free(n);
        return NULL;
    }
    return n;
}

void kvd_normalizer_free(kvd_normalizer *n)
{
    if (!n)
        return;
    for (size_t i = 0; i < n->n; i++) {
        kvd_regex_free(n->step[i].pattern);
        kvd_buffer_release(&n->step[i].content);
    }
    free(n->step);
    free(n);
}

static size_t growth_limit(size_t before)
{
    return before > (SIZE_MAX - GROWTH_BASE) / GROWTH ? SIZE_MAX : GROWTH * before + GROWTH_BASE;
}

static int too_long(const step *s, size_t before, kvd_err *err)
{
    return kvd_fail(
        err,
        "normalizer %s: %zu bytes of text become more than %zu; a normalizer may make a text %d "
        "times as long, plus %zu KiB",
        kind_names[s->kind], before, growth_limit(before), GROWTH, GROWTH_BASE >> 10);
}

/* Replaces matches of s->pattern by s->content. Fails if the text grows too much. */
static int replace(const step *s, const char *text, size_t len, bool open, size_t before,
                   kvd_buffer *out, size_t *first, kvd_err *err)
{
    kvd_scan scan;
    size_t begin, end, done = 0, new_first = 0;
    int rc = kvd_scan_start(&scan, s->pattern, err);
    if (rc)
        return -1;
    kvd_scan_text(&scan, text, len, open);
    while ((rc = kvd_scan_next(&scan, &begin, &end, err)) > 0) {
        if (begin == end) {
            /* Refuses an empty match, at which Hugging Face tokenizers may crash. */
            rc = kvd_fail(err, "normalizer Replace: its pattern matches the empty text at byte %zu",
                          begin);
            break;
        }
        if (kvd_buffer_add(out, text + done, begin - done, err) ||
            kvd_buffer_add(out, s->content.s, s->content.n, err)) {
            rc = -1;
            break;
        }
        if (out->n > growth_limit(before)) {
            rc = too_long(s, before, err);
            break;
        }
        /* Counts the bytes of `out` that come from the document's first character. */
        new_first += *first > done ? (*first < begin ? *first : begin) - done : 0;
        if (*first && end <= *first)
            new_first += s->content.n;
        done = end;
    }
    kvd_scan_release(&scan);
    if (rc < 0)
        return -1;
    const size_t known = open ? scan.known : len;
    new_first += *first > done ? (*first < known ? *first : known) - done : 0;
    *first = new_first;
    return kvd_buffer_add(out, text + done, known - done, err);
}

static int strip(const step *s, const char *text, size_t len, kvd_buffer *out, size_t *first,
                 kvd_err *err)
{
    size_t begin = 0, end = len;
    unsigned width;
    while (s->left && begin < end && kvd_utf8_is_space(kvd_utf8_decode(text + begin, &width)))
        begin += width;
    while (s->right && end > begin) {
        const size_t before = kvd_utf8_before(text, end);
        if (!kvd_utf8_is_space(kvd_utf8_decode(text + before, &width)))
            break;
        end = before;
    }
    *first = *first > begin ? *first - begin : 0;
    return kvd_buffer_add(out, text + begin, end - begin, err);
}

/* Converts characters to lower case, each without regard to its neighbours. Capital sigma always
 * becomes U+03C3, even at the end of a word. */
static int lowercase(const char *text, size_t len, kvd_buffer *out, size_t *first, kvd_err *err)
{
    const size_t limit = *first;
    for (size_t i = 0; i < len;) {
        char utf8[8];
        unsigned width, n;
        const uint32_t c = kvd_utf8_decode(text + i, &width);
        if (utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_CN)
            return kvd_fail(err,
                            "normalizer 'Lowercase': U+%04X at byte %zu is not in Unicode %s, by "
                            "which letters are mapped",
                            c, i, utf8proc_unicode_version());
        n = kvd_utf8_encode((uint32_t)utf8proc_tolower((utf8proc_int32_t)c), utf8);
        if (c == 0x130)
            n += kvd_utf8_encode(0x307, utf8 + n);
        if (kvd_buffer_add(out, utf8, n, err))
            return -1;
        i += width;
        if (i <= limit)
            *first = out->n;
    }
    return 0;
}

/* Writes Unicode normal form k of `in` to `out`.
 *
 * - open: true if more text follows; the end of `in`, which may combine with it, is then left out
 * - first: byte length of the document's first character: on entry in `in`, on return in `out` */
static int normal_form(const kvd_buffer *in, kind k, bool open, kvd_buffer *out, size_t *first,
                       kvd_err *err)
{
    const bool compose = k == NFC || k == NFKC, compatible = k == NFKC || k == NFKD;
    const size_t len = open ? kvd_normal_boundary(in->s, in->n) : in->n;
    if (kvd_normal_form(in->s, len, compose, compatible, out, err))
        return -1;
    if (!*first || !len) {
        *first = 0;
        return 0;
    }
    kvd_buffer alone = {0};
    const int rc = kvd_normal_form(in->s, *first, compose, compatible, &alone, err);
    size_t same = 0;
    while (!rc && same < alone.n && same < out->n) {
        const unsigned width = kvd_utf8_width(alone.s[same]);
        if (width > out->n - same || memcmp(alone.s + same, out->s + same, width))
            break;
        same += width;
    }
    /* number of leading output bytes that come from the document's first character, which may be
     * composed with later characters */
    *first = same ? same : kvd_utf8_width(out->s[0]);
    kvd_buffer_release(&alone);
    return rc;
}

static int one_step(const step *s, const kvd_buffer *in, bool open, size_t before, kvd_buffer *out,
                    size_t *first, kvd_err *err)
{
    out->n = 0;
    switch (s->kind) {
    case PREPEND:
        *first += *first ? s->content.n : 0;
        return kvd_status(kvd_buffer_add(out, s->content.s, s->content.n, err) ||
                          kvd_buffer_add(out, in->s, in->n, err));
    case REPLACE:
        return replace(s, in->s, in->n, open, before, out, first, err);
    case STRIP:
        return strip(s, in->s, in->n, out, first, err);
    case LOWERCASE:
        return lowercase(in->s, in->n, out, first, err);
    case NFC:
    case NFD:
    case NFKC:
    case NFKD:
        return normal_form(in, s->kind, open, out, first, err);
    }
    return kvd_fail(err, "unknown normalizer step %d", (int)s->kind);
}

int kvd_normalizer_apply(const kvd_normalizer *n, kvd_buffer *text, kvd_buffer *scratch,
                         size_t *first, bool open, kvd_err *err)
{
    size_t unwanted = 0;
    const size_t before = text->n;
    for (size_t i = 0; i < n->n && text->n; i++) {
        if (one_step(&n->step[i], text, open, before, scratch, first ? first : &unwanted, err))
            return -1;
        if (scratch->n > growth_limit(before))
            return too_long(&n->step[i], before, err);
        const kvd_buffer swap = *text;
        *text = *scratch;
        *scratch = swap;
    }
    return 0;
}

int kvd_normalizer_apply_pieces(const kvd_normalizer *n, kvd_pieces *p, kvd_err *err)
{
    if (!n->n)
        return 0;
    kvd_buffer text = {0}, scratch = {0};
    int rc = -1;
    size_t before = 0, after = 0;
    for (size_t i = 0; i < p->n; i++) {
        kvd_piece piece = p->piece[i];
        if (!piece.is_id) {
            before += piece.len;
            text.n = 0;
            if (kvd_buffer_add(&text, p->text.s + piece.begin, piece.len, err) ||
                kvd_normalizer_apply(n, &text, &scratch, &piece.first, piece.open, err))
                goto done;
            after += text.n;
            if (after > growth_limit(before)) {
                too_long(&n->step[n->n - 1], before, err);
                goto done;
            }
            piece.begin = p->text.n;
            piece.len = text.n;
            if (kvd_buffer_add(&p->text, text.s, text.n, err))
                goto done;
        }
        if (kvd_pieces_emit(p, piece, err))
            goto done;
    }
    kvd_pieces_step(p);
    rc = 0;
done:
    kvd_buffer_release(&text);
    kvd_buffer_release(&scratch);
    return rc;
}
