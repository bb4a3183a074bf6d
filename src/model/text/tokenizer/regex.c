#include "model/text/tokenizer/regex.h"

#include <string.h>
#include <strings.h>

#include "model/text/tokenizer/pieces.h"

/* White_Space of Unicode, written for use inside a character class [...]. */
#define SPACE "\\t-\\r\\x{85}\\p{Z}"

/* Characters of Oniguruma's \w (UTS #18): WORD for use inside a character class, WORD_OUTSIDE for
 * use outside. */
#define WORD         "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
#define WORD_OUTSIDE WORD "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}"

typedef struct {
    const char *p;
    size_t n, i;
    bool in_class, caseless;
    kvd_buffer *out;
    kvd_err *err;
} walk;

static int put(walk *w, const char *s, size_t n)
{
    return kvd_buffer_add(w->out, s, n, w->err);
}

static int puts_to(walk *w, const char *s)
{
    return put(w, s, strlen(s));
}

static bool ahead(const walk *w, const char *s)
{
    const size_t n = strlen(s);
    return w->n - w->i >= n && !memcmp(w->p + w->i, s, n);
}

static int refuse(walk *w, const char *what)
{
    return kvd_fail(w->err, "pattern '%.*s': %s at byte %zu is not supported",
                    (int)(w->n < 200 ? w->n : 200), w->p, what, w->i);
}

