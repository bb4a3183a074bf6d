#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/args.h"
#include "unit.h"

static kvd_err err;

TEST(test_sizes)
{
    size_t n = 7;
    assert_int_equal(kvd_arg_size("--tokens", "4096", 1, 5000, &n, &err), 0);
    assert_int_equal(n, 4096);
    static const char *const bad[] = {"",     " 1",  "1 ",  "-1",  "+1",
                                      "0x10", "1e3", "1.0", "one", "\xd9\xa1"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(kvd_arg_size("--tokens", bad[i], 0, SIZE_MAX, &n, &err), -1);
        assert_non_null(strstr(err.msg, "is not a whole number"));
    }
    assert_int_equal(kvd_arg_size("--tokens", "0", 1, 10, &n, &err), -1);
    assert_string_equal(err.msg, "--tokens: '0' is not within 1 .. 10");
    assert_int_equal(kvd_arg_size("--tokens", "18446744073709551616", 0, SIZE_MAX, &n, &err), -1);
    assert_string_equal(err.msg,
                        "--tokens: '18446744073709551616' is not within 0 .. 18446744073709551615");
    assert_int_equal(n, 4096);
}

TEST(test_doubles)
{
    double v = 7;
    assert_int_equal(kvd_arg_double("-p", "2.5e-1", 0, 1, &v, &err), 0);
    assert_true(v == 0.25);
    static const char *const bad[] = {"",     " 0.5", "0.5 ", "nan", "inf", "0x1p-1",
                                      "0.5x", ".",    "1e",   "--1", "1,5"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(kvd_arg_double("-p", bad[i], -HUGE_VAL, HUGE_VAL, &v, &err), -1);
        assert_non_null(strstr(err.msg, "is not a number"));
    }
    assert_int_equal(kvd_arg_double("-p", "1.5", 0, 1, &v, &err), -1);
    assert_string_equal(err.msg, "-p: '1.5' is not within 0 .. 1");
    assert_int_equal(kvd_arg_double("-p", "0", 1, 1 << 20, &v, &err), -1);
    assert_string_equal(err.msg, "-p: '0' is not within 1 .. 1048576");
    assert_int_equal(kvd_arg_double("-p", "1", 0, nextafter(1, 0), &v, &err), -1);
    assert_string_equal(err.msg, "-p: '1' is not within 0 .. 0.9999999999999999");
    assert_int_equal(kvd_arg_double("-p", "1e999", -HUGE_VAL, HUGE_VAL, &v, &err), -1);
    assert_true(v == 0.25);
}

TEST(test_lists)
{
    double *x = NULL;
    size_t n = 0, *s = NULL;
    assert_int_equal(kvd_arg_doubles("-r", "0.1,0.5,1e-3", 0, 1, &x, &n, &err), 0);
    assert_int_equal(n, 3);
    assert_true(x[0] == 0.1 && x[1] == 0.5 && x[2] == 1e-3);
    free(x);
    /*
     * The range must consist of the numbers that a user would type, such as 0.3, without rounding
     * errors.
     */
    assert_int_equal(kvd_arg_doubles("-r", "0:0.9:0.1", 0, 1, &x, &n, &err), 0);
    assert_int_equal(n, 10);
    assert_true(x[3] == 0.3 && x[9] == 0.9);
    free(x);
    assert_int_equal(kvd_arg_doubles("-r", "0.5:0.5:1", 0, 1, &x, &n, &err), 0);
    assert_int_equal(n, 1);
    free(x);
    static const char *const bad[] = {"",        ",",         "1,",        ",1",      "1,,2",
                                      "0:1",     "0:1:0",     "0:1:-1",    "1:0:0.1", "0:1:1e-9",
                                      "0:2:0.5", "0:0.9:0.6", "0:1:0.1:2", "a:b:c"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        err.msg[0] = '\0';
        assert_int_equal(kvd_arg_doubles("-r", bad[i], 0, 1, &x, &n, &err), -1);
        assert_int_equal(strncmp(err.msg, "-r: ", 4), 0);
    }
    assert_int_equal(kvd_arg_sizes("--input-len", "128,1024", 1, 4096, &s, &n, &err), 0);
    assert_int_equal(n, 2);
    assert_int_equal(s[1], 1024);
    free(s);
    assert_int_equal(kvd_arg_sizes("--input-len", "128,0", 1, 4096, &s, &n, &err), -1);
    assert_string_equal(err.msg, "--input-len: '0' is not within 1 .. 4096");
    assert_int_equal(kvd_arg_sizes("--input-len", "128,64,128", 1, 4096, &s, &n, &err), -1);
    assert_string_equal(err.msg, "--input-len: 128 is given twice");
    assert_int_equal(kvd_arg_doubles("-r", "0.1,1,0.10", 0, 1, &x, &n, &err), -1);
    assert_string_equal(err.msg, "-r: 0.1 is given twice");
}

/* A text of more than 63 characters must not be cut to a valid number. */
TEST(test_long_fields)
{
    enum { ZEROS = 80 };
    char text[3 * ZEROS], zeros[ZEROS + 1] = "";
    double *x;
    size_t *s, n;
    memset(zeros, '0', ZEROS);
    static const char *const form[] = {"1.%sjunk", "1.%se5", "1:1.%s5:0.5", "0.5,1.%sx"};
    for (size_t i = 0; i < sizeof form / sizeof *form; i++) {
        const char *at = strstr(form[i], "%s");
        snprintf(text, sizeof text, "%.*s%s%s", (int)(at - form[i]), form[i], zeros, at + 2);
        assert_int_equal(kvd_arg_doubles("-r", text, 0, 1e9, &x, &n, &err), -1);
        assert_non_null(strstr(err.msg, "000...' is not a number"));
    }
    snprintf(text, sizeof text, "8,%s64", zeros);
    assert_int_equal(kvd_arg_sizes("-n", text, 0, 100, &s, &n, &err), -1);
    assert_non_null(strstr(err.msg, "000...' is not a whole number"));
}

TEST_MAIN(NULL, NULL)
