/*
 * Regular expressions of tokenizer.json, written for Oniguruma (Ruby syntax, UTF-8) and run by
 * PCRE2. A construct that the two libraries read differently is rewritten (\s \w \v \uHHHH, script
 * names) or refused (\h \b, back references, nested classes and && in a class, {,n}, ...).
 * Character classes follow the Unicode version of the installed PCRE2 (14.0 for PCRE2 10.42).
 */
#ifndef KVD_MODEL_TEXT_TOKENIZER_REGEX_H
#define KVD_MODEL_TEXT_TOKENIZER_REGEX_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"

typedef struct kvd_regex kvd_regex;

/*
 * Compiles a pattern. If `literal`, the pattern is a text that matches only itself. On failure
 * returns NULL and fills *err.
 */
kvd_regex *kvd_regex_new(const char *pattern, size_t len, bool literal, kvd_err *err);
/*
 * Compiles the pattern of a JSON object. {"String": ...} is a literal text, {"Regex": ...} a
 * regular expression. On failure returns NULL and fills *err.
 */
kvd_regex *kvd_regex_parse(const json_t *spec, kvd_err *err);
void kvd_regex_free(kvd_regex *r);

/* Iterator over the matches in one text; kvd_scan_text starts the next text. */
typedef struct {
    const kvd_regex *regex;
    void *match_data, *limits;
    const char *text;
    size_t len, at, last_end;
    bool matched_before, open;
    /*
     * If the text may continue after the known bytes and kvd_scan_next has returned 0, then no
     * match begins in the bytes before `known`, whatever text follows.
     */
    size_t known;
    size_t window;
    size_t searches;
    /* Processor time in seconds when the speed of the search was first checked; 0 before that. */
    double clock;
    /* Byte of the text that the search had reached when its speed was first checked. */
    size_t clock_at;
    /* Processor time in seconds when the speed of the search was last checked. */
    double checked;
} kvd_scan;

int kvd_scan_start(kvd_scan *s, const kvd_regex *r, kvd_err *err);
/*
 * Starts a search in `text`, which must be valid UTF-8 and stay allocated. If `open`, the text
 * continues after `len` bytes, and only matches that do not depend on the continuation are found.
 */
void kvd_scan_text(kvd_scan *s, const char *text, size_t len, bool open);
/*
 * Finds the next match, bytes [*begin, *end). Returns 1 if there is one, 0 if none is left. Returns
 * -1 with *err if the program was asked to stop, or if the search is too slow. Matches do not
 * overlap; an empty match directly after the previous match is skipped.
 */
int kvd_scan_next(kvd_scan *s, size_t *begin, size_t *end, kvd_err *err);
void kvd_scan_release(kvd_scan *s);

#endif
