/* Pre-tokenizers of tokenizer.json. */
#include "model/text/tokenizer/steps.h"

#include <stdlib.h>
#include <string.h>

#include "common/utf8.h"
#include "model/text/tokenizer/json_fields.h"
#include "model/text/tokenizer/pieces.h"
#include "model/text/tokenizer/regex.h"

/* GPT-2's words: contractions, and runs of letters, digits, other characters or space. */
#define GPT2_PATTERN                                                                               \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

typedef enum { SPLIT, SPACE_BEFORE, METASPACE } kind;

typedef struct {
    kind kind;
    /* regex of pre-tokenizer Split of tokenizer.json, which cuts text at the regex's matches */
    kvd_regex *pattern;
    kvd_split_behavior behavior;
    bool invert;
    /* true if `pattern` is matched against text in which each byte is replaced by one character */
    bool spelled;
    char replacement[4];
    unsigned width;
    /* always: true if Metaspace puts a space marker before every piece of text; first: true if only
     * before a document's first piece */
    bool always, first;
} step;

struct kvd_pretokenizer {
    /* pretokenization steps in the order of execution, as a flat list */
    step *step;
    size_t n, capacity;
    bool byte_level;
};

static step *new_step(kvd_pretokenizer *p, kind k, kvd_err *err)
{
    if (kvd_grow(&p->step, &p->capacity, p->n + 1, sizeof *p->step, err))
        return NULL;
    step *s = &p->step[p->n++];
    memset(s, 0, sizeof *s);
    s->kind = k;
    return s;
}

static int add_split(kvd_pretokenizer *p, const char *pattern, kvd_split_behavior behavior,
                     bool invert, bool spelled, kvd_err *err)
{
    step *s = new_step(p, SPLIT, err);
    if (!s)
        return -1;
    s->behavior = behavior;
    s->invert = invert;
    s->spelled = spelled;
    s->pattern = kvd_regex_new(pattern, strlen(pattern), false, err);
    return s->pattern ? 0 : -1;
}

static int parse_behavior(const char *name, const char *what, kvd_split_behavior *out, kvd_err *err)
{
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious",
                                        "MergedWithNext", "Contiguous"};
    size_t k = 0;
    while (k < 5 && strcmp(name, names[k]))
        k++;
    if (k == 5)
        return kvd_fail(err, "%s: behavior '%s' is not supported", what, name);
    *out = (kvd_split_behavior)k;
    return 0;
}

static int parse_split(kvd_pretokenizer *p, const json_t *spec, kvd_err *err)
{
    const char *what = "pre_tokenizer Split", *behavior;
    size_t len;
    if (kvd_json_known(spec, what, "type pattern behavior invert", err) ||
        !(behavior = kvd_json_text(spec, what, "behavior", &len, err)))
        return -1;
    step *s = new_step(p, SPLIT, err);
    if (!s || kvd_json_bool(spec, what, "invert", &s->invert, err) ||
        parse_behavior(behavior, what, &s->behavior, err))
        return -1;
    s->spelled = p->byte_level;
    s->pattern = kvd_regex_parse(json_object_get(spec, "pattern"), err);
    return s->pattern ? 0 : kvd_in(err, "%s", what);
}

/* Characters that Hugging Face's Punctuation, which knows Unicode 8.0, does not match, although
 * later versions of Unicode call them punctuation. */
