#ifndef KVD_TESTS_CONFIG_CASE_H
#define KVD_TESTS_CONFIG_CASE_H

#include <string.h>

#include "model/checkpoint/config.h"
#include "unit.h"

/* Parses a config.json in which single quotes mean double quotes. */
static inline int parse_config(const char *text, kvd_config *c, kvd_err *err)
{
    const char *const json = double_quotes(text);
    err->msg[0] = '\0';
    return kvd_config_parse("c", json, strlen(json), c, err);
}

static inline kvd_config accept(const char *text)
{
    kvd_config c;
    kvd_err err;
    if (parse_config(text, &c, &err))
        fail_msg("%s: %s", text, err.msg);
    return c;
}

/* Checks that parsing `text` as a config.json fails with the error `message`. */
static inline void refuse(const char *text, const char *message)
{
    kvd_config c;
    kvd_err err;
    if (parse_config(text, &c, &err) == 0 || !strstr(err.msg, message))
        fail_msg("%s: '%s' lacks '%s'", text, err.msg, message);
}

/* Returns a copy of `text` in which `to` replaces the first `from`; the next call overwrites the
 * copy. If `from` is empty, inserts `to` after the opening brace. */
static inline const char *edit_config(const char *text, const char *from, const char *to)
{
    static char result[4096];
    const char *const at = from[0] ? strstr(text, from) : text + 1;
    assert_non_null(at);
    (void)snprintf(result, sizeof result, "%.*s%s%s", (int)(at - text), text, to,
                   at + strlen(from));
    return result;
}

/* Replaces `from` by `to` in a config.json. Parsing the result must fail with the error
 * `message`. */
static inline void refuse_config(const char *text, const char *from, const char *to,
                                 const char *message)
{
    refuse(edit_config(text, from, to), message);
}

#endif