static bool is_hex(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

static bool is_letter_or_digit(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* Translates \p{Name} of a script to \p{sc:Name}, because in PCRE2 \p{Name} also matches the
 * characters in the script's extensions. */
static int property(walk *w)
{
    static const char categories[][3] = {"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc",
                                         "Me", "N",  "Nd", "Nl", "No", "P",  "Pc", "Pd", "Ps",
                                         "Pe", "Pi", "Pf", "Po", "S",  "Sm", "Sc", "Sk", "So",
                                         "Z",  "Zs", "Zl", "Zp", "C",  "Cc", "Cf", "Co"};
    bool negated = w->p[w->i + 1] == 'P';
    if (w->i + 2 >= w->n || w->p[w->i + 2] != '{')
        return refuse(w, "a property without braces");
    const char *name = w->p + w->i + 3, *close = memchr(name, '}', w->n - w->i - 3);
    if (!close)
        return refuse(w, "an open property");
    if (*name == '^') {
        negated = !negated;
        name++;
    }
    const size_t len = (size_t)(close - name);
    for (const char *c = name; c < close; c++)
        if (!is_letter_or_digit(*c) && *c != '_')
            return refuse(w, "this property");
    bool category = false;
    for (size_t i = 0; i < sizeof categories / sizeof *categories; i++)
        category =
            category || (strlen(categories[i]) == len && !strncasecmp(categories[i], name, len));
    if (puts_to(w, negated ? "\\P{" : "\\p{") || (!category && puts_to(w, "sc:")) ||
        put(w, name, len) || puts_to(w, "}"))
        return -1;
    w->i = (size_t)(close - w->p) + 1;
    return 0;
}

static int hex_escape(walk *w, bool u)
{
    const size_t want = u ? 4 : 2;
    if (!u && w->i + 2 < w->n && w->p[w->i + 2] == '{') {
        const char *open = w->p + w->i, *close = memchr(open, '}', w->n - w->i);
        if (!close)
            return refuse(w, "an open \\x{");
        for (const char *c = open + 3; c < close; c++)
            if (!is_hex(*c))
                return refuse(w, "this \\x{");
        const size_t len = (size_t)(close - open) + 1;
        w->i += len;
        return put(w, open, len);
    }
    if (w->n - w->i - 2 < want)
        return refuse(w, "a short hexadecimal escape");
    for (size_t k = 0; k < want; k++)
        if (!is_hex(w->p[w->i + 2 + k]))
            return refuse(w, "this hexadecimal escape");
    /* Refuses \x above 7f, which for Oniguruma is a raw byte and not a character. */
    if (!u && w->p[w->i + 2] > '7')
        return refuse(w, "a raw byte above 7f");
    if (puts_to(w, "\\x{") || put(w, w->p + w->i + 2, want) || puts_to(w, "}"))
        return -1;
    w->i += 2 + want;
    return 0;
}

static int escape(walk *w)
{
    if (w->i + 1 >= w->n)
        return refuse(w, "a backslash at the end");
    const char c = w->p[w->i + 1];
    const char *as = NULL;
    switch (c) {
    case 's':
        as = w->in_class ? SPACE : "[" SPACE "]";
        break;
    case 'S':
        as = w->in_class ? "\\P{White_Space}" : "[^" SPACE "]";
        break;
    case 'w':
        as = w->in_class ? WORD : "[" WORD_OUTSIDE "]";
        break;
    case 'W':
        if (w->in_class)
            return refuse(w, "\\W in a class");
        as = "[^" WORD_OUTSIDE "]";
        break;
    case 'd':
        as = "\\p{Nd}";
        break;
    case 'D':
        as = "\\P{Nd}";
        break;
    case 'v':
        as = "\\x{0b}";
        break;
    case 'p':
    case 'P':
        return property(w);
    case 'x':
        return hex_escape(w, false);
    case 'u':
        return hex_escape(w, true);
    case 'A':
    case 'z':
        if (w->in_class)
            return refuse(w, "an anchor in a class");
        break;
    case 'r':
    case 'n':
    case 't':
    case 'f':
    case 'a':
    case 'e':
        break;
    default:
        if (is_letter_or_digit(c) || (unsigned char)c >= 0x80 || c < 0x20)
            return refuse(w, "this escape");
    }
    if (as ? puts_to(w, as) : put(w, w->p + w->i, 2))
        return -1;
    w->i += 2;
    return 0;
}

static int open_class(walk *w)
{
    w->in_class = true;
    const size_t n = ahead(w, "[^") ? 2 : 1;
    if (put(w, w->p + w->i, n))
        return -1;
    w->i += n;
    return ahead(w, "]") ? refuse(w, "an empty class") : 0;
}

static int in_class(walk *w)
{
    if (ahead(w, "["))
        return refuse(w, "a class in a class");
    if (ahead(w, "&&"))
        return refuse(w, "&& in a class");
    if (ahead(w, "]"))
        w->in_class = false;
    w->i++;
    return put(w, w->p + w->i - 1, 1);
}

static int open_group(walk *w)
{
    static const char *const same[] = {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!", "(?i:", "(?-i:"};
    for (size_t k = 0; k < sizeof same / sizeof *same; k++)
        if (ahead(w, same[k])) {
            w->caseless = w->caseless || k == 6;
            w->i += strlen(same[k]);
            return puts_to(w, same[k]);
        }
    /* Accepts (?i) only at the start, because Ruby and Perl differ on it inside a pattern. */
    if (ahead(w, "(?i)") && !w->i) {
        w->caseless = true;
        w->i = 4;
        return puts_to(w, "(?i)");
    }
    if (ahead(w, "(?") || ahead(w, "(*"))
        return refuse(w, "this group");
    /* Writes "(?:" for "(": groups do not capture, as back references are not supported. */
    w->i++;
    return puts_to(w, "(?:");
}

static int interval(walk *w)
{
    size_t j = w->i + 1, digits = 0;
    while (j < w->n && w->p[j] >= '0' && w->p[j] <= '9')
        j++, digits++;
    if (digits && j < w->n && w->p[j] == ',')
        for (j++; j < w->n && w->p[j] >= '0' && w->p[j] <= '9';)
            j++;
    if (!digits || j >= w->n || w->p[j] != '}')
        return refuse(w, "this brace");
    j++;
    if (j < w->n && (w->p[j] == '+' || w->p[j] == '?' || w->p[j] == '*' || w->p[j] == '{'))
        return refuse(w, "a repeated or lazy interval");
    if (put(w, w->p + w->i, j - w->i))
        return -1;
    w->i = j;
    return 0;
}

/* Fails on letters such as U+00DF (sharp s), which matches the longer "ss" if case is ignored. */
static int no_multiple_folds(walk *w)
{
    static const char pairs[][3] = {"ss", "ff", "fi", "fl", "st"};
    if (!w->caseless)
        return 0;
    for (w->i = 0; w->i < w->n; w->i++) {
        if ((unsigned char)w->p[w->i] >= 0x80)
            return refuse(w, "a character beyond ASCII in a pattern that ignores case");
        for (size_t k = 0; w->i + 1 < w->n && k < sizeof pairs / sizeof *pairs; k++)
            if (!strncasecmp(w->p + w->i, pairs[k], 2))
                return refuse(w, "a pair of letters that has a ligature, ignoring case,");
    }
    return 0;
}

/* Translates an Oniguruma pattern into PCRE2 syntax. Fails if PCRE2 has no equivalent. */
static int kvd_onig_to_pcre2(const char *pattern, size_t len, kvd_buffer *out, kvd_err *err)
{
    walk w = {.p = pattern, .n = len, .out = out, .err = err};
    while (w.i < w.n) {
        int rc;
        const char c = w.p[w.i];
        if (c == '\\') {
            rc = escape(&w);
        } else if (w.in_class) {
            rc = in_class(&w);
        } else if (c == '[') {
            rc = open_class(&w);
        } else if (c == '(') {
            rc = open_group(&w);
        } else if (c == '{') {
            rc = interval(&w);
        } else {
            rc = put(&w, &c, 1);
            w.i++;
        }
        if (rc)
            return -1;
    }
    return no_multiple_folds(&w);
}

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/run.h"
#include "common/utf8.h"
#include "model/text/tokenizer/json_fields.h"

/* limits of PCRE2 for one match, because a match may take exponential time */
#define MATCH_LIMIT 10000000
#define HEAP_KIB    (256 * 1024)
#define PATTERN_MAX 65536

/* initial number of bytes in which one call of PCRE2 looks for the start of a match */
#define WINDOW_MIN 16
/* largest number of bytes in which one call of PCRE2 looks for the start of a match */
#define WINDOW_MAX 16384

/* number of matches after which a regex search checks whether it is too slow or interrupted */
#define SEARCHES 1024

/* limit of processor time for one text: SLOW_S seconds plus one second per SLOW_BYTES bytes */
#define SLOW_S     2.0
#define SLOW_BYTES 100000.0

struct kvd_regex {
    pcre2_code *code;
    pcre2_match_context *ctx;
    /* pattern as written, or bytes of a literal text */
    char *pattern;
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
    int number;
    size_t at;
    if (pcre2_set_newline(ctx, PCRE2_NEWLINE_LF)) {
        kvd_fail(err, "PCRE2 does not take line feed as its newline");
        goto done;
    }
    code = pcre2_compile((PCRE2_SPTR)(text.s ? text.s : ""), text.n,
                         PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C |
                             PCRE2_USE_OFFSET_LIMIT,
                         &number, &at, ctx);
    if (!code) {
        char why[200];
        if (pcre2_get_error_message(number, (PCRE2_UCHAR *)why, sizeof why) < 0)
            strcpy(why, "unknown error");
        kvd_fail(err, "pattern '%.*s' does not compile: %s (at byte %zu of '%.*s')",
                 (int)(len < 120 ? len : 120), pattern, why, at, (int)(text.n < 120 ? text.n : 120),
                 text.s ? text.s : "");
        goto done;
    }
    /* Without JIT, pcre2_match interprets the pattern. */
    (void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD);
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
    s->window = WINDOW_MIN;
    if (!r->code)
        return 0;
    s->match_data = pcre2_match_data_create(1, NULL);
    s->limits = pcre2_match_context_copy(r->ctx);
    if (!s->match_data || !s->limits) {
        kvd_scan_release(s);
        return kvd_no_memory(err, "a match", 1);
    }
    return 0;
}

void kvd_scan_text(kvd_scan *s, const char *text, size_t len, bool open)
{
    s->text = text;
    s->len = len;
    s->at = s->known = s->searches = 0;
    s->clock = 0;
    s->matched_before = false;
    s->open = open;
}

static int search_literal(kvd_scan *s, size_t *begin, size_t *end)
{
    const kvd_regex *r = s->regex;
    const size_t left = s->len - s->at;
    const char *hit = memmem(s->text + s->at, left, r->pattern, r->len);
    if (!hit) {
        /* If more text follows, a match may begin in the last r->len - 1 bytes. */
        s->known = s->len - (left < r->len - 1 ? left : r->len - 1);
        while (s->known > s->at && s->known < s->len &&
               ((unsigned char)s->text[s->known] & 0xc0) == 0x80)
            s->known--;
        return 0;
    }
    *begin = (size_t)(hit - s->text);
    *end = *begin + r->len;
    return 1;
}

static double processor_seconds(void)
{
    struct timespec t = {0};
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Fails if the regex search is interrupted or too slow. Lets each call of PCRE2 search fewer bytes
 * (s->window) if calls are slow. */
static int check_speed(kvd_scan *s, size_t at, kvd_err *err)
{
    const double now = processor_seconds();
    if (kvd_interrupted())
        return kvd_fail_interrupted(err);
    if (s->clock == 0) {
        s->clock = s->checked = now;
        s->clock_at = at;
        return 0;
    }
    if (now - s->checked > 0.05)
        s->window = s->window > 4 ? s->window / 4 : 1;
    else if (now - s->checked < 0.01 && s->window < WINDOW_MAX)
        s->window *= 2;
    s->checked = now;
    const double seconds = now - s->clock;
    if (seconds > SLOW_S + (double)(at - s->clock_at) / SLOW_BYTES)
        return kvd_fail(
            err,
            "pattern '%.200s' is too slow for the text: %.1f s for %zu bytes, from byte %zu on; "
            "change the pattern, or use shorter documents",
            s->regex->pattern, seconds, at - s->clock_at, s->clock_at);
    return 0;
}

static int search(kvd_scan *s, size_t *begin, size_t *end, kvd_err *err)
{
    const kvd_regex *r = s->regex;
    if (!r->code)
        return search_literal(s, begin, end);
    const uint32_t options = PCRE2_NO_UTF_CHECK | (s->open ? PCRE2_PARTIAL_HARD : 0);
    const size_t *ovector = pcre2_get_ovector_pointer(s->match_data);
    for (size_t from = s->at;;) {
        const size_t last = s->len - from > s->window ? from + s->window : s->len;
        (void)pcre2_set_offset_limit(s->limits, last);
        int rc = pcre2_match(r->code, (PCRE2_SPTR)s->text, s->len, from, options, s->match_data,
                             s->limits);
        if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
            rc = pcre2_match(r->code, (PCRE2_SPTR)s->text, s->len, from, options | PCRE2_NO_JIT,
                             s->match_data, s->limits);
        if (rc == PCRE2_ERROR_PARTIAL) {
            s->known = ovector[0];
            return 0;
        }
        if (rc < 0 && rc != PCRE2_ERROR_NOMATCH) {
            char why[200];
            if (pcre2_get_error_message(rc, (PCRE2_UCHAR *)why, sizeof why) < 0)
                strcpy(why, "unknown error");
            return kvd_fail(err, "pattern '%.200s' fails on the text from byte %zu on: %s",
                            r->pattern, from, why);
        }
        if (rc > 0) {
            *begin = ovector[0];
            *end = ovector[1];
            return ++s->searches % SEARCHES == 0 && check_speed(s, *end, err) ? -1 : 1;
        }
        if (last == s->len) {
            s->known = s->len;
            return 0;
        }
        if (check_speed(s, last, err))
            return -1;
        from = last + 1;
        while (from < s->len && ((unsigned char)s->text[from] & 0xc0) == 0x80)
            from++;
    }
}

int kvd_scan_next(kvd_scan *s, size_t *begin, size_t *end, kvd_err *err)
{
    while (s->at <= s->len) {
        const int rc = search(s, begin, end, err);
        if (rc <= 0)
            return rc;
        /* Waits, because an empty match at the end may become longer if more text follows. */
        if (s->open && *begin == s->len) {
            s->known = s->len;
            return 0;
        }
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
    pcre2_match_context_free(s->limits);
    s->match_data = s->limits = NULL;
}