#define NEWER_PUNCTUATION                                                                          \
    "\\x{61d}\\x{9fd}\\x{a76}\\x{c77}\\x{c84}\\x{1b4e}-\\x{1b4f}\\x{1b7d}-\\x{1b7f}"               \
    "\\x{2e43}-\\x{2e63}\\x{10d6e}\\x{10ead}\\x{10ed0}\\x{10f55}-\\x{10f59}"                       \
    "\\x{10f86}-\\x{10f89}\\x{113d4}-\\x{113d8}\\x{1144b}-\\x{1144f}\\x{1145a}-\\x{1145d}"         \
    "\\x{11660}-\\x{1166c}\\x{116b9}\\x{1183b}\\x{11944}-\\x{11946}\\x{119e2}"                     \
    "\\x{11a3f}-\\x{11a46}\\x{11a9a}-\\x{11aa2}\\x{11b00}-\\x{11b09}\\x{11be1}"                    \
    "\\x{11c41}-\\x{11c45}\\x{11c70}-\\x{11c71}\\x{11ef7}-\\x{11ef8}\\x{11f43}-\\x{11f4f}"         \
    "\\x{11fff}\\x{12ff1}-\\x{12ff2}\\x{16d6d}-\\x{16d6f}\\x{16e97}-\\x{16e9a}\\x{16fe2}"          \
    "\\x{1e5ff}\\x{1e95e}-\\x{1e95f}"

/* Parses step Punctuation. Adds U+166D and U+111C9, which are punctuation only in Unicode 8.0, the
 * version that Hugging Face uses. */
static int parse_punctuation(kvd_pretokenizer *p, const json_t *spec, kvd_err *err)
{
    const char *what = "pre_tokenizer Punctuation", *name = "Isolated";
    kvd_split_behavior behavior = KVD_SPLIT_ISOLATED;
    size_t len;
    if (kvd_json_known(spec, what, "type behavior", err) ||
        (json_object_get(spec, "behavior") &&
         !(name = kvd_json_text(spec, what, "behavior", &len, err))) ||
        parse_behavior(name, what, &behavior, err))
        return -1;
    return add_split(p, "[\\p{P}$+<=>^`|~\\x{166d}\\x{111c9}](?<![" NEWER_PUNCTUATION "])",
                     behavior, false, false, err);
}

static int parse_byte_level(kvd_pretokenizer *p, const json_t *spec, kvd_err *err)
{
    const char *what = "pre_tokenizer ByteLevel";
    bool space = false, trim = true, pattern = true;
    if (kvd_json_known(spec, what, "type add_prefix_space trim_offsets use_regex", err))
        return -1;
    if (!json_object_get(spec, "add_prefix_space"))
        return kvd_fail(err, "%s: field 'add_prefix_space' is missing", what);
    if (kvd_json_bool(spec, what, "add_prefix_space", &space, err) ||
        kvd_json_bool(spec, what, "trim_offsets", &trim, err) ||
        kvd_json_bool(spec, what, "use_regex", &pattern, err))
        return -1;
    if (space && !new_step(p, SPACE_BEFORE, err))
        return -1;
    p->byte_level = true;
    return pattern ? add_split(p, GPT2_PATTERN, KVD_SPLIT_ISOLATED, false, false, err) : 0;
}

static int parse_metaspace(kvd_pretokenizer *p, const json_t *spec, kvd_err *err)
{
    kvd_metaspace m;
    step *s;
    if (kvd_json_metaspace(spec, "pre_tokenizer Metaspace", &m, err) ||
        !(s = new_step(p, METASPACE, err)))
        return -1;
    memcpy(s->replacement, m.sign, m.len);
    s->width = (unsigned)m.len;
    s->always = m.prepend == KVD_PREPEND_ALWAYS;
    s->first = m.prepend == KVD_PREPEND_FIRST;
    if (!m.split)
        return 0;
    if (!(s = new_step(p, SPLIT, err)))
        return -1;
    s->behavior = KVD_SPLIT_MERGED_WITH_NEXT;
    s->pattern = kvd_regex_new(m.sign, m.len, true, err);
    return s->pattern ? 0 : -1;
}

static int parse_digits(kvd_pretokenizer *p, const json_t *spec, kvd_err *err)
{
    bool individual = false;
    if (kvd_json_known(spec, "pre_tokenizer Digits", "type individual_digits", err))
        return -1;
    if (!json_object_get(spec, "individual_digits"))
        return kvd_fail(err, "pre_tokenizer Digits: field 'individual_digits' is missing");
    if (kvd_json_bool(spec, "pre_tokenizer Digits", "individual_digits", &individual, err))
        return -1;
    return add_split(p, "\\p{N}", individual ? KVD_SPLIT_ISOLATED : KVD_SPLIT_CONTIGUOUS, false,
                     p->byte_level, err);
}

