#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/err.h"
#include "common/progress.h"
#include "common/utf8.h"
#include "unit.h"

/* Checks progress messages of a run that started `ago` seconds ago. */
static void shown(bool quiet, bool terminal, double done, double total, double ago, char *text,
                  size_t size)
{
    int ends[2];
    kvd_progress p;
    assert_int_equal(pipe(ends), 0);
    const int kept = dup(2);
    fflush(stderr);
    dup2(ends[1], 2);
    kvd_progress_start(&p, "collect", "tokens", total, quiet);
    p.terminal = terminal;
    p.started -= ago;
    p.shown -= ago;
    kvd_progress_step(&p, done);
    kvd_progress_end(&p);
    fflush(stderr);
    dup2(kept, 2);
    close(kept);
    close(ends[1]);
    const ssize_t n = read(ends[0], text, size - 1);
    text[n > 0 ? n : 0] = '\0';
    close(ends[0]);
}

TEST(test_lines)
{
    char text[1024];
    shown(false, false, 50, 100, 10, text, sizeof text);
    assert_string_equal(text, "collect: 50 of 100 tokens (50 %), 5.00 tokens/s, 0:10 left\n"
                              "collect: 50 of 100 tokens (50 %), 5.00 tokens/s, took 0:10\n");
    shown(false, false, 50, 100, 2, text, sizeof text);
    assert_string_equal(text, "collect: 50 of 100 tokens (50 %), 25 tokens/s, took 0:02\n");
    shown(false, false, 50, 0, 3700, text, sizeof text);
    assert_non_null(strstr(text, "collect: 50 tokens, 0.01 tokens/s, 1:01:40 so far\n"));
    shown(false, false, 0.75, 2, 10, text, sizeof text);
    assert_non_null(strstr(text, "collect: 0.8 of 2 tokens (38 %), "));
    shown(false, false, 2 - 1e-12, 2, 10, text, sizeof text);
    assert_non_null(strstr(text, "collect: 2 of 2 tokens (100 %), "));
    shown(false, false, 60, 50, 10, text, sizeof text); /* more than was expected */
    assert_non_null(strstr(text, "collect: 60 of 60 tokens (100 %), "));
}

TEST(test_silence)
{
    char text[1024];
    shown(true, false, 50, 100, 10, text, sizeof text);
    assert_string_equal(text, "");
    shown(true, true, 50, 100, 10, text, sizeof text);
    assert_string_equal(text, "");
    shown(false, false, 50, 100, 0.1, text, sizeof text);
    assert_string_equal(text, "");
}

TEST(test_bar)
{
    char text[1024];
    shown(false, true, 50, 100, 10, text, sizeof text);
    assert_int_equal(strncmp(text, "\rcollect: [############............] 50 of 100", 46), 0);
    assert_int_equal(text[strlen(text) - 1], '\n');
}

TEST(test_format_and_context)
{
    kvd_err err;
    assert_int_equal(kvd_fail(&err, "tensor '%s': %d rows", "a\nb", 3), -1);
    assert_string_equal(err.msg, "tensor 'a?b': 3 rows");
    assert_int_equal(kvd_in(&err, "layer %d", 7), -1);
    assert_string_equal(err.msg, "layer 7: tensor 'a?b': 3 rows");
    kvd_in(&err, "layer %d", 7); /* not twice */
    kvd_in(&err, "layer");
    assert_string_equal(err.msg, "layer 7: tensor 'a?b': 3 rows");
}

/* Error messages have '?' in place of control characters, malformed UTF-8 and a last character that
 * is cut off. */
TEST(test_message_is_valid_utf8)
{
    kvd_err err;
    char name[600] = "x";
    kvd_fail(&err, "'\xc2\x9b\x31m' '\x9b' '\xc3\xa9' '\x7f'");
    assert_string_equal(err.msg, "'??1m' '?' '\xc3\xa9' '?'");
    for (size_t i = 1; i + 2 < sizeof name; i += 2)
        memcpy(name + i, "\xc3\xa9", 3);
    for (int shift = 0; shift < 2; shift++) {
        kvd_fail(&err, "%s", name + shift);
        assert_int_equal(kvd_utf8_first_bad(err.msg, strlen(err.msg)), strlen(err.msg));
    }
}

TEST(test_cut_character)
{
    char cut[] = "a\xe2\x82", whole[] = "a\xe2\x82\xac",
         malformed[] = "\xff"
                       "a";
    kvd_utf8_drop_cut(cut);
    kvd_utf8_drop_cut(whole);
    kvd_utf8_drop_cut(malformed);
    assert_string_equal(cut, "a");
    assert_string_equal(whole, "a\xe2\x82\xac");
    assert_string_equal(malformed, "\xff"
                                   "a");
}

TEST(test_long_text_is_cut_visibly)
{
    kvd_err err;
    char name[2000];
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    kvd_fail(&err, "no '%s'", name);
    assert_int_equal(strlen(err.msg), sizeof err.msg - 1);
    assert_string_equal(err.msg + sizeof err.msg - 4, "...");
    kvd_in(&err, "%s", "file");
    assert_int_equal(strncmp(err.msg, "file: no 'xxx", 13), 0);
    assert_string_equal(err.msg + sizeof err.msg - 4, "...");
}

TEST(test_errno)
{
    kvd_err err;
    errno = ENOENT;
    kvd_fail_errno(&err, "cannot open '%s'", "x");
    assert_string_equal(err.msg, "cannot open 'x': No such file or directory");
}

/* This test sets memory limits so large that neither the test nor a sanitizer reaches them. */
TEST(test_memory_limit)
{
    kvd_err err;
    char text[KVD_MEMORY_LIMIT_TEXT];
    struct rlimit space, data;
    assert_int_equal(getrlimit(RLIMIT_AS, &space), 0);
    assert_int_equal(getrlimit(RLIMIT_DATA, &data), 0);
    if (space.rlim_cur != RLIM_INFINITY || data.rlim_cur != RLIM_INFINITY)
        skip(); /* the user has set memory limits already */
    assert_false(kvd_memory_limit(text));
    kvd_no_memory(&err, "rows", 7);
    assert_string_equal(err.msg, "cannot allocate 7 bytes for rows");
    const struct rlimit low = {(rlim_t)1 << 46, data.rlim_max},
                        high = {(rlim_t)1 << 47, space.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_AS, &high), 0);
    assert_true(kvd_memory_limit(text));
    assert_string_equal(text, "the limit of 137438953472 KB on memory (ulimit -v)");
    assert_int_equal(setrlimit(RLIMIT_DATA, &low), 0);
    kvd_no_memory(&err, "rows", 7);
    assert_string_equal(err.msg,
                        "cannot allocate 7 bytes for rows; raise the limit of 68719476736 KB on "
                        "memory (ulimit -d)");
    errno = ENOMEM;
    kvd_fail_errno(&err, "cannot map '%s'", "x");
    assert_string_equal(err.msg,
                        "cannot map 'x': Cannot allocate memory; raise the limit of 68719476736 KB "
                        "on memory (ulimit -d)");
    errno = ENOENT;
    kvd_fail_errno(&err, "cannot open '%s'", "x");
    assert_string_equal(err.msg, "cannot open 'x': No such file or directory");
    assert_int_equal(setrlimit(RLIMIT_AS, &space), 0);
    assert_int_equal(setrlimit(RLIMIT_DATA, &data), 0);
}

TEST_MAIN(NULL, NULL)
