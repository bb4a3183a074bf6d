/* Tests of progress messages: none if the program is quiet or ends quickly. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/progress.h"
#include "unit.h"

/*
 * Writes to `text` the progress messages that appear if `ago` seconds have passed since the start.
 * `terminal` pretends that stderr is a terminal.
 */
static void shown(bool quiet, bool terminal, double total, double ago, char *text, size_t size)
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
    kvd_progress_step(&p, 50);
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
    shown(false, false, 100, 10, text, sizeof text);
    assert_string_equal(text, "collect: 50 of 100 tokens (50 %), 5.00 tokens/s, 0:10 left\n"
                              "collect: 50 of 100 tokens (50 %), 5.00 tokens/s, took 0:10\n");
    shown(false, false, 100, 2, text, sizeof text);
    assert_string_equal(text, "collect: 50 of 100 tokens (50 %), 25 tokens/s, took 0:02\n");
    shown(false, false, 0, 3700, text, sizeof text);
    assert_non_null(strstr(text, "collect: 50 tokens, 0.01 tokens/s, 1:01:40 so far\n"));
}

TEST(test_silence)
{
    char text[1024];
    shown(true, false, 100, 10, text, sizeof text);
    assert_string_equal(text, "");
    shown(true, true, 100, 10, text, sizeof text);
    assert_string_equal(text, "");
    shown(false, false, 100, 0.1, text, sizeof text);
    assert_string_equal(text, "");
}

TEST(test_bar)
{
    char text[1024];
    shown(false, true, 100, 10, text, sizeof text);
    assert_int_equal(strncmp(text, "\rcollect: [############............] 50 of 100", 46), 0);
    assert_int_equal(text[strlen(text) - 1], '\n');
}

TEST_MAIN(NULL, NULL)