static int parse_step(void *ctx, const char *type, const json_t *spec, kvd_err *err)
{
    kvd_pretokenizer *const p = ctx;
    if (!strcmp(type, "Split"))
        return parse_split(p, spec, err);
    if (!strcmp(type, "Digits"))
        return parse_digits(p, spec, err);
    /* Refuses other steps after ByteLevel, because they would not recognise the characters that
     * ByteLevel writes for bytes. */
    if (p->byte_level)
        return kvd_fail(err, "pre_tokenizer '%s' after ByteLevel is not supported", type);
    if (!strcmp(type, "ByteLevel"))
        return parse_byte_level(p, spec, err);
    if (!strcmp(type, "Punctuation"))
        return parse_punctuation(p, spec, err);
    if (!strcmp(type, "Metaspace"))
        return parse_metaspace(p, spec, err);
    /* The pattern names U+200C and U+200D, because Hugging Face's \w also matches these
     * characters. */
    if (!strcmp(type, "Whitespace"))
        return kvd_status(kvd_json_known(spec, type, "type", err) ||
                          add_split(p, "[\\w\\u200c\\u200d]+|[^\\w\\u200c\\u200d\\s]+",
                                    KVD_SPLIT_REMOVED, true, false, err));
    if (!strcmp(type, "WhitespaceSplit"))
        return kvd_status(kvd_json_known(spec, type, "type", err) ||
                          add_split(p, "\\s", KVD_SPLIT_REMOVED, false, false, err));
    return kvd_fail(err, "pre_tokenizer '%s' is not supported", type);
}

kvd_pretokenizer *kvd_pretokenizer_parse(const json_t *spec, kvd_err *err)
{
    kvd_pretokenizer *p = kvd_new(1, sizeof *p, "the pre-tokenizer", err);
    if (!p)
        return NULL;
    if (!json_is_null(spec) &&
        kvd_json_steps(spec, "pre_tokenizer", "pretokenizers", parse_step, p, err)) {
        kvd_pretokenizer_free(p);
        return NULL;
    }
    return p;
}

void kvd_pretokenizer_free(kvd_pretokenizer *p)
{
    if (!p)
        return;
    for (size_t i = 0; i < p->n; i++)
        kvd_regex_free(p->step[i].pattern);
    free(p->step);
    free(p);
}

bool kvd_pretokenizer_byte_level(const kvd_pretokenizer *p)
{
    return p->byte_level;
}

/* ByteLevel's form of a text, which has one character for each byte of the original. byte[i]: index
 * of the original byte to which byte i of this form belongs. */
typedef struct {
    kvd_buffer text;
    size_t *byte;
    size_t capacity;
} spelling;

static int spell(spelling *sp, const char *text, size_t len, kvd_err *err)
{
    sp->text.n = 0;
    if (kvd_grow(&sp->byte, &sp->capacity, 2 * len + 1, sizeof *sp->byte, err))
        return -1;
    for (size_t i = 0; i < len; i++) {
        char c[4];
        const size_t width = kvd_utf8_encode(kvd_byte_to_char((unsigned char)text[i]), c);
        for (size_t k = 0; k < width; k++)
            sp->byte[sp->text.n + k] = i;
        if (kvd_buffer_add(&sp->text, c, width, err))
            return -1;
    }
    sp->byte[sp->text.n] = len;
    return 0;
}

