/* common/err: messages are one line, cut visibly, and take context in front. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/err.h"

static void test_format_and_context(void **state)
{
    (void)state;
    kvd_err err;
    assert_int_equal(kvd_fail(&err, "tensor '%s': %d rows", "a\nb", 3), -1);
    assert_string_equal(err.msg, "tensor 'a?b': 3 rows");
    assert_int_equal(kvd_in(&err, "layer %d", 7), -1);
    assert_string_equal(err.msg, "layer 7: tensor 'a?b': 3 rows");
}

static void test_long_text_is_cut_visibly(void **state)
{
    (void)state;
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

static void test_errno(void **state)
{
    (void)state;
    kvd_err err;
    errno = ENOENT;
    kvd_fail_errno(&err, "cannot open '%s'", "x");
    assert_string_equal(err.msg, "cannot open 'x': No such file or directory");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_format_and_context),
        cmocka_unit_test(test_long_text_is_cut_visibly),
        cmocka_unit_test(test_errno),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
