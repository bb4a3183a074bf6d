/*
 * Regular expressions of tokenizer.json. They are written for Oniguruma (Ruby syntax, UTF-8) and
 * run by PCRE2. A construct that the two libraries read differently is rewritten (\s \w \v \uHHHH,
 * script names) or refused by name (\h \b, back references, nested classes and && in a class, {,n},
 * ...).
 *
 * Character classes follow the Unicode version of the installed PCRE2 (14.0 for PCRE2 10.42): a
 * character that became a letter in a later version is not a letter here.
 */
#ifndef KVD_MODEL_TEXT_TOKENIZER_REGEX_H
#define KVD_MODEL_TEXT_TOKENIZER_REGEX_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"

typedef struct kvd_regex kvd_regex;

/*
 * Compiles a regular expression. If `literal`, the pattern is a text that matches only itself. On
 * failure returns NULL and fills *err.
 */
kvd_regex *kvd_regex_new(const char *pattern, size_t len, bool literal, kvd_err *err);
/*
 * Compiles the pattern in a JSON object: a literal text {"String": ...} or a regular expression
 * {"Regex": ...}. On failure returns NULL and fills *err.
 */
kvd_regex *kvd_regex_parse(const json_t *spec, kvd_err *err);
void kvd_regex_free(kvd_regex *r);

/* Iterator over the matches of a pattern in one text; kvd_scan_text starts the next text. */
typedef struct {
    const kvd_regex *regex;
    void *match_data, *limits; /* memory of PCRE2 */
    const char *text;
    size_t len, at, last_end;
    bool matched_before, open;
    /*
     * For a text that continues beyond `len` bytes (`open`): once kvd_scan_next has returned 0, no
     * further match begins before byte `known`, whatever text follows.
     */
    size_t known;
    size_t window;   /* number of positions of the text that one call of PCRE2 tries */
    size_t searches; /* number of matches found in this text so far */
    /*
     * A search for matches that is too slow (a pattern of quadratic time) is stopped, so its speed
     * is checked from time to time. `clock` is the processor time in seconds at the first check in
     * this text, or 0 before it.
     */
    double clock;
    /* Offset in bytes that the search for matches had reached when its speed was first checked. */
    size_t clock_at;
    /* Processor time in seconds when the speed of the search for matches was last checked. */
    double checked;
} kvd_scan;

int kvd_scan_start(kvd_scan *s, const kvd_regex *r, kvd_err *err);
/*
 * Starts to search `text`, which must be valid UTF-8 and stay valid until the search is done. If
 * `open`, the text continues after `len` bytes, and only matches that do not depend on the
 * continuation are found.
 */
void kvd_scan_text(kvd_scan *s, const char *text, size_t len, bool open);
/*
 * Finds the next match, bytes [*begin, *end) of the text. Returns 1 if there is one, 0 if none is
 * left. Returns -1 with *err if the program was asked to stop, if one match takes too many steps,
 * or if the search as a whole is too slow (a pattern that reads far ahead from every position takes
 * quadratic time). Matches do not overlap; an empty match directly after the previous match is
 * skipped.
 */
int kvd_scan_next(kvd_scan *s, size_t *begin, size_t *end, kvd_err *err);
void kvd_scan_release(kvd_scan *s);

#endif