static int split(const step *s, kvd_pieces *p, kvd_err *err)
{
    kvd_scan scan;
    spelling sp = {0};
    if (kvd_scan_start(&scan, s->pattern, err))
        return -1;
    int rc = 0;
    for (size_t i = 0; !rc && i < p->n; i++) {
        const kvd_piece piece = p->piece[i];
        if (piece.is_id) {
            rc = kvd_pieces_emit(p, piece, err);
            continue;
        }
        kvd_splitter cut;
        size_t begin, end, done = 0;
        kvd_splitter_start(&cut, p, piece, s->behavior);
        if (s->spelled && (rc = spell(&sp, p->text.s + piece.begin, piece.len, err)))
            break;
        if (s->spelled)
            kvd_scan_text(&scan, sp.text.s ? sp.text.s : "", sp.text.n, piece.open);
        else
            kvd_scan_text(&scan, p->text.s + piece.begin, piece.len, piece.open);
        while ((rc = kvd_scan_next(&scan, &begin, &end, err)) > 0) {
            begin = s->spelled ? sp.byte[begin] : begin;
            end = s->spelled ? sp.byte[end] : end;
            if ((begin > done && kvd_splitter_feed(&cut, done, begin, s->invert, err)) ||
                kvd_splitter_feed(&cut, begin, end, !s->invert, err)) {
                rc = -1;
                break;
            }
            done = end;
        }
        /* Unless more text may follow, emits the text after the last match of the pattern. */
        if (!rc && !piece.open &&
            ((done < piece.len && kvd_splitter_feed(&cut, done, piece.len, s->invert, err)) ||
             kvd_splitter_end(&cut, err)))
            rc = -1;
    }
    kvd_scan_release(&scan);
    kvd_buffer_release(&sp.text);
    free(sp.byte);
    if (!rc)
        kvd_pieces_step(p);
    return rc;
}

/* Puts a space before each piece of text that does not begin with one. */
static int space_before(kvd_pieces *p, kvd_err *err)
{
    for (size_t i = 0; i < p->n; i++) {
        kvd_piece piece = p->piece[i];
        if (!piece.is_id && p->text.s[piece.begin] != ' ') {
            const size_t at = p->text.n;
            if (kvd_buffer_add(&p->text, " ", 1, err) ||
                kvd_buffer_add(&p->text, p->text.s + piece.begin, piece.len, err))
                return -1;
            piece.begin = at;
            piece.len++;
            piece.first += piece.first ? 1 : 0;
        }
        if (kvd_pieces_emit(p, piece, err))
            return -1;
    }
    kvd_pieces_step(p);
    return 0;
}

static int metaspace(const step *s, kvd_pieces *p, kvd_err *err)
{
    for (size_t i = 0; i < p->n; i++) {
        kvd_piece piece = p->piece[i];
        if (!piece.is_id) {
            const size_t at = p->text.n, len = piece.len;
            const char *text = p->text.s + piece.begin;
            const bool marked =
                text[0] == ' ' || (len >= s->width && !memcmp(text, s->replacement, s->width));
            size_t first = piece.first;
            if (!marked && (s->always || (s->first && first))) {
                if (kvd_buffer_add(&p->text, s->replacement, s->width, err))
                    return -1;
                first += first ? s->width : 0;
            }
            for (size_t done = 0; done < len;) {
                const char *from = p->text.s + piece.begin + done,
                           *space = memchr(from, ' ', len - done);
                const size_t plain = space ? (size_t)(space - from) : len - done;
                if (kvd_buffer_add(&p->text, from, plain, err) ||
                    (space && kvd_buffer_add(&p->text, s->replacement, s->width, err)))
                    return -1;
                done += plain;
                if (space) {
                    first += done < piece.first ? s->width - 1 : 0;
                    done++;
                }
            }
            piece.begin = at;
            piece.len = p->text.n - at;
            piece.first = first;
        }
        if (kvd_pieces_emit(p, piece, err))
            return -1;
    }
    kvd_pieces_step(p);
    return 0;
}

int kvd_pretokenizer_apply(const kvd_pretokenizer *p, kvd_pieces *pieces, kvd_err *err)
{
    for (size_t i = 0; i < p->n; i++) {
        const step *s = &p->step[i];
        if (s->kind == SPLIT       ? split(s, pieces, err)
            : s->kind == METASPACE ? metaspace(s, pieces, err)
                                   : space_before(pieces, err))
            return -1;
    }
    return 0;
}
